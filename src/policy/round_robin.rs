//! Round robin: each eligible endpoint in turn.

use super::{
    Members, Needs, PickContext, PickResult, Picker, Policy, smooth_weighted::SmoothPicker,
};

/// Round robin that masks the ticket where the number of endpoints is a power of two, and
/// takes the unsigned remainder elsewhere.
///
/// Visits the eligible endpoints in the order in which they joined. Exactly fair at every
/// number of endpoints and in every window between two changes of the set: the position
/// is a ticket that no change resets, and it indexes the eligible endpoints alone, so that
/// no endpoint inherits the share of a dead neighbour. Where the number of endpoints is no
/// power of two, there is one seam in 2^64 picks.
///
/// Weights are ignored, but for zero. Capacities are not: while those of the eligible
/// endpoints differ, because one starts slowly, say, the rotation is that of
/// [`SmoothWeighted`](crate::policy::SmoothWeighted) with the capacities for weights, at its costs.
/// Cost per pick: one `fetch_add`, and none with a single endpoint. Cost per build: O(n), to
/// see that all capacities are alike.
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
/// Picks what [`RoundRobin`] picks, at the same costs but for a division, a few nanoseconds, where
/// the number of endpoints is a power of two.
///
/// ```
/// use counterpoise::{discover, policy::ModuloRoundRobin, Balance, Direct, Endpoint};
///
/// let endpoints = discover::list([("a", Endpoint::new(Direct("a service")))]);
/// let balance = Balance::new(endpoints, ModuloRoundRobin::new());
/// ```
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

/// Picks the eligible members in turn; with a mask, or without.
#[derive(Debug)]
#[allow(unnameable_types, reason = "users name it as `<RoundRobin as Policy>::Picker`")]
pub struct RotationPicker<const MASK: bool> {
    /// Whether capacities differ.
    uneven: bool,
    /// The rotation while they do. Kept when they no longer do, or the next one would begin
    /// at the same endpoints again.
    smooth: Option<SmoothPicker>,
}

impl<const MASK: bool> RotationPicker<MASK> {
    fn new(members: &Members<'_>, previous: Option<&Self>) -> Self {
        let former = previous.and_then(|picker| picker.smooth.as_ref());
        let uneven = members.is_uneven();
        let smooth = if uneven {
            Some(SmoothPicker::new(members, members.capacities(), former))
        } else {
            former.map(SmoothPicker::share)
        };
        Self { uneven, smooth }
    }

    /// Returns the position of a ticket among n eligible members.
    #[inline]
    const fn position(ticket: u64, n: u64) -> u64 {
        if MASK && n.is_power_of_two() { ticket & (n - 1) } else { ticket % n }
    }
}

impl<Req: ?Sized, const MASK: bool> Picker<Req> for RotationPicker<MASK> {
    fn pick(&self, _request: &Req, cx: &PickContext<'_>) -> PickResult {
        match &self.smooth {
            Some(smooth) if self.uneven => smooth.next(cx),
            _ => rotate(cx, Self::position),
        }
    }
}

impl Policy for RoundRobin {
    type Picker = RotationPicker<true>;

    fn build(&self, members: &Members<'_>, previous: Option<&Self::Picker>) -> Self::Picker {
        RotationPicker::new(members, previous)
    }

    fn needs(&self) -> Needs {
        Needs::none().quick_build()
    }
}

impl Policy for ModuloRoundRobin {
    type Picker = RotationPicker<false>;

    fn build(&self, members: &Members<'_>, previous: Option<&Self::Picker>) -> Self::Picker {
        RotationPicker::new(members, previous)
    }

    fn needs(&self) -> Needs {
        Needs::none().quick_build()
    }
}

/// Picks the eligible member at the position that is found for the ticket.
#[inline]
pub(crate) fn rotate(cx: &PickContext<'_>, position: impl Fn(u64, u64) -> u64) -> PickResult {
    match cx.eligible().len() {
        0 | 1 => cx.eligible_at(0),
        n => cx.eligible_at(position(cx.ticket(), n as u64) as usize),
    }
}
