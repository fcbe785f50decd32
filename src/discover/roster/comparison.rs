//! Endpoints compared with their peers, at the end of each interval.

use tokio::time::Instant;

use super::Roster;
use crate::{
    events::{Cause, WeightCause},
    health::{outliers::Fault, pace::Paces, standing::State},
    node::Verdict,
    signals::Tally,
};

impl<T> Roster<T> {
    /// Ends an interval: ejects who stands out, and moves weights by latency. Returns whether
    /// anything has changed.
    pub(super) fn compare(&mut self, now: Instant) -> bool {
        let serving: Vec<_> = (0..self.members.len())
            .filter(|&i| self.members[i].is_open() && self.members[i].healthy)
            .collect();
        // The window ends for all: who is drained now is not judged by it later.
        let all: Vec<Tally> = self.nodes.iter().map(|node| node.state.window.take()).collect();
        let tallies: Vec<Tally> = serving.iter().map(|&i| all[i]).collect();
        let paces = Paces::of(&tallies, &self.health);
        let mut changed = false;
        for (place, &i) in serving.iter().enumerate() {
            changed |= self.weigh(i, paces.slowness(place), now);
        }
        changed |= self.eject_outliers(&serving, &tallies, now);
        if let Some((rule, usual)) = self.health.outliers.zip(paces.usual())
            && let Some(slow_from) = rule.slow_from(usual)
            && let Some(meter) = self.nodes.first().and_then(|node| node.state.meter.as_ref())
        {
            meter.set_slow_from(slow_from);
        }
        changed
    }

    fn weigh(&mut self, i: usize, slowness: Option<f64>, now: Instant) -> bool {
        let entry = &mut self.records[i];
        if !entry.factors.judge_pace(&mut entry.patience, slowness, &self.health) {
            return false;
        }
        self.refresh(i, now);
        self.note_weight(i, WeightCause::Latency);
        true
    }

    fn eject_outliers(&mut self, serving: &[usize], tallies: &[Tally], now: Instant) -> bool {
        let Some(rule) = self.health.outliers.filter(|_| self.health.ejects()) else {
            return false;
        };
        let mut changed = false;
        for (place, fault) in rule.judge(tallies) {
            if self.tally.ejected >= self.health.ejection_limit(self.tally.candidates) {
                break;
            }
            let i = serving[place];
            self.nodes[i].state.standing.enter(State::Ejected);
            self.members[i].healthy = false;
            self.tally.ejected += 1;
            let cause = match fault {
                Fault::Failures => Cause::FailureRate,
                Fault::Latency => Cause::Latency,
            };
            self.take_out(i, cause, now);
            changed = true;
        }
        changed
    }

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
