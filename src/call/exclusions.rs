//! What one call has been through, and would rather not go through again.

use crate::call::attempts::Attempts;
use crate::{
    call::guard::{Guard, Occasion},
    cluster::node::NodeState,
    policy::Gate,
};

/// The endpoints that a call should not be sent to.
#[derive(Debug, Default)]
pub(crate) struct Exclusions {
    /// Those it waits for, and those that failed to become ready for it, on that
    /// occasion: after a return, another ejection or with another service they may be asked
    /// again. Sorted by
    /// id; mostly empty, and then it must cost nothing.
    excluded: Vec<(u64, Occasion)>,
    /// Those that earlier attempts were sent to: taken only if there is no other.
    attempts: Option<Attempts>,
    sweep: Sweep,
}

/// A search through the eligible endpoints of one generation, which goes on where it
/// stopped: however many are found unready, one after the other, each is looked at once for
/// each rank.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sweep {
    generation: u64,
    start: usize,
    rank: u8,
    offset: usize,
}

/// How often the policy is asked before an endpoint is searched for.
const DRAWS: usize = 3;

/// Not tried before ready: a retry had better wait than fail again.
const RANKS: u8 = 4;

/// From this rank on the request was there before.
const TRIED: u8 = 2;

impl Exclusions {
    #[inline]
    pub(crate) fn new(attempts: Option<Attempts>) -> Self {
        Self { attempts, ..Self::default() }
    }

    #[inline]
    pub(crate) const fn attempts(&self) -> Option<&Attempts> {
        self.attempts.as_ref()
    }

    /// Excludes an endpoint for its present epoch.
    pub(crate) fn exclude(&mut self, guard: &Guard) {
        let (id, occasion) = (guard.node().id, guard.occasion());
        match self.find(id) {
            Ok(i) => self.excluded[i].1 = occasion,
            Err(i) => self.excluded.insert(i, (id, occasion)),
        }
    }

    /// Takes an endpoint back into consideration.
    pub(crate) fn readmit(&mut self, node: &NodeState) {
        if let Ok(i) = self.find(node.id) {
            self.excluded.remove(i);
        }
        self.sweep = Sweep::default();
    }

    #[inline]
    pub(crate) fn excludes(&self, node: &NodeState) -> bool {
        !self.excluded.is_empty()
            && self
                .find(node.id)
                .is_ok_and(|i| self.excluded[i].1 == (node.standing.epoch(), node.version()))
    }

    fn find(&self, id: u64) -> Result<usize, usize> {
        self.excluded.binary_search_by_key(&id, |&(other, _)| other)
    }

    #[inline]
    pub(crate) fn was_tried(&self, node: &NodeState) -> bool {
        self.attempts.as_ref().is_some_and(|attempts| attempts.contains(node.id))
    }

    /// Returns how an endpoint stands to this call, if its gate is open.
    #[inline]
    pub(crate) fn gate(&self, node: &NodeState) -> Gate {
        match node {
            node if self.excludes(node) => Gate::Closed,
            node if self.was_tried(node) => Gate::Tried,
            // Having waited for a few, the call rather goes to one that was ready last time.
            node if self.excluded.len() >= DRAWS && node.is_unready() => Gate::Tried,
            _ => Gate::Open,
        }
    }

    /// Returns whether the call avoids nobody yet.
    #[inline]
    pub(crate) const fn is_fresh(&self) -> bool {
        self.excluded.is_empty() && self.attempts.is_none()
    }

    #[inline]
    pub(crate) fn is_retry(&self, balancer: usize) -> bool {
        self.attempts.as_ref().is_some_and(|attempts| attempts.has_been_at(balancer))
    }

    /// The longer the call has searched, the less it asks the policy.
    #[inline]
    pub(crate) fn draws(&self) -> usize {
        DRAWS.saturating_sub(self.excluded.len()).max(1)
    }

    /// Returns how reluctantly the call would be sent there.
    pub(crate) fn rank(&self, node: &NodeState) -> u8 {
        TRIED * u8::from(self.was_tried(node)) + u8::from(node.is_unready())
    }

    /// Returns the search through a generation, from where it stopped or a fresh start.
    pub(crate) fn sweep(&self, generation: u64, start: impl FnOnce() -> usize) -> Sweep {
        match self.sweep {
            sweep if sweep.generation == generation => sweep,
            _ => Sweep { generation, start: start(), rank: 0, offset: 0 },
        }
    }

    /// Forgets where a search stopped.
    pub(crate) fn search_anew(&mut self) {
        self.sweep = Sweep::default();
    }

    /// Remembers where a search stopped.
    pub(crate) fn stopped(&mut self, sweep: Sweep) {
        self.sweep = sweep;
    }
}

impl Sweep {
    /// Returns the next place to look at, of so many, and up to which rank to take it.
    pub(crate) fn next(&mut self, length: usize) -> Option<(usize, u8)> {
        if self.offset >= length {
            (self.rank, self.offset) = (self.rank + 1, 0);
        }
        if self.rank >= RANKS || length == 0 {
            // Keeps the state, so that asking again finds nothing again.
            (self.rank, self.offset) = (RANKS - 1, length);
            return None;
        }
        let place = (self.start + self.offset) % length;
        self.offset += 1;
        Some((place, self.rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_passes_everybody_once_for_each_rank() {
        let mut sweep = Sweep { start: 2, ..Sweep::default() };
        let places: Vec<_> = std::iter::from_fn(|| sweep.next(3)).collect();
        let round = |rank| [(2, rank), (0, rank), (1, rank)];
        assert_eq!(places, [round(0), round(1), round(2), round(3)].concat());
        assert_eq!(sweep.next(3), None);
        assert_eq!(Sweep::default().next(0), None);
    }
}
