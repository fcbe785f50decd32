//! What active checks have found.

use tokio::time::Instant;

use crate::cluster::core::Core;
use crate::{cluster::node::Verdict, event::Cause, health::standing::State};

impl<T> Core<T> {
    /// Takes an endpoint out, or lets it back in, as active checks have found. Returns whether
    /// that changed anything.
    pub(crate) fn check(&mut self, id: u64, passes: bool, now: Instant) -> bool {
        match self.find(id) {
            Some(i) if passes => self.check_in(i, now),
            Some(i) => self.check_out(i, now),
            None => false,
        }
    }

    fn check_out(&mut self, i: usize, now: Instant) -> bool {
        let (open, healthy) = (self.members[i].is_open(), self.members[i].healthy);
        let full = self.tally.ejected >= self.health.ejection_limit(self.tally.candidates);
        if self.records[i].checked_out || (open && healthy && full) {
            return false;
        }
        self.unqueue(i);
        // A trial that is going on has lost its place.
        self.records[i].record.end_trial(Verdict::Unsent, now, &self.health);
        self.records[i].checked_out = true;
        self.nodes[i].state.standing.enter(State::CheckedOut);
        self.members[i].healthy = false;
        self.tally.ejected += usize::from(open && healthy);
        self.note_ejected(i, None, Cause::Checks);
        true
    }

    fn check_in(&mut self, i: usize, now: Instant) -> bool {
        if !self.records[i].checked_out {
            return false;
        }
        self.records[i].checked_out = false;
        if let Some(until) = self.records[i].waits_until() {
            // Its own calls have failed, too: they decide.
            self.nodes[i].state.standing.enter(State::Ejected);
            if self.members[i].is_open() {
                self.queue.insert((until, self.members[i].id));
            }
            return false;
        }
        self.bring_back(i, now);
        true
    }
}
