//! The results of active checks.

use tokio::time::Instant;

use super::{Change, Core};
use crate::{
    event::Cause,
    health::evidence::{State, Verdict},
};

impl Core {
    /// Takes an endpoint out of service or back in, by the result of active checks.
    pub(super) fn checked(&mut self, id: u64, passes: bool, now: Instant) {
        let Some(i) = self.find(id) else { return };
        let is_out = self.records[i].checked_out;
        if passes && is_out {
            self.check_in(i, now);
        } else if !passes && !is_out {
            self.check_out(i, now);
        }
    }

    fn check_out(&mut self, i: usize, now: Instant) {
        let serves = self.members[i].has_weight() && self.members[i].healthy;
        if serves && !self.may_eject() {
            return;
        }
        self.dequeue(i);
        // Ends a trial that still runs.
        self.records[i]
            .ejections
            .end_trial(Verdict::Unsent, now, &self.health);
        self.records[i].checked_out = true;
        self.enter(i, State::CheckedOut);
        self.members[i].healthy = false;
        self.weighted.ejected += usize::from(serves);
        self.add_ejected(i, None, Cause::Checks);
        self.publish(Change::Health);
    }

    fn check_in(&mut self, i: usize, now: Instant) {
        self.records[i].checked_out = false;
        if let Some(until) = self.records[i].trial_due() {
            // The endpoint was also ejected by its calls: a trial decides.
            self.enter(i, State::Ejected);
            self.enqueue(i, until);
            return;
        }
        self.recover(i, now);
        self.publish(Change::Health);
    }
}
