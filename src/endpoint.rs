//! What discovery yields: a target and how much traffic it should get.

use crate::{call::AtHead, health::ErrorsAreFailures};

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
}

impl<T> Endpoint<T> {
    /// Creates an endpoint of weight 1.
    pub const fn new(target: T) -> Self {
        Self { target, weight: 1 }
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
        Endpoint { target: f(self.target), weight: self.weight }
    }

    /// Takes the endpoint apart.
    pub(crate) fn into_parts(self) -> (T, u32) {
        (self.target, self.weight)
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

#[diagnostic::do_not_recommend]
impl<S: Clone, C> Target<C> for Direct<S> {
    type Service = S;
    type Judge = AtHead<ErrorsAreFailures>;

    fn attach(&self, _client: &C) -> S {
        self.0.clone()
    }
}
