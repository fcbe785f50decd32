//! How an endpoint is chosen.
//!
//! A [`Policy`] builds a [`Picker`] from the members of the set each time the set changes; it
//! never sees a request. The picker makes one choice from the ticket and the request. Both are
//! pure: what a picker holds and what a pick returns depend on nothing else, so that every
//! choice can be repeated.

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
pub(crate) use round_robin::rotate;
pub use round_robin::{ModuloRoundRobin, RoundRobin};
pub use smooth_weighted::SmoothWeighted;
pub use weighted_random::WeightedRandom;

/// Builds pickers from the members of the set.
///
/// The picker holds whatever a pick needs, the policy's own settings too.
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
/// `examples/custom_policy.rs` has one whose picker holds something. A policy that wraps another
/// forwards the provided methods too, here and of [`Picker`], or what the inner one needs and its
/// order of candidates are lost.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a balancing policy",
    note = "take one of `counterpoise::policy`, such as `RoundRobin::new()`, box one in a \
            `BoxPolicy`, or implement `Policy` for `{Self}` and `Picker` for what it builds"
)]
pub trait Policy: Send + Sync + 'static {
    /// What makes the picks. Immutable: one picker belongs to one state of the set.
    type Picker: Send + Sync + 'static;

    /// Builds the picker for the members as they are now.
    ///
    /// `previous` is the picker before, so that work or state can be carried over. Called once
    /// for each change of the eligible endpoints or their weights, never for a request. It may
    /// run under the lock that orders the changes: it must not call the balancer. If it panics,
    /// the panic is counted in the [statistics](crate::Stats), the former picker stays in use,
    /// and the next change builds anew.
    fn build(&self, members: &Members<'_>, previous: Option<&Self::Picker>) -> Self::Picker;

    /// Returns what the policy needs beside the members: latencies, a bound. Read once, when the
    /// balancer is made. Default: nothing.
    fn needs(&self) -> Needs {
        Needs::none()
    }
}

/// Makes the choice for a request of type `Req`.
#[diagnostic::on_unimplemented(
    message = "the picker `{Self}` cannot pick for requests of type `{Req}`",
    note = "a closure that finds keys must take `&{Req}`, and `BoxPolicy<Req>` must be of the \
            same type of request; a policy of your own needs `impl Picker<{Req}>` for its picker"
)]
pub trait Picker<Req: ?Sized> {
    /// Chooses an endpoint for the request.
    ///
    /// The same request may be picked for again, when the chosen endpoint has just left the
    /// rotation, is not ready, or was tried before. A panic reaches the caller.
    fn pick(&self, request: &Req, cx: &PickContext<'_>) -> PickResult;

    /// Pushes where this request may go, in order of preference, from the `skip`-th on.
    ///
    /// Read when the first pick may not be used: for retries, under a bound, while endpoints are
    /// not ready, and for the call that tests an ejected endpoint. `skip` counts the candidates
    /// that were pushed before; with nothing left to push the sequence ends. It should be the
    /// same sequence for the same request and set. See [`Candidates`] for how keys bind.
    ///
    /// Default: the eligible members in an order that is drawn anew for each call.
    fn candidates(&self, request: &Req, cx: &PickContext<'_>, skip: usize, out: &mut Candidates) {
        let _ = request;
        cx.shuffle(skip, out);
    }
}

/// What a pick chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PickResult {
    /// The member at this index of the [`Members`] from which the picker was built.
    ///
    /// If it may not be picked now, another one is taken. An index that is out of range is an
    /// error of the call.
    Member(usize),
    /// Any eligible member: the balancer rotates over them, whatever their weights.
    Any,
    /// None: the call fails, for this reason.
    Refuse(&'static str),
    /// The picker is used up: the next one is built from it, and picks instead.
    Renew,
}
