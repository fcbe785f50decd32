//! Ejections, trials and recoveries.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Change, Core};
use crate::{
    event::{Cause, Event},
    health::{
        ejection::Stage,
        evidence::{Epoch, State, Verdict},
    },
};

impl Core {
    /// Ejects an endpoint that has failed often enough, if the limit allows it.
    pub(super) fn failed(&mut self, id: u64, epoch: Epoch, failures: u32, now: Instant) {
        let Some(i) = self.find_in(id, epoch) else {
            return;
        };
        let is_serving = self.records[i].ejections.stage() == Stage::Serving;
        if self.records[i].checked_out || !is_serving || failures < self.health.threshold() {
            return;
        }
        if self.members[i].has_weight() && !self.may_eject() {
            return;
        }
        self.eject(i, Cause::ConsecutiveFailures, now);
        self.publish(Change::Health);
    }

    /// Returns whether the limit allows one more ejection.
    pub(super) fn may_eject(&self) -> bool {
        self.weighted.ejected < self.health.ejection_limit(self.weighted.all)
    }

    /// Ejects a member.
    pub(super) fn eject(&mut self, i: usize, cause: Cause, now: Instant) {
        self.enter(i, State::Ejected);
        if std::mem::replace(&mut self.members[i].healthy, false) {
            self.weighted.ejected += usize::from(self.members[i].has_weight());
        }
        let until = self.records[i]
            .ejections
            .eject(now, &self.health, &mut self.random);
        if !self.records[i].checked_out {
            self.enqueue(i, until);
        }
        self.add_ejected(i, Some(until - now), cause);
    }

    pub(super) fn add_ejected(&mut self, i: usize, returns_in: Option<Duration>, cause: Cause) {
        let endpoint = Arc::clone(&self.members[i].name);
        self.add_event(|| Event::Ejected {
            endpoint,
            returns_in,
            cause,
        });
    }

    /// Adds a member to the queue of trials, unless it is drained.
    pub(super) fn enqueue(&mut self, i: usize, until: Instant) {
        if self.members[i].has_weight() {
            self.queue.insert((until, self.members[i].id));
        }
    }

    pub(super) fn dequeue(&mut self, i: usize) {
        if let Some(until) = self.records[i].ejections.due() {
            self.queue.remove(&(until, self.members[i].id));
        }
    }

    /// Recovers an ejected endpoint that has succeeded.
    pub(super) fn recovered(&mut self, id: u64, epoch: Epoch, now: Instant) {
        if let Some(i) = self.find_in(id, epoch)
            && !self.members[i].healthy
        {
            self.recover(i, now);
            self.publish(Change::Health);
        }
    }

    pub(super) fn recover(&mut self, i: usize, now: Instant) {
        self.dequeue(i);
        self.enter(i, State::Serving);
        self.members[i].healthy = true;
        self.records[i].checked_out = false;
        self.records[i].ejections.recover(now);
        self.weighted.ejected -= usize::from(self.members[i].has_weight());
        let endpoint = Arc::clone(&self.members[i].name);
        self.add_event(|| Event::Recovered { endpoint });
        self.start_ramp(i, now);
    }

    /// Starts the trial of an endpoint, if it is due.
    pub(super) fn start_trial(&mut self, id: u64, now: Instant) {
        let Some(i) = self.find(id) else { return };
        let due = self.records[i].trial_due();
        let Some(until) = due.filter(|&until| until <= now) else {
            return;
        };
        if !self.queue.remove(&(until, id)) {
            return;
        }
        self.records[i].ejections.start_trial(now);
        self.effects.trial = Some(self.records[i].epoch);
        let endpoint = Arc::clone(&self.members[i].name);
        self.add_event(|| Event::OnTrial { endpoint });
    }

    /// Finds a member that is on trial. None if another call has made and ended the trial since.
    fn find_on_trial(&self, id: u64, epoch: Epoch) -> Option<usize> {
        let i = self.find_in(id, epoch)?;
        let is_on_trial = matches!(self.records[i].ejections.stage(), Stage::Trial { .. });
        if is_on_trial { Some(i) } else { None }
    }

    /// Starts the lease of a trial whose response has begun. Another call may try the endpoint
    /// once the lease has ended.
    pub(super) fn trial_answered(&mut self, id: u64, epoch: Epoch, now: Instant) {
        let Some(i) = self.find_on_trial(id, epoch) else {
            return;
        };
        self.dequeue(i);
        if let Some(lease) = self.records[i].ejections.answer_trial(now, &self.health) {
            self.enqueue(i, lease);
        }
    }

    /// Ends a trial: ejects the endpoint again, recovers it, or waits for the next trial.
    pub(super) fn trial_ended(&mut self, id: u64, epoch: Epoch, verdict: Verdict, now: Instant) {
        let Some(i) = self.find_on_trial(id, epoch) else {
            return;
        };
        self.dequeue(i);
        if verdict == Verdict::Failed {
            self.eject(i, Cause::FailedTrial, now);
            return;
        }
        let (until, enough) = self.records[i]
            .ejections
            .end_trial(verdict, now, &self.health);
        if enough || (verdict == Verdict::Passed && self.uses_ejected()) {
            self.recover(i, now);
            self.publish(Change::Health);
        } else {
            self.enqueue(i, until);
        }
    }
}
