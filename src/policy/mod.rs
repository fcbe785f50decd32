//! How an endpoint is chosen.
//!
//! A [`Policy`] compiles a table from the members of the set each time the set changes; it
//! never sees a request. [`Pick`] makes one choice from the table, the ticket and the
//! request. Both are pure: what the table holds and what a pick returns depend on nothing
//! else, so that every choice can be repeated.

pub mod affinity;
mod boxed;
mod context;
mod least_request;
mod members;
mod p2c;
mod peak_ewma;
mod random;
mod round_robin;
mod smooth_weighted;
pub(crate) mod ticket;

pub use crate::load::Signals;
pub use boxed::{BoxPolicy, BoxTable};
pub use context::Turn;
pub(crate) use context::{Gate, Sight};
pub use least_request::LeastRequest;
pub use members::{Member, View};
pub use peak_ewma::{CostTable, PeakEwma};
pub use random::{Random, RandomTable, WeightedRandom, WeightedTable};
pub(crate) use round_robin::rotate;
pub use round_robin::{ModuloRoundRobin, RotationTable, RoundRobin};
pub use smooth_weighted::{SmoothTable, SmoothWeighted};

/// Compiles what its picks need to know of the members.
///
/// ```
/// use counterpoise::policy::{Choice, Pick, Policy, Signals, Turn, View};
/// use std::time::Duration;
///
/// /// Of two endpoints at random, the one that is expected to answer sooner.
/// struct Sooner;
///
/// impl Policy for Sooner {
///     type Table = ();
///
///     // Called for each change of the set: of members, weights, capacities or health.
///     fn compile(&self, _view: &View<'_>, _previous: Option<&()>) {}
///
///     fn signals(&self) -> Option<Signals> {
///         Some(Signals::latency(Duration::from_secs(10)))
///     }
/// }
///
/// impl<Req: ?Sized> Pick<Req> for Sooner {
///     fn pick(&self, _table: &(), _request: &Req, turn: &Turn<'_>) -> Choice {
///         let place = turn.random_below(turn.eligible().len() as u64) as usize;
///         // Indexes are those of `View::members`; eligible are those that may be picked.
///         let pair = turn.eligible().iter().cycle().skip(place).take(2);
///         let cost = |&&index: &&u32| {
///             turn.latency(index as usize) * (turn.in_flight(index as usize) as u32 + 1)
///         };
///         pair.min_by_key(cost).map_or(Choice::Any, |&index| Choice::Member(index as usize))
///     }
/// }
/// ```
///
/// See `examples/custom_policy.rs` for one whose table matters. One that wraps another should forward
/// the provided methods too, here and of [`Pick`], or the inner one's costs, bounds and claims
/// are lost.
pub trait Policy: Send + Sync + 'static {
    /// What a pick reads. Immutable: one table belongs to one snapshot.
    type Table: Send + Sync + 'static;

    /// Compiles the table of the next snapshot.
    ///
    /// `previous` is the table of the snapshot before, so that work or state can be
    /// carried over. Called once for each change of the eligible endpoints or their
    /// weights, never per request. It runs under the lock that orders the changes: it must
    /// not call back into the balancer. If it panics, the panic is reported in the
    /// [statistics](crate::Stats), the former snapshot stays in use, and the next change
    /// compiles anew.
    fn compile(&self, view: &View<'_>, previous: Option<&Self::Table>) -> Self::Table;

    /// Returns whether a compile takes long, milliseconds say, after so many changes of
    /// endpoints whose weights sum to this.
    ///
    /// It is then made on a thread for blocking work, before the changes are applied, where
    /// a tokio runtime has one. The table must not depend on who is eligible, nor on
    /// capacities. Default: no.
    fn is_costly(&self, changes: usize, weight: u64) -> bool {
        let _ = (changes, weight);
        false
    }

    /// Returns what the policy wants to know of calls that have ended, for
    /// [`Turn::latency`]. Asked once. Default: nothing.
    fn signals(&self) -> Option<Signals> {
        None
    }

    /// Returns the factor by which the load of each endpoint is bounded; see
    /// [`Keyed::bounded`]. Default: none.
    fn bound(&self) -> Option<f64> {
        None
    }
}

/// Makes one choice for a request of type `Req`.
#[diagnostic::on_unimplemented(
    message = "the policy `{Self}` cannot pick for requests of type `{Req}`",
    note = "a key closure must take `&{Req}`; a policy of your own needs `impl Pick<{Req}>`"
)]
pub trait Pick<Req: ?Sized>: Policy {
    /// Chooses an endpoint for the request.
    ///
    /// May be called again for the same request when the chosen endpoint has just left
    /// rotation, is not ready, or was tried before. A panic reaches the caller.
    fn pick(&self, table: &Self::Table, request: &Req, turn: &Turn<'_>) -> Choice;

    /// Returns which ejected endpoint this request may try, when a trial is due.
    ///
    /// `open` tells which members have a weight. A policy that keeps requests with endpoints
    /// returns the one that would be chosen if all were healthy, so that a trial takes no
    /// request from another. Default: [`Claim::Any`].
    fn claim(&self, table: &Self::Table, request: &Req, open: &dyn Fn(usize) -> bool) -> Claim {
        let _ = (table, request, open);
        Claim::Any
    }
}

/// Which endpoints a request may try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Claim {
    /// Any: the request belongs to nobody.
    Any,
    /// Only the member at this index: the request belongs there.
    Only(usize),
    /// None: the policy will refuse the request.
    None,
}

/// What a pick chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Choice {
    /// The member at this index of the [`View`] from which the table was compiled.
    ///
    /// If it may not be picked now, the policy is asked again, and after a few times
    /// another member is taken. An index that is out of range is an error of the call.
    Member(usize),
    /// Any eligible member: the balancer rotates over them, whatever their weights.
    Any,
    /// None: the call fails, for this reason.
    Refuse(&'static str),
    /// The table is used up: the next one is compiled from it, and the policy is asked again.
    Renew,
}
