//! Round robin: each eligible endpoint in turn.

use crate::policy::{Choice, Pick, Policy, Turn, View, smooth_weighted::SmoothTable};

/// Round robin that masks the ticket where the number of endpoints is a power of two, and
/// takes the unsigned remainder elsewhere.
///
/// Visits the eligible endpoints in the order in which they joined. Exactly fair at every
/// number of endpoints and in every window between two changes of the set: the position
/// is a ticket that no change resets, and it indexes the eligible endpoints alone, so that
/// nobody inherits the share of a dead neighbour. Where the number of endpoints is no
/// power of two, there is one seam in 2^64 picks.
///
/// Weights are ignored, but for zero. Capacities are not: while those of the eligible
/// endpoints differ, because one starts slowly, say, the rotation is that of
/// [`SmoothWeighted`](crate::policy::SmoothWeighted) with the capacities for weights, at its costs.
/// Cost per pick: one `fetch_add`, and none with a single endpoint. Cost per rebuild: O(n)
/// to see that all capacities are alike.
///
/// ```
/// use counterpoise::{discover, policy::RoundRobin, Balance, Direct, Endpoint};
///
/// let endpoints = discover::list([("a", Endpoint::new(Direct("a service")))]);
/// let balance = Balance::new(endpoints, RoundRobin::new());
/// ```
#[doc(alias = "mask")]
#[doc(alias = "MaskRoundRobin")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RoundRobin;

/// Round robin that always takes the unsigned remainder of the ticket.
///
/// Picks what [`RoundRobin`] picks, a few nanoseconds later where the number of
/// endpoints is a power of two.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModuloRoundRobin;

impl RoundRobin {
    /// Creates the policy.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

impl ModuloRoundRobin {
    /// Creates the policy.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

/// The table of a round robin.
#[derive(Debug)]
pub struct RotationTable {
    /// Whether capacities differ.
    uneven: bool,
    /// The rotation while they do. Kept when they no longer do, or the next one would begin
    /// at the same endpoints again.
    smooth: Option<SmoothTable>,
}

impl RotationTable {
    fn new(view: &View<'_>, previous: Option<&Self>) -> Self {
        let former = previous.and_then(|table| table.smooth.as_ref());
        let uneven = view.is_uneven();
        let smooth = match uneven {
            true => Some(SmoothTable::new(view, view.capacities(), former)),
            false => former.map(SmoothTable::share),
        };
        Self { uneven, smooth }
    }

    #[inline]
    fn pick(&self, turn: &Turn<'_>, place: impl Fn(u64, u64) -> u64) -> Choice {
        match &self.smooth {
            Some(smooth) if self.uneven => smooth.pick(turn),
            _ => rotate(turn, place),
        }
    }
}

impl Policy for RoundRobin {
    type Table = RotationTable;

    fn compile(&self, view: &View<'_>, previous: Option<&RotationTable>) -> RotationTable {
        RotationTable::new(view, previous)
    }
}

impl Policy for ModuloRoundRobin {
    type Table = RotationTable;

    fn compile(&self, view: &View<'_>, previous: Option<&RotationTable>) -> RotationTable {
        RotationTable::new(view, previous)
    }
}

impl<Req: ?Sized> Pick<Req> for RoundRobin {
    fn pick(&self, table: &RotationTable, _request: &Req, turn: &Turn<'_>) -> Choice {
        let place =
            |ticket, n: u64| if n.is_power_of_two() { ticket & (n - 1) } else { ticket % n };
        table.pick(turn, place)
    }
}

impl<Req: ?Sized> Pick<Req> for ModuloRoundRobin {
    fn pick(&self, table: &RotationTable, _request: &Req, turn: &Turn<'_>) -> Choice {
        table.pick(turn, |ticket, n| ticket % n)
    }
}

/// Picks the eligible member at the position that `place` finds for the ticket.
#[inline]
pub(crate) fn rotate(turn: &Turn<'_>, place: impl Fn(u64, u64) -> u64) -> Choice {
    let eligible = turn.eligible();
    let position = match eligible.len() {
        0 | 1 => 0,
        n => place(turn.ticket(), n as u64) as usize,
    };
    eligible.get(position).map_or(Choice::Any, |&index| Choice::Member(index as usize))
}
