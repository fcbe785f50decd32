//! Policies: how an endpoint is picked.
//!
//! A [`Policy`] builds a [`Picker`] from the members when the set changes; it does not see requests.
//! The picker picks from the request and a [`PickContext`]. Neither reads a clock or makes random
//! numbers: a picker depends on the members and the former picker, and a pick on the picker, the
//! request and the context. A picker may hold a position that each pick advances, as that of
//! [`SmoothWeighted`] does.

pub mod affinity;
mod boxed;
mod candidates;
mod context;
mod cutpoints;
mod least_request;
mod members;
mod needs;
mod p2c;
mod peak_ewma;
mod random;
mod result;
mod round_robin;
mod shuffle;
mod smooth_weighted;
pub(crate) mod ticket;
mod weighted_random;

pub use boxed::BoxPolicy;
pub use candidates::Candidates;
pub(crate) use context::Observed;
pub use context::PickContext;
pub use least_request::LeastRequest;
pub use members::{Member, Members};
pub use needs::Needs;
pub use peak_ewma::PeakEwma;
pub use random::Random;
pub use result::PickResult;
pub(crate) use round_robin::rotate;
pub use round_robin::{ModuloRoundRobin, RoundRobin};
pub use smooth_weighted::SmoothWeighted;
pub use weighted_random::WeightedRandom;

/// Builds pickers from the members of the set.
///
/// The picker holds the data that picks need, settings included.
///
/// ```
/// use counterpoise::policy::{Members, Needs, PickContext, PickResult, Picker, Policy};
/// use std::time::Duration;
///
/// /// Of two endpoints at random, the one that is expected to answer sooner.
/// struct Sooner;
///
/// impl Policy for Sooner {
///     type Picker = Pair;
///
///     // Called for each change of the set: of members, weights, capacities or health.
///     fn build(&self, _members: &Members<'_>, _previous: Option<&Pair>) -> Pair {
///         Pair
///     }
///
///     fn needs(&self) -> Needs {
///         Needs::latency(Duration::from_secs(10))
///     }
/// }
///
/// struct Pair;
///
/// impl<Req: ?Sized> Picker<Req> for Pair {
///     fn pick(&self, _request: &Req, cx: &PickContext<'_>) -> PickResult {
///         let place = cx.random_below(cx.eligible().len() as u64) as usize;
///         let pair = cx.eligible().iter().cycle().skip(place).take(2);
///         let cost = |&&index: &&u32| {
///             cx.latency(index as usize) * (cx.in_flight(index as usize) as u32 + 1)
///         };
///         pair.min_by_key(cost).map_or(PickResult::Any, |&index| PickResult::Member(index as usize))
///     }
/// }
/// ```
///
/// `examples/custom_policy.rs` has a policy that reads requests. A policy that wraps another forwards
/// the provided methods too, here and of [`Picker`]: they have the needs of the inner policy and its
/// order of candidates.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a balancing policy",
    note = "take one of `counterpoise::policy`, such as `RoundRobin::new()`, box one in a \
            `BoxPolicy`, or implement `Policy` for `{Self}` and `Picker` for what it builds"
)]
pub trait Policy: Send + Sync + 'static {
    /// The type of the pickers. A picker belongs to one snapshot, and concurrent picks share it.
    type Picker: Send + Sync + 'static;

    /// Builds the picker for the members as they are now.
    ///
    /// `previous` has the state to carry over. It is the picker of the last snapshot, or one that was
    /// built ahead for a batch of discovery and does not fit because the members have changed since.
    ///
    /// Called when members, weights, capacities or health have changed, and after
    /// [`PickResult::Renew`], not for each request. Changes that are published together have one build;
    /// a change whose picker was built ahead may have two. It may run under the lock that orders the
    /// changes, so it must not call the balancer.
    ///
    /// If it panics, the panic is counted in the [statistics](crate::Stats), the former picker stays
    /// in use, and the next change builds again.
    fn build(&self, members: &Members<'_>, previous: Option<&Self::Picker>) -> Self::Picker;

    /// Returns the measurements and bounds that the picks need beside the members.
    ///
    /// Read once, when the balancer is made. Default: [`Needs::none`].
    fn needs(&self) -> Needs {
        Needs::none()
    }
}

/// Picks endpoints for requests of type `Req`.
#[diagnostic::on_unimplemented(
    message = "the picker `{Self}` cannot pick for requests of type `{Req}`",
    note = "a closure that finds keys must take `&{Req}`, and `BoxPolicy<Req>` must be of the \
            same type of request; a policy of your own needs `impl Picker<{Req}>` for its picker"
)]
pub trait Picker<Req: ?Sized> {
    /// Picks an endpoint for the request.
    ///
    /// Called again for the same request in a retry, and when the endpoint has left service or the
    /// snapshot has changed. A panic reaches the caller.
    fn pick(&self, request: &Req, cx: &PickContext<'_>) -> PickResult;

    /// Pushes the members that this request may go to, in order of preference, from the `skip`-th on.
    ///
    /// Called when the call cannot use the pick: in a retry, under a bound, while endpoints are not
    /// ready; and to find the request for the trial of an ejected endpoint. `skip` is the number of
    /// candidates that were pushed before; a call that pushes none ends the sequence.
    ///
    /// The sequence must stay the same throughout one call and snapshot. So it may depend on the
    /// picker, the request and [`PickContext::shuffle`], whose order stays the same, but not on
    /// [`PickContext::ticket`] or [`PickContext::random_below`], which change from one context of
    /// the call to the next. [`Candidates::bind`] binds a request to the first one.
    ///
    /// Default: the eligible members in the order of [`PickContext::shuffle`].
    fn candidates(&self, request: &Req, cx: &PickContext<'_>, skip: usize, out: &mut Candidates) {
        let _ = request;
        cx.shuffle(skip, out);
    }
}
