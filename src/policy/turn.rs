//! What one pick may know beside its table and its request.

use std::{cell::Cell, fmt};

use super::ticket::Tickets;

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

/// One pick's view of its snapshot, and its ticket.
pub struct Turn<'a> {
    eligible: &'a [u32],
    gate: &'a dyn Fn(usize) -> Gate,
    tickets: &'a Tickets,
    ticket: Cell<Option<u64>>,
}

impl<'a> Turn<'a> {
    #[inline]
    pub(crate) const fn new(
        eligible: &'a [u32],
        gate: &'a dyn Fn(usize) -> Gate,
        tickets: &'a Tickets,
    ) -> Self {
        Self { eligible, gate, tickets, ticket: Cell::new(None) }
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
        let random = self.tickets.random(self.ticket());
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
        (self.gate)(index) == Gate::Welcome
    }

    /// Returns whether the member at this index may be picked at this very moment, within its
    /// bound if there is one, also if the request was there before. Cost: O(1).
    #[must_use]
    pub fn admits(&self, index: usize) -> bool {
        matches!((self.gate)(index), Gate::Tried | Gate::Welcome)
    }

    /// Returns whether only its bound keeps this request from the member.
    pub(crate) fn is_merely_full(&self, index: usize) -> bool {
        (self.gate)(index) == Gate::Full
    }
}

impl fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("eligible", &self.eligible).finish_non_exhaustive()
    }
}
