//! What active checks have found.

use tokio::time::Instant;

use super::{Change, Core};
use crate::{
    event::Cause,
    health::evidence::{State, Verdict},
};

impl Core {
    /// Takes an endpoint out, or lets it back in, as active checks have found.
    pub(super) fn checked(&mut self, id: u64, passes: bool, now: Instant) {
        let Some(i) = self.find(id) else { return };
        let is_out = self.records[i].checked_out;
        match (passes, is_out) {
            (true, true) => self.check_in(i, now),
            (false, false) => self.check_out(i, now),
            _ => {}
        }
    }

    fn check_out(&mut self, i: usize, now: Instant) {
        let serves = self.members[i].is_open() && self.members[i].healthy;
        if serves && !self.may_eject() {
            return;
        }
        self.unqueue(i);
        // A trial that goes on has lost its place.
        self.records[i].ejections.end_trial(Verdict::Unsent, now, &self.health);
        self.records[i].checked_out = true;
        self.enter(i, State::CheckedOut);
        self.members[i].healthy = false;
        self.candidates.ejected += usize::from(serves);
        self.note_ejected(i, None, Cause::Checks);
        self.publish(Change::Health);
    }

    fn check_in(&mut self, i: usize, now: Instant) {
        self.records[i].checked_out = false;
        if let Some(until) = self.records[i].waits_until() {
            // Its own calls have failed, too: a trial decides.
            self.enter(i, State::Ejected);
            self.enqueue(i, until);
            return;
        }
        self.bring_back(i, now);
        self.publish(Change::Health);
    }
}
