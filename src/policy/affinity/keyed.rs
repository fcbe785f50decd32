//! The keyed policy: one type over all structures.

use std::sync::Arc;

use crate::policy::{
    Members, Needs, Policy,
    affinity::{Key, Structure, picker::KeyedPicker},
};

/// A policy that keeps a key with one endpoint: [`RingHash`], [`Maglev`], [`HashMod`] or
/// [`Rendezvous`].
///
/// An [`Affinity`](super::Affinity) finds the key of a request. The first choice is the endpoint
/// that owns the key; if that may not be picked, or the request tried it before, the next endpoint
/// of the key's order is. The trials of an ejected endpoint are requests of its own keys.
///
/// An endpoint of reduced capacity (in its ramp, say, or after push-back) keeps that part of its
/// keys, always the same ones; its other keys go to the next endpoint of their order. Under
/// [`RingHash`] and [`Rendezvous`] that is as a rule the owner before the endpoint joined, so a key
/// moves once; under [`Maglev`] and [`HashMod`] it may be another, and the key moves a second time
/// at the end of the ramp.
///
/// Cost per pick: that of the structure. Cost per build: that of the structure where members or
/// weights have changed; a change of health or capacity keeps the map.
///
/// ```
/// use counterpoise::policy::affinity::{Key, RingHash};
/// use counterpoise::{discover, Balance, Direct, Endpoint};
/// use tower::service_fn;
///
/// let echo = service_fn(async |user: String| Ok::<_, std::io::Error>(user));
/// let endpoints = discover::list([("a", Endpoint::new(Direct(echo)))]);
/// let policy = RingHash::by(|user: &String| Some(Key::from(user.as_str())));
/// let balance = Balance::new(endpoints, policy.bounded(1.25));
/// ```
///
/// [`RingHash`]: super::RingHash
/// [`Maglev`]: super::Maglev
/// [`HashMod`]: super::HashMod
/// [`Rendezvous`]: super::Rendezvous
#[derive(Debug, Clone)]
pub struct Keyed<A, S> {
    affinity: Arc<A>,
    pub(super) structure: S,
    fallback: Fallback,
    bound: Option<f64>,
}

/// What happens to a request without a key.
///
/// ```
/// use counterpoise::policy::affinity::{Fallback, Key, RingHash};
///
/// let by_user = RingHash::by(|user: &Option<String>| user.as_deref().map(Key::from));
/// let policy = by_user.fallback(Fallback::Refuse);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Fallback {
    /// The requests rotate over the eligible endpoints, whatever their weights.
    #[default]
    Rotate,
    /// Each request goes to an eligible endpoint at random, whatever the weights.
    Random,
    /// The call fails with [`ErrorKind::Policy`](crate::error::ErrorKind::Policy).
    Refuse,
}

impl<F, S: Structure + Default> Keyed<F, S> {
    /// Creates the policy from a closure that finds a request's key.
    pub fn by<Req: ?Sized>(key: F) -> Self
    where
        F: Fn(&Req) -> Option<Key<'_>> + Send + Sync + 'static,
    {
        Self::on(key)
    }
}

impl<A, S: Structure + Default> Keyed<A, S> {
    /// Creates the policy from an [`Affinity`](super::Affinity), such as those in `http::key`.
    #[must_use]
    pub fn on(affinity: A) -> Self {
        let (affinity, structure) = (Arc::new(affinity), S::default());
        Self {
            affinity,
            structure,
            fallback: Fallback::Rotate,
            bound: None,
        }
    }
}

impl<A, S> Keyed<A, S> {
    /// Sets what happens to requests without a key. Default: [`Fallback::Rotate`].
    #[must_use]
    pub fn fallback(mut self, fallback: Fallback) -> Self {
        self.fallback = fallback;
        self
    }

    /// Bounds the load of each endpoint to a factor of its share of all running calls.
    ///
    /// Default: no bound. Typical factors are 1.25 to 2; less than 1, or NaN, counts as 1.
    ///
    /// An endpoint is passed over while one more call would make it hold more than
    /// `ceil(factor × (running + 1) × share)` calls; its share is that of its weight among the
    /// eligible. With all at the bound, the first choice takes the call; if that is not ready, another
    /// does. The bound is exact also under concurrency. Cost: a short lock for each call and its end.
    /// (Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads", 2018.)
    #[must_use]
    pub fn bounded(mut self, factor: f64) -> Self {
        self.bound = Some(factor.max(1.0));
        self
    }

    pub(super) fn structure_mut(&mut self) -> &mut S {
        &mut self.structure
    }
}

impl<A: Send + Sync + 'static, S: Structure> Policy for Keyed<A, S> {
    type Picker = KeyedPicker<A, S>;

    fn build(&self, members: &Members<'_>, previous: Option<&Self::Picker>) -> Self::Picker {
        KeyedPicker::new(
            &self.affinity,
            &self.structure,
            self.fallback,
            members,
            previous,
        )
    }

    fn needs(&self) -> Needs {
        let needs = Needs::none().slow_build_from(self.structure.slow_from());
        self.bound.map_or(needs, |factor| needs.bound(factor))
    }
}
