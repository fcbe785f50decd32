//! Endpoints compared with their peers, at the end of each interval.

use tokio::time::Instant;

use crate::cluster::core::Core;
use crate::{
    event::{Cause, WeightCause},
    health::{outliers::Fault, pace::Paces, standing::State},
    load::Tally,
};

impl<T> Core<T> {
    /// Ends an interval: ejects who stands out, and moves weights by latency. Returns whether
    /// anything has changed.
    pub(crate) fn compare(&mut self, now: Instant) -> bool {
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
}
