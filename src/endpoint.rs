//! Endpoints: what discovery yields, and how a target is reached.

use std::{collections::BTreeMap, fmt, sync::Arc};

/// One endpoint of the set: a target with a weight, a tier, a zone and labels.
///
/// Discovery yields endpoints by key, as
/// [`Change<K, Endpoint<T>>`](https://docs.rs/tower/0.5/tower/discover/enum.Change.html).
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

/// The tier, zone and labels of an endpoint: data for policies, events and statistics.
///
/// Most endpoints have none; the value then takes one pointer and allocates nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Traits(Option<Arc<TraitData>>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct TraitData {
    tier: u32,
    zone: Option<Arc<str>>,
    labels: Labels,
}

const NO_LABELS: &Labels = &Labels(None);

impl Traits {
    pub(crate) fn tier(&self) -> u32 {
        self.0.as_ref().map_or(0, |data| data.tier)
    }

    pub(crate) fn zone(&self) -> Option<&Arc<str>> {
        self.0.as_ref()?.zone.as_ref()
    }

    pub(crate) fn labels(&self) -> &Labels {
        self.0.as_ref().map_or(NO_LABELS, |data| &data.labels)
    }

    fn edit(&mut self) -> &mut TraitData {
        Arc::make_mut(self.0.get_or_insert_default())
    }
}

/// The labels of an endpoint, by key.
///
/// Clones share the data.
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
    /// Returns the value of a label.
    ///
    /// Cost: O(log n) in the number of labels.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.as_ref()?.get(key).map(String::as_str)
    }

    /// Returns whether there are no labels.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|labels| labels.is_empty())
    }

    /// Returns the keys and values, in the order of the keys.
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
        for (index, (key, value)) in self.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{key}={value}")?;
        }
        Ok(())
    }
}

impl<T> Endpoint<T> {
    /// Creates an endpoint of weight 1.
    pub const fn new(target: T) -> Self {
        Self {
            target,
            weight: 1,
            traits: Traits(None),
        }
    }

    /// Sets the weight: the share of the calls, relative to the other endpoints' weights.
    /// Default: 1.
    ///
    /// Zero drains the endpoint: it stays a member and its running calls finish, but it gets no new
    /// ones. Policies without weights only distinguish zero from the rest.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// Sets the tier: data for policies, events and statistics. Default: 0.
    ///
    /// By convention a lower tier is used before a higher one. No policy of this crate reads it.
    #[must_use]
    pub fn tier(mut self, tier: u32) -> Self {
        self.traits.edit().tier = tier;
        self
    }

    /// Sets the zone: data for policies, events and statistics. Default: none.
    #[must_use]
    pub fn zone(mut self, zone: impl Into<Arc<str>>) -> Self {
        self.traits.edit().zone = Some(zone.into());
        self
    }

    /// Sets a label: data for policies, events and statistics. Default: no labels.
    ///
    /// It replaces an earlier label with the same key.
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

    /// Replaces the target by one that `f` makes of it, and keeps the rest.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Endpoint<U> {
        Endpoint {
            target: f(self.target),
            weight: self.weight,
            traits: self.traits,
        }
    }

    pub(crate) const fn traits(&self) -> &Traits {
        &self.traits
    }

    /// Returns the target, the weight and the traits.
    pub(crate) fn into_parts(self) -> (T, u32, Traits) {
        (self.target, self.weight, self.traits)
    }
}

/// Reaches one endpoint with a client that all endpoints share.
///
/// The client is the service that [`BalanceLayer`](crate::BalanceLayer) wraps, for example a
/// `reqwest::Client`. [`attach`](Self::attach) runs for each pick, so it should cost about as much
/// as a clone.
///
/// ```
/// use counterpoise::{call::AtHead, health::ErrorsAreFailures, Target};
///
/// /// An endpoint that the client finds by its number.
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

    /// The default [`Judge`](crate::call::Judge) of its calls, such as
    /// [`AtHead`](crate::call::AtHead). It must be `Default`.
    ///
    /// [`Builder::classify`](crate::Builder::classify) and
    /// [`Builder::judge`](crate::Builder::judge) replace it.
    type Judge;

    /// Returns a service that sends its request to this endpoint.
    ///
    /// The balancer polls the service until it is ready, and calls it once.
    ///
    /// # Panics
    ///
    /// A panic counts as a failure of the endpoint, and continues in the caller.
    fn attach(&self, client: &C) -> Self::Service;
}

/// A target that holds its own service, and ignores the shared client.
///
/// By default calls end with the head of the response, and errors are failures. For a gRPC channel,
/// `http::GrpcChannel` judges statuses too. Each call clones the service.
///
/// The balancer shares its endpoints among threads, so the service must be `Send` and `Sync`. A
/// boxed service is therefore tower's `BoxCloneSyncService`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a transparent wrapper by intent")]
pub struct Direct<S>(pub S);
