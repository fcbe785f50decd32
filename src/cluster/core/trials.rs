//! Transitions of one endpoint's health.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::cluster::core::Core;
use crate::{
    cluster::node::{Node, NodeState, Verdict},
    event::{Cause, Event},
    health::{
        ejection::Stage,
        standing::{Epoch, State},
    },
};

impl<T> Core<T> {
    /// Ejects an endpoint that has failed often enough, if the limit allows it.
    pub(crate) fn eject(&mut self, id: u64, epoch: Epoch, now: Instant) -> bool {
        let Some(i) = self.find_in(id, epoch) else { return false };
        let limit = self.health.ejection_limit(self.tally.candidates);
        let drained = !self.members[i].is_open();
        let allowed = drained || self.tally.ejected < limit;
        if !allowed || !self.nodes[i].state.standing.eject(epoch, self.health.threshold()) {
            return false;
        }
        self.members[i].healthy = false;
        self.tally.ejected += usize::from(!drained);
        self.take_out(i, Cause::ConsecutiveFailures, now);
        true
    }

    /// Begins an ejection.
    pub(crate) fn take_out(&mut self, i: usize, cause: Cause, now: Instant) {
        let until = self.records[i].record.eject(now, &self.health, &mut self.random);
        if self.members[i].is_open() && !self.records[i].checked_out {
            self.queue.insert((until, self.members[i].id));
        }
        self.note_ejected(i, Some(until - now), cause);
    }

    pub(crate) fn note_ejected(&mut self, i: usize, returns_in: Option<Duration>, cause: Cause) {
        let endpoint = Arc::clone(&self.members[i].name);
        self.note(|| Event::Ejected { endpoint, returns_in, cause });
    }

    pub(crate) fn unqueue(&mut self, i: usize) {
        if let Some(until) = self.records[i].record.due() {
            self.queue.remove(&(until, self.members[i].id));
        }
    }

    /// Brings an endpoint back that succeeded although it is ejected.
    pub(crate) fn recover(&mut self, id: u64, epoch: Epoch, now: Instant) -> bool {
        match self.find_in(id, epoch) {
            Some(i) if !self.members[i].healthy => {
                self.bring_back(i, now);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn bring_back(&mut self, i: usize, now: Instant) {
        self.unqueue(i);
        // What ended before says nothing of the new epoch.
        let _former = self.nodes[i].state.window.take();
        self.nodes[i].state.standing.enter(State::Serving);
        self.members[i].healthy = true;
        self.records[i].checked_out = false;
        self.records[i].record.recover(now);
        self.tally.ejected -= usize::from(self.members[i].is_open());
        let endpoint = Arc::clone(&self.members[i].name);
        self.note(|| Event::Recovered { endpoint });
        self.start_slowly(i, now);
    }

    /// Hands out the place of a trial that is due, of an endpoint that the call would take.
    pub(crate) fn start_trial(
        &mut self,
        now: Instant,
        accepts: impl Fn(&NodeState) -> bool,
    ) -> Option<(Arc<Node<T>>, Epoch)> {
        let due = self.queue.iter().take_while(|(until, _)| *until <= now);
        let found = due.copied().find_map(|(until, id)| {
            let i = self.find(id)?;
            accepts(&self.nodes[i].state).then_some((until, id, i))
        });
        let (until, id, i) = found?;
        self.queue.remove(&(until, id));
        self.records[i].record.start_trial(now);
        let node = Arc::clone(&self.nodes[i]);
        let epoch = node.state.standing.epoch();
        self.note(|| Event::OnTrial { endpoint: Arc::clone(&node.state.name) });
        Some((node, epoch))
    }

    /// Notes that the response to a trial has begun, and that its body may take long.
    pub(crate) fn answer_trial(&mut self, id: u64, epoch: Epoch, now: Instant) {
        let Some(i) = self.find_in(id, epoch) else { return };
        // Another call may have had the place meanwhile, and ended: then it waits to be tried.
        if !matches!(self.records[i].record.stage(), Stage::Trial { .. }) {
            return;
        }
        self.unqueue(i);
        let lease = self.records[i].record.answer_trial(now, &self.health);
        if let Some(lease) = lease.filter(|_| self.members[i].is_open()) {
            self.queue.insert((lease, id));
        }
    }

    /// Takes the place of a trial back; returns true if the endpoint is back in service.
    pub(crate) fn end_trial(&mut self, id: u64, epoch: Epoch, end: Verdict, now: Instant) -> bool {
        let Some(i) = self.find_in(id, epoch) else { return false };
        if !matches!(self.records[i].record.stage(), Stage::Trial { .. }) {
            return false;
        }
        self.unqueue(i);
        if end == Verdict::Bad {
            self.nodes[i].state.standing.enter(State::Ejected);
            self.take_out(i, Cause::FailedTrial, now);
            return false;
        }
        let good = end == Verdict::Good;
        let (until, enough) = self.records[i].record.end_trial(end, now, &self.health);
        if enough || (good && self.ignores_health()) {
            self.bring_back(i, now);
            return true;
        }
        if self.members[i].is_open() {
            self.queue.insert((until, id));
        }
        false
    }
}
