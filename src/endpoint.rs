//! What discovery yields: a target and how much traffic it should get.

use std::{collections::BTreeMap, fmt, sync::Arc};

/// One place that calls can be sent to: a target with a weight.
///
/// Discovery yields endpoints by key, as
/// [`Change<K, Endpoint<T>>`](tower::discover::Change).
///
/// ```
/// use counterpoise::{Direct, Endpoint};
///
/// let endpoint = Endpoint::new(Direct("any service")).weight(4);
/// assert_eq!(endpoint.target().0, "any service");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Endpoint<T> {
    target: T,
    weight: u32,
    traits: Traits,
}

/// What else discovery says of an endpoint: data for policies, events and statistics. Most
/// endpoints have none, and then it takes one word.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Traits(Option<Arc<Named>>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Named {
    tier: u32,
    zone: Option<Arc<str>>,
    labels: Labels,
}

const NO_LABELS: &Labels = &Labels(None);

impl Traits {
    pub(crate) fn tier(&self) -> u32 {
        self.0.as_ref().map_or(0, |named| named.tier)
    }

    pub(crate) fn zone(&self) -> Option<&Arc<str>> {
        self.0.as_ref()?.zone.as_ref()
    }

    pub(crate) fn labels(&self) -> &Labels {
        self.0.as_ref().map_or(NO_LABELS, |named| &named.labels)
    }

    fn edit(&mut self) -> &mut Named {
        Arc::make_mut(self.0.get_or_insert_default())
    }
}

/// The labels of an endpoint, by key. Clones are cheap.
///
/// ```
/// use counterpoise::{Direct, Endpoint};
///
/// let endpoint = Endpoint::new(Direct("any service")).label("version", "2").label("disk", "ssd");
/// assert_eq!(endpoint.labels().get("version"), Some("2"));
/// assert_eq!(endpoint.labels().to_string(), "disk=ssd,version=2");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Labels(Option<Arc<BTreeMap<String, String>>>);

impl Labels {
    /// Returns the value of a label. Cost: O(log n) in the number of labels.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.as_ref()?.get(key).map(String::as_str)
    }

    /// Returns whether there are no labels.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|labels| labels.is_empty())
    }

    /// Returns keys and values, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let labels = self.0.iter().flat_map(|labels| labels.iter());
        labels.map(|(key, value)| (key.as_str(), value.as_str()))
    }

    fn set(&mut self, key: String, value: String) {
        Arc::make_mut(self.0.get_or_insert_default()).insert(key, value);
    }
}

impl fmt::Display for Labels {
    /// Writes `key=value` pairs, separated by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (key, value)) in self.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(f, "{comma}{key}={value}")?;
        }
        Ok(())
    }
}

impl<T> Endpoint<T> {
    /// Creates an endpoint of weight 1.
    pub const fn new(target: T) -> Self {
        Self { target, weight: 1, traits: Traits(None) }
    }

    /// Sets the weight: the share of the traffic, beside the other endpoints' weights.
    ///
    /// Zero drains: the endpoint stays listed and its running calls finish, but no policy
    /// sends it a new one. The unweighted policies know only zero and not zero. Default: 1.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// Sets the tier: data for policies, events and statistics. By convention a lower tier is used
    /// before a higher one; no policy of this crate does so yet. Default: 0.
    #[must_use]
    pub fn tier(mut self, tier: u32) -> Self {
        self.traits.edit().tier = tier;
        self
    }

    /// Sets the zone where the endpoint stands: data for policies, events and statistics.
    /// Default: none.
    #[must_use]
    pub fn zone(mut self, zone: impl Into<Arc<str>>) -> Self {
        self.traits.edit().zone = Some(zone.into());
        self
    }

    /// Sets a label, in the place of an earlier one with this key: data for policies, events and
    /// statistics. Default: no labels.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.traits.edit().labels.set(key.into(), value.into());
        self
    }

    /// Returns the labels.
    #[must_use]
    pub fn labels(&self) -> &Labels {
        self.traits.labels()
    }

    /// Returns the weight.
    #[must_use]
    pub const fn get_weight(&self) -> u32 {
        self.weight
    }

    /// Returns the target.
    pub const fn target(&self) -> &T {
        &self.target
    }

    /// Turns the target into another, keeping everything else.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Endpoint<U> {
        Endpoint { target: f(self.target), weight: self.weight, traits: self.traits }
    }

    pub(crate) const fn traits(&self) -> &Traits {
        &self.traits
    }

    /// Takes the endpoint apart.
    pub(crate) fn into_parts(self) -> (T, u32, Traits) {
        (self.target, self.weight, self.traits)
    }
}

/// Knows how to reach one endpoint with a client that all endpoints share.
///
/// The client is what [`BalanceLayer`](crate::BalanceLayer) wraps: one
/// `reqwest::Client`, say. Attaching happens for every pick, so it should cost no more
/// than a clone or two.
///
/// ```
/// use counterpoise::{call::AtHead, health::ErrorsAreFailures, Target};
///
/// /// An endpoint that is reached by a number which the client understands.
/// struct Shard(u32);
///
/// impl<C: Clone> Target<C> for Shard {
///     type Service = (u32, C);
///     type Judge = AtHead<ErrorsAreFailures>;
///
///     fn attach(&self, client: &C) -> Self::Service {
///         (self.0, client.clone())
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not know how to use the client `{C}`",
    label = "not a target for this client",
    note = "the service in `Direct` or `http::GrpcChannel`, and the client under an `http::Origin`, must be `Clone`",
    note = "a target of your own needs `impl Target<{C}>`"
)]
pub trait Target<C> {
    /// The service that calls this endpoint.
    type Service;

    /// How its calls are judged by default: a [`Judge`](crate::call::Judge) that is `Default`, such
    /// as [`AtHead<ErrorsAreFailures>`](AtHead).
    ///
    /// [`Builder::classify`](crate::Builder::classify) and
    /// [`Builder::judge`](crate::Builder::judge) replace it.
    type Judge;

    /// Returns a service that sends what it is given to this endpoint.
    ///
    /// The service is made ready and called once. A panic here counts as a failure of the
    /// endpoint and reaches the caller.
    fn attach(&self, client: &C) -> Self::Service;
}

/// A target that brings its own service and ignores the shared client.
///
/// Calls end at the head, and errors are failures. For a gRPC channel, `http::GrpcChannel` judges
/// statuses too. Each call clones the service. A balancer shares its
/// endpoints among threads, so the service must be `Send` and `Sync`: box it, if at all, as
/// tower's `BoxCloneSyncService`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a transparent wrapper by intent")]
pub struct Direct<S>(pub S);
