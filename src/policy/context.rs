//! What one pick may use beside its picker and its request.

use std::{cell::Cell, fmt, time::Duration};

use super::{Candidates, PickResult, members::covers, shuffle::Shuffle, ticket::Tickets};
use crate::util::{fraction::FULL, random::scramble};

/// What a pick sees of the members at its very moment. An index out of range is a member that
/// is closed and holds nothing.
pub(crate) trait Observed {
    /// Whether the request can go to a member: that is open, has room under its bound, and was
    /// not tried by the request before.
    fn accepts(&self, index: usize) -> bool;

    /// Calls that a member holds: running, or waiting for it to become ready.
    fn in_flight(&self, index: usize) -> u64;

    /// Failed calls of a member that still count as load.
    fn failures(&self, index: usize) -> u64;

    /// The moving latency of a member, in nanoseconds.
    fn latency(&self, index: usize) -> f64;

    /// The part of its weight that counts, beside the greatest part of all, in units of
    /// 1/[`FULL`].
    fn capacity(&self, index: usize) -> u32;

    fn name(&self, index: usize) -> &str;
}

/// What one pick may use beside its picker and its request: the members as they are now, and a
/// ticket. An index that is out of range is a member that accepts nothing.
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
    /// `shuffle` seeds this call's order of candidates, together with the balancer's seed.
    #[inline]
    pub(crate) const fn new(
        eligible: &'a [u32],
        observed: &'a dyn Observed,
        tickets: &'a Tickets,
        shuffle: u64,
    ) -> Self {
        Self { eligible, observed, tickets, ticket: Cell::new(None), shuffle }
    }

    /// Returns the number that this pick drew from the balancer's counter.
    ///
    /// Consecutive picks draw consecutive numbers, wrapping at 2^64, whatever threads they
    /// run on and however the set changes. Drawn when it is first used, so that a pick
    /// with nothing to choose from uses none up. Cost: one `fetch_add`, once.
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
    /// It is made from the ticket and the balancer's seed, and is the same at every call
    /// within one pick. Half-open, by widening multiplication (Lemire, "Fast random integer
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
    /// Not empty in a pick: with nothing eligible none is made.
    #[must_use]
    #[inline]
    pub const fn eligible(&self) -> &'a [u32] {
        self.eligible
    }

    /// Picks the eligible member at a place.
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

    /// Returns whether this request should go to the member at this index: its gate is open at
    /// this very moment, it is within its bound if there is one, and the request did not try it
    /// before.
    ///
    /// For policies that have an order of their own, such as a key's: the first that accepts.
    /// Others need not check: what does not accept is replaced. Cost: O(1).
    #[must_use]
    pub fn accepts(&self, index: usize) -> bool {
        self.observed.accepts(index)
    }

    /// Returns how many calls the member at this index holds at this very moment: those that
    /// run there, and those that wait for it to become ready; 0 if there is no such member.
    /// Cost: O(1).
    #[must_use]
    #[inline]
    pub fn in_flight(&self, index: usize) -> u64 {
        self.observed.in_flight(index)
    }

    /// Returns the moving latency of the member at this index, as [`PeakEwma`](crate::policy::PeakEwma)
    /// sees it; zero unless the policy [needs](crate::policy::Needs::latency) it.
    /// Without evidence it begins at the usual latency of the set's calls that succeeded (before the
    /// first of those, a millisecond), and fades to half of that. Cost: O(1).
    #[must_use]
    pub fn latency(&self, index: usize) -> Duration {
        Duration::from_nanos(self.latency_nanos(index) as u64)
    }

    /// Returns what part of its weight the member at this index may use now, beside the others:
    /// 1 for those that may use most, so that nothing changes when all may use less. The part
    /// itself is [`Member::capacity`](crate::policy::Member::capacity). Cost: O(1).
    #[must_use]
    pub fn capacity(&self, index: usize) -> f64 {
        f64::from(self.observed.capacity(index)) / f64::from(FULL)
    }

    /// Returns whether the capacity of a member covers a number of 16 random bits.
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
    /// A permutation: each member has one position. It follows from the balancer's
    /// [`seed`](crate::Builder::seed) and a number of the call, draws no ticket, and every order
    /// is about as likely as any other. Cost: O(1) for each member that is pushed, whatever the
    /// position; no allocation.
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
        f.debug_struct("PickContext").field("eligible", &self.eligible).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Members that are open and hold nothing, of these capacities; of all others the capacity is
    /// whole.
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
            assert!(cx.shuffled(0).eq(all.iter().copied()), "in parts of {most}: {all:?}");
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
