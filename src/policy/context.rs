//! What one pick may know beside its table and its request.

use std::{cell::Cell, fmt, time::Duration};

use crate::policy::{members::covers, ticket::Tickets};
use crate::util::{fraction::FULL, random::scramble};

/// How a member stands to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Out of service, or unable to take this very request.
    Closed,
    /// At its bound, and the request was there before.
    FullTried,
    /// At its bound.
    Full,
    /// The request was there before, or has better chances elsewhere.
    Tried,
    Welcome,
}

/// What a pick can see of the members at its very moment. Indexes out of range are nobody.
pub(crate) trait Sight {
    /// How a member stands to the request.
    fn gate(&self, index: usize) -> Gate;

    /// Calls that a member holds: running, or waiting for it to become ready.
    fn load(&self, index: usize) -> u64;

    /// Failed calls of a member that still count as load.
    fn failures(&self, index: usize) -> u64;

    /// What a call there costs, in nanoseconds.
    fn cost(&self, index: usize) -> f64;

    /// The part of its weight that counts, beside the greatest part of anybody, in units of
    /// 1/[`FULL`].
    fn capacity(&self, index: usize) -> u32;

    fn name(&self, index: usize) -> &str;
}

/// One pick's view of its snapshot, and its ticket.
pub struct Turn<'a> {
    eligible: &'a [u32],
    sight: &'a dyn Sight,
    tickets: &'a Tickets,
    ticket: Cell<Option<u64>>,
}

impl<'a> Turn<'a> {
    #[inline]
    pub(crate) const fn new(
        eligible: &'a [u32],
        sight: &'a dyn Sight,
        tickets: &'a Tickets,
    ) -> Self {
        Self { eligible, sight, tickets, ticket: Cell::new(None) }
    }

    /// Returns the number that this pick drew from the balancer's counter.
    ///
    /// Consecutive picks draw consecutive numbers, wrapping at 2^64, whatever threads they
    /// run on and however the set changes. Drawn when first asked for, so that a pick
    /// without a choice uses none up. Cost: one `fetch_add`, once.
    #[must_use]
    #[inline]
    pub fn ticket(&self) -> u64 {
        self.ticket.get().unwrap_or_else(|| {
            let ticket = self.tickets.draw();
            self.ticket.set(Some(ticket));
            ticket
        })
    }

    /// Draws a random number in `0..bound`, without bias that could be measured; 0 if
    /// `bound` is 0.
    ///
    /// It is made from the ticket and the balancer's seed, and is the same however often
    /// one pick asks. Half-open, by widening multiplication (Lemire, "Fast random integer
    /// generation in an interval", 2019).
    #[must_use]
    #[inline]
    pub fn random_below(&self, bound: u64) -> u64 {
        self.draw(0, bound)
    }

    /// Draws the n-th random number of this pick, in `0..bound`; they are independent.
    #[inline]
    pub(crate) fn draw(&self, nth: u64, bound: u64) -> u64 {
        let random = scramble(self.tickets.random(self.ticket()), nth);
        ((u128::from(random) * u128::from(bound)) >> 64) as u64
    }

    /// Returns the indexes of the members that may be picked, in rising order.
    ///
    /// Not empty: with nothing eligible no pick is made.
    #[must_use]
    #[inline]
    pub const fn eligible(&self) -> &'a [u32] {
        self.eligible
    }

    /// Returns whether the member at this index may be picked. Cost: O(log n).
    #[must_use]
    pub fn is_eligible(&self, index: usize) -> bool {
        u32::try_from(index).is_ok_and(|index| self.eligible.binary_search(&index).is_ok())
    }

    /// Returns whether this request should go to the member at this index: it may be picked
    /// at this very moment, and the request was not there before.
    ///
    /// For policies that have an order of their own, such as a key's: the first that is
    /// welcome. Others need not ask: they are asked again. Cost: O(1).
    #[must_use]
    pub fn welcomes(&self, index: usize) -> bool {
        self.sight.gate(index) == Gate::Welcome
    }

    /// Returns whether the member at this index may be picked at this very moment, within its
    /// bound if there is one, also if the request was there before. Cost: O(1).
    #[must_use]
    pub fn admits(&self, index: usize) -> bool {
        matches!(self.sight.gate(index), Gate::Tried | Gate::Welcome)
    }

    /// Returns how many calls the member at this index holds at this very moment: those that
    /// run there, and those that wait for it to become ready; 0 if there is no such member.
    /// Cost: O(1).
    #[must_use]
    #[inline]
    pub fn in_flight(&self, index: usize) -> u64 {
        self.sight.load(index)
    }

    /// Returns the moving latency of the member at this index, as [`PeakEwma`](crate::policy::PeakEwma)
    /// sees it; zero unless the policy asks for it by [`Policy::signals`](crate::policy::Policy::signals).
    /// Without evidence it begins at the usual latency of the set's calls that succeeded (before the
    /// first of those, a millisecond), and fades to half of that. Cost: O(1).
    #[must_use]
    pub fn latency(&self, index: usize) -> Duration {
        Duration::from_nanos(self.cost(index) as u64)
    }

    /// Returns what part of its weight the member at this index may use now, beside the others:
    /// 1 for those that may use most, so that nothing changes when all may use less. The part
    /// itself is [`Member::capacity`](crate::policy::Member::capacity). Cost: O(1).
    #[must_use]
    pub fn capacity(&self, index: usize) -> f64 {
        f64::from(self.sight.capacity(index)) / f64::from(FULL)
    }

    /// Returns whether the capacity of a member covers a number of 16 random bits.
    #[inline]
    pub(crate) fn covers(&self, index: usize, random: impl FnOnce() -> u16) -> bool {
        covers(self.sight.capacity(index), random)
    }

    #[inline]
    pub(crate) fn cost(&self, index: usize) -> f64 {
        self.sight.cost(index)
    }

    #[inline]
    pub(crate) fn failures(&self, index: usize) -> u64 {
        self.sight.failures(index)
    }

    pub(crate) fn name(&self, index: usize) -> &'a str {
        self.sight.name(index)
    }

    /// Returns whether only its bound keeps this request from the member.
    pub(crate) fn is_merely_full(&self, index: usize) -> bool {
        self.sight.gate(index) == Gate::Full
    }
}

impl fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("eligible", &self.eligible).finish_non_exhaustive()
    }
}
