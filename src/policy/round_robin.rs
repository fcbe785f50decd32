//! Round robin: the eligible endpoints one after the other.

use super::{
    Members, Needs, PickContext, PickResult, Picker, Policy, smooth_weighted::SmoothPicker,
};

/// Round robin: picks the eligible endpoints one after the other, in the order in which they joined.
///
/// Between two changes of the set the numbers of picks differ by at most one. The position is the
/// ticket, which no change resets, modulo the number of eligible endpoints: so the share of an
/// ejected endpoint goes to all others evenly. At a power of two a mask replaces the division;
/// at other numbers the order has one irregularity in 2^64 picks, where the ticket wraps.
///
/// Weights are ignored, except zero. While the capacities of the eligible endpoints differ, in a ramp,
/// say, the rotation is that of [`SmoothWeighted`](crate::policy::SmoothWeighted) with the capacities
/// as weights, at its costs. Cost per pick: one `fetch_add`, and none with a single endpoint. Cost per
/// build: O(n), to compare the capacities.
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

/// Round robin by the remainder of the ticket, without a mask.
///
/// Picks the same endpoints as [`RoundRobin`], at the same costs and, where the number of endpoints is
/// a power of two, a few nanoseconds more for the division.
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

/// Picks the eligible members one after the other, with a mask or without.
#[derive(Debug)]
#[allow(
    unnameable_types,
    reason = "users name it as `<RoundRobin as Policy>::Picker`"
)]
pub struct RotationPicker<const MASK: bool> {
    /// Whether capacities differ.
    uneven: bool,
    /// The rotation while they differ. It is kept afterwards, so that the next such rotation continues
    /// its credits.
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
        if MASK && n.is_power_of_two() {
            ticket & (n - 1)
        } else {
            ticket % n
        }
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

/// Picks the eligible member at the position that `position` returns for ticket and number.
#[inline]
pub(crate) fn rotate(cx: &PickContext<'_>, position: impl Fn(u64, u64) -> u64) -> PickResult {
    match cx.eligible().len() {
        0 | 1 => cx.eligible_at(0),
        n => cx.eligible_at(position(cx.ticket(), n as u64) as usize),
    }
}
