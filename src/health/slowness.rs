//! Weights by latency: how much slower than its peers an endpoint is, and what that changes.

use super::{factors::Factors, settings::Health, tally::Tally};

/// The factor of one step down: a fifth less, as [`LatencyWeights`](super::LatencyWeights) says.
const STEP: f64 = 0.8;

/// Makes each step up a little longer, so that as many steps up as down lead back to 1 in spite of
/// rounding. It is far above the rounding error of a double.
const ROUNDING: f64 = 1.0 + 1e-9;

/// The number of intervals in a row in which an endpoint was too slow.
#[derive(Debug, Default)]
pub(crate) struct Patience(u32);

impl Factors {
    /// Lowers or raises the weight after an interval, and returns whether it changed.
    ///
    /// `slowness` is the endpoint's latency as a multiple of its peers', if it had enough calls.
    pub(crate) fn adjust_to_slowness(
        &mut self,
        patience: &mut Patience,
        slowness: Option<f64>,
        health: &Health,
    ) -> bool {
        let Some(rule) = &health.latency_weights else {
            return false;
        };
        let former = self.latency;
        let too_slow = slowness.is_some_and(|times| times > rule.above);
        patience.0 = if too_slow {
            patience.0.saturating_add(1)
        } else {
            0
        };
        if too_slow && patience.0 >= rule.after {
            self.latency = (self.latency * STEP).max(rule.floor);
        } else if slowness.is_none_or(|times| times < rule.below) {
            self.latency = (self.latency / STEP * ROUNDING).min(1.0);
        }
        self.latency != former
    }
}

/// The mean latencies of all endpoints in one interval, in nanoseconds.
#[derive(Debug)]
pub(crate) struct MeanLatencies {
    /// By index; none for an endpoint with too few calls.
    means: Vec<Option<f64>>,
    sorted: Vec<f64>,
}

impl MeanLatencies {
    /// Computes the means of the endpoints with enough calls: those of the rule, or one.
    pub(crate) fn of(tallies: &[Tally], health: &Health) -> Self {
        let least = health.latency_weights.map_or(1, |rule| rule.min_calls);
        let means: Vec<_> = tallies.iter().map(|tally| mean(tally, least)).collect();
        let mut sorted: Vec<_> = means.iter().copied().flatten().collect();
        sorted.sort_by(f64::total_cmp);
        Self { means, sorted }
    }

    /// Returns the lower median of all means; none if no endpoint has enough calls.
    ///
    /// The upper one of two endpoints would be the slow endpoint's own mean.
    pub(crate) fn usual(&self) -> Option<f64> {
        self.sorted
            .get(self.sorted.len().saturating_sub(1) / 2)
            .copied()
    }

    /// Returns the mean of an endpoint as a multiple of the median of its peers' means.
    pub(crate) fn slowness(&self, index: usize) -> Option<f64> {
        let mean = self.means.get(index).copied().flatten()?;
        let own = self.sorted.partition_point(|&other| other < mean);
        let peer = |index| self.sorted[if index < own { index } else { index + 1 }];
        Some(mean / median(self.sorted.len() - 1, peer)?)
    }
}

fn mean(tally: &Tally, least: u64) -> Option<f64> {
    (tally.successes >= least).then(|| tally.spent as f64 / tally.successes as f64)
}

fn median(len: usize, sorted: impl Fn(usize) -> f64) -> Option<f64> {
    (len > 0).then(|| (sorted((len - 1) / 2) + sorted(len / 2)) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::LatencyWeights;

    fn tally(calls: u64, mean: u64) -> Tally {
        Tally {
            successes: calls,
            spent: calls * mean,
            ..Tally::default()
        }
    }

    #[test]
    fn slowness_is_relative_to_the_peers() {
        let health = Health::new();
        let latencies = MeanLatencies::of(&[tally(20, 30), tally(20, 10), tally(20, 10)], &health);
        assert_eq!(latencies.usual(), Some(10.0));
        assert_eq!(
            [0, 1, 2].map(|i| latencies.slowness(i)),
            [Some(3.0), Some(0.5), Some(0.5)]
        );
        let two = MeanLatencies::of(&[tally(1, 30), tally(1, 10), tally(0, 0)], &health);
        assert_eq!(
            [0, 1, 2].map(|i| two.slowness(i)),
            [Some(3.0), Some(1.0 / 3.0), None]
        );
        assert_eq!(two.usual(), Some(10.0), "the faster of two");
        assert_eq!(
            MeanLatencies::of(&[tally(9, 5)], &health).slowness(0),
            None,
            "alone"
        );
        assert_eq!(MeanLatencies::of(&[], &health).usual(), None);
    }

    #[test]
    fn weight_sinks_late_and_comes_back() {
        let health = Health::new().latency_weights(LatencyWeights::new());
        let (mut factors, mut patience) = (Factors::default(), Patience::default());
        let mut after = |slowness, times| {
            for _ in 0..times {
                factors.adjust_to_slowness(&mut patience, slowness, &health);
            }
            (factors.latency * 1000.0).round()
        };
        assert_eq!(after(Some(9.0), 2), 1000.0, "not yet");
        assert_eq!(after(Some(1.0), 1), 1000.0);
        assert_eq!(after(Some(9.0), 3), 800.0);
        assert_eq!(after(Some(1.3), 9), 800.0, "hysteresis");
        assert_eq!(after(Some(9.0), 99), 250.0, "bounded");
        assert_eq!(after(None, 1), 313.0, "without evidence it comes back");
        assert_eq!(after(Some(1.0), 99), 1000.0);
    }
}
