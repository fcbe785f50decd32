//! The context of one pick: the members as they are now, and a ticket.

use std::{cell::Cell, fmt, time::Duration};

use super::{Candidates, PickResult, members::covers, shuffle::Shuffle, ticket::Tickets};
use crate::util::{fraction::FULL, random::scramble};

/// The present state of the members. An index out of range is a member that is closed and holds no
/// calls.
pub(crate) trait Observed {
    /// Returns whether the request can go to a member: it is open and below its bound, and the
    /// request has not tried it.
    fn accepts(&self, index: usize) -> bool;

    /// Returns the calls that a member holds: running, or waiting for it to become ready.
    fn in_flight(&self, index: usize) -> u64;

    /// Returns the failed calls of a member that still count as load.
    fn failures(&self, index: usize) -> u64;

    /// Returns the moving latency of a member, in nanoseconds.
    fn latency(&self, index: usize) -> f64;

    /// Returns the capacity of a member over the greatest of all, in units of 1/[`FULL`].
    fn capacity(&self, index: usize) -> u32;

    /// Returns the name of a member.
    fn name(&self, index: usize) -> &str;
}

/// The context of one pick: the members as they are now, and a ticket.
///
/// An index that is out of range is a member that accepts no request.
///
/// ```
/// use counterpoise::policy::{PickContext, PickResult};
///
/// /// Takes the preferred member, unless it is closed or holds many calls.
/// fn prefer(index: usize, cx: &PickContext<'_>) -> PickResult {
///     if cx.accepts(index) && cx.in_flight(index) < 100 {
///         PickResult::Member(index)
///     } else {
///         PickResult::Any
///     }
/// }
/// ```
pub struct PickContext<'a> {
    eligible: &'a [u32],
    observed: &'a dyn Observed,
    tickets: &'a Tickets,
    ticket: Cell<Option<u64>>,
    shuffle: u64,
}

impl<'a> PickContext<'a> {
    /// Creates the context; `shuffle` and the balancer's seed seed the order of [`shuffle`](Self::shuffle).
    #[inline]
    pub(crate) const fn new(
        eligible: &'a [u32],
        observed: &'a dyn Observed,
        tickets: &'a Tickets,
        shuffle: u64,
    ) -> Self {
        Self {
            eligible,
            observed,
            tickets,
            ticket: Cell::new(None),
            shuffle,
        }
    }

    /// Returns this pick's ticket: its number from the balancer's counter.
    ///
    /// Consecutive picks have consecutive tickets, wrapping at 2^64, on all threads and through all
    /// changes of the set. The first call draws it, so a pick without a choice uses none up. Cost:
    /// one `fetch_add`, once.
    #[must_use]
    #[inline]
    pub fn ticket(&self) -> u64 {
        if let Some(ticket) = self.ticket.get() {
            return ticket;
        }
        let ticket = self.tickets.draw();
        self.ticket.set(Some(ticket));
        ticket
    }

    /// Returns a random number in `0..bound`, without measurable bias; 0 if `bound` is 0.
    ///
    /// It follows from the ticket and the balancer's seed, and is the same at every call within one
    /// pick. Made by widening multiplication (Lemire, "Fast random integer
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
    /// Not empty in a pick: with no eligible member the balancer does not call the picker.
    #[must_use]
    #[inline]
    pub const fn eligible(&self) -> &'a [u32] {
        self.eligible
    }

    /// Returns the eligible member at a place as a pick.
    #[inline]
    pub(crate) fn eligible_at(&self, place: usize) -> PickResult {
        let index = self.eligible.get(place);
        index.map_or(PickResult::Any, |&index| PickResult::Member(index as usize))
    }

    /// Returns whether the member at this index may be picked. Cost: O(log n).
    #[must_use]
    pub fn is_eligible(&self, index: usize) -> bool {
        u32::try_from(index).is_ok_and(|index| self.eligible.binary_search(&index).is_ok())
    }

    /// Returns whether the member at this index can take this request.
    ///
    /// It can if it is in service now, below its bound if there is one, and if the request has not
    /// tried it. For policies that choose the first such member of an order, as affinity does. Others
    /// need no check: the balancer replaces a member that cannot take the call. Cost: O(1).
    #[must_use]
    pub fn accepts(&self, index: usize) -> bool {
        self.observed.accepts(index)
    }

    /// Returns how many calls the member at this index holds now.
    ///
    /// Those are the calls that run there and those that wait for it to become ready; 0 if there is
    /// no such member. Cost: O(1).
    #[must_use]
    #[inline]
    pub fn in_flight(&self, index: usize) -> u64 {
        self.observed.in_flight(index)
    }

    /// Returns the moving latency of the member at this index, as
    /// [`PeakEwma`](crate::policy::PeakEwma) uses it.
    ///
    /// Zero unless the policy [needs](crate::policy::Needs::latency) it. Without calls it begins at the
    /// usual latency of the set's successful calls (before the first of those, at 1 ms) and decays to
    /// half of that. Cost: O(1).
    #[must_use]
    pub fn latency(&self, index: usize) -> Duration {
        Duration::from_nanos(self.latency_nanos(index) as u64)
    }

    /// Returns the capacity of the member at this index over the greatest capacity of all, from 0
    /// to 1.
    ///
    /// If all capacities are reduced alike, all are 1. The capacity itself is
    /// [`Member::capacity`](crate::policy::Member::capacity). Cost: O(1).
    #[must_use]
    pub fn capacity(&self, index: usize) -> f64 {
        f64::from(self.observed.capacity(index)) / f64::from(FULL)
    }

    /// Returns whether the capacity of a member covers 16 random bits.
    #[inline]
    pub(crate) fn covers(&self, index: usize, random: impl FnOnce() -> u16) -> bool {
        covers(self.observed.capacity(index), random)
    }

    #[inline]
    pub(crate) fn latency_nanos(&self, index: usize) -> f64 {
        self.observed.latency(index)
    }

    #[inline]
    pub(crate) fn failures(&self, index: usize) -> u64 {
        self.observed.failures(index)
    }

    pub(crate) fn name(&self, index: usize) -> &'a str {
        self.observed.name(index)
    }

    /// Pushes the eligible members in pseudo-random order, from the `skip`-th on, until `out` is
    /// full.
    ///
    /// Each member has one position, and every order is about as likely as any other. The order
    /// follows from the balancer's [`seed`](crate::Builder::seed) and a number of the call; it draws
    /// no ticket. Cost: O(1) for each member that is pushed, whatever `skip` is.
    pub fn shuffle(&self, skip: usize, out: &mut Candidates) {
        let mut members = self.shuffled(skip);
        while !out.is_full()
            && let Some(index) = members.next()
        {
            out.push(index);
        }
    }

    /// Returns the eligible members in the order of [`shuffle`](Self::shuffle), from a position
    /// on.
    pub(crate) fn shuffled(&self, from: usize) -> impl Iterator<Item = usize> + use<'a> {
        let eligible = self.eligible;
        let order = Shuffle::new(self.tickets.random(self.shuffle), eligible.len());
        (from..eligible.len()).map(move |position| eligible[order.at(position)] as usize)
    }
}

impl fmt::Debug for PickContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PickContext")
            .field("eligible", &self.eligible)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Members that are open and hold no calls. The first ones have these capacities, the others the
    /// full capacity.
    pub(crate) struct Idle<'a>(pub(crate) &'a [u32]);

    /// Their names.
    pub(crate) const NAMES: &str = "abcdefghijklmnopqrstuvwxyz";

    impl Observed for Idle<'_> {
        fn accepts(&self, _index: usize) -> bool {
            true
        }

        fn in_flight(&self, _index: usize) -> u64 {
            0
        }

        fn failures(&self, _index: usize) -> u64 {
            0
        }

        fn latency(&self, _index: usize) -> f64 {
            0.0
        }

        fn capacity(&self, index: usize) -> u32 {
            self.0.get(index).copied().unwrap_or(FULL)
        }

        fn name(&self, index: usize) -> &str {
            NAMES.get(index..=index).unwrap_or_default()
        }
    }

    #[test]
    fn a_shuffle_goes_on_where_a_part_ended_and_draws_no_ticket() {
        let (tickets, eligible) = (Tickets::new(0, 7), [1, 4, 5, 8, 9]);
        for most in 1..=6 {
            let cx = PickContext::new(&eligible, &Idle(&[]), &tickets, 3);
            let (mut part, mut all) = (Candidates::of(most), Vec::new());
            cx.shuffle(0, &mut part);
            while part.iter().next().is_some() {
                all.extend(part.iter());
                part = Candidates::of(most);
                cx.shuffle(all.len(), &mut part);
            }
            assert!(
                cx.shuffled(0).eq(all.iter().copied()),
                "in parts of {most}: {all:?}"
            );
            all.sort_unstable();
            assert_eq!(all, [1, 4, 5, 8, 9]);
        }
        assert_eq!(tickets.draw(), 0);
    }

    #[test]
    fn calls_have_orders_of_their_own() {
        let (tickets, eligible) = (Tickets::new(0, 7), [0, 1, 2, 3, 4, 5, 6, 7]);
        let order = |call| {
            let cx = PickContext::new(&eligible, &Idle(&[]), &tickets, call);
            cx.shuffled(0).collect::<Vec<_>>()
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }
}
