//! The comparison of endpoints with their peers at the end of each interval.

use tokio::time::Instant;

use super::{Change, Core};
use crate::{
    event::{Cause, WeightCause},
    health::{outliers::Fault, slowness::MeanLatencies, tally::Tally},
};

impl Core {
    /// Ends an interval: ejects outliers and adjusts weights by latency.
    pub(super) fn compare(&mut self, interval: &[Tally], now: Instant) {
        let serving: Vec<_> = (0..self.members.len())
            .filter(|&i| self.members[i].has_weight() && self.members[i].healthy)
            .collect();
        let tallies: Vec<Tally> = serving
            .iter()
            .map(|&i| interval.get(i).copied().unwrap_or_default())
            .collect();
        let latencies = MeanLatencies::of(&tallies, &self.health);
        for (place, &i) in serving.iter().enumerate() {
            self.adjust_by_latency(i, latencies.slowness(place), now);
        }
        self.eject_outliers(&serving, &tallies, now);
        let rule = self.health.outlier_detection;
        self.effects.slow_from = rule
            .zip(latencies.usual())
            .and_then(|(rule, usual)| rule.slow_from(usual));
    }

    fn adjust_by_latency(&mut self, i: usize, slowness: Option<f64>, now: Instant) {
        let record = &mut self.records[i];
        if record
            .factors
            .adjust_to_slowness(&mut record.patience, slowness, &self.health)
        {
            self.refresh(i, now);
            self.add_weight_changed(i, WeightCause::Latency);
            self.publish(Change::Health);
        }
    }

    fn eject_outliers(&mut self, serving: &[usize], tallies: &[Tally], now: Instant) {
        let Some(rule) = self.health.outlier_detection else {
            return;
        };
        if !self.health.ejects() {
            return;
        }
        for (place, fault) in rule.judge(tallies) {
            if !self.may_eject() {
                break;
            }
            let cause = match fault {
                Fault::Failures => Cause::FailureRate,
                Fault::Latency => Cause::Latency,
            };
            self.eject(serving[place], cause, now);
            self.publish(Change::Health);
        }
    }
}
