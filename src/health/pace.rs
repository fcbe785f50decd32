//! Weights by latency: an endpoint that stays slower than its peers gets less.

use crate::health::{factors::Factors, settings::Health};
use crate::{error::ConfigError, health::tally::Tally};

/// Lowers the weight of endpoints that stay slower than their peers, and gives it back.
///
/// At the end of each [interval](crate::Health::interval), the mean latency of an endpoint's
/// successes is compared with the median of its peers' means. Above `above` times that, for
/// `after` intervals in a row, each interval takes a fifth of the weight that counts, down to
/// `floor`; below `below` times, or with fewer than `min_calls` calls to tell by, each gives
/// that back. In between, everything stays as it is.
///
/// For policies that do not look at latency by themselves; beside [`PeakEwma`](crate::policy::PeakEwma)
/// it would count twice.
///
/// | setting | default | accepted |
/// |---|---|---|
/// | `above` | 1.5 | above `below` |
/// | `below` | 1.2 | 1 and more |
/// | `after` | 3 intervals | 1 and more |
/// | `floor` | 0.25 | above 0 to 1 |
/// | `min_calls` | 10 | 1 and more |
///
/// ```
/// use counterpoise::{health::LatencyWeights, Health};
///
/// let health = Health::new().latency_weights(LatencyWeights::new().floor(0.5));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[must_use]
pub struct LatencyWeights {
    above: f64,
    below: f64,
    after: u32,
    floor: f64,
    min_calls: u64,
}

/// What is left of the weight after one step down.
const STEP: f64 = 0.8;

/// For how many intervals in a row an endpoint has been too slow.
#[derive(Debug, Default)]
pub(crate) struct Patience(u32);

impl Default for LatencyWeights {
    fn default() -> Self {
        Self::new()
    }
}

impl LatencyWeights {
    /// Creates the default settings.
    pub const fn new() -> Self {
        Self { above: 1.5, below: 1.2, after: 3, floor: 0.25, min_calls: 10 }
    }

    /// Sets from how many times its peers' latency on an endpoint is too slow. Default: 1.5.
    pub const fn above(mut self, times: f64) -> Self {
        self.above = times;
        self
    }

    /// Sets below how many times its peers' latency it gets weight back. Default: 1.2.
    pub const fn below(mut self, times: f64) -> Self {
        self.below = times;
        self
    }

    /// Sets after how many slow intervals in a row the weight sinks. Default: 3.
    pub const fn after(mut self, intervals: u32) -> Self {
        self.after = intervals;
        self
    }

    /// Sets what part of the weight is left at least. Default: 0.25.
    pub const fn floor(mut self, floor: f64) -> Self {
        self.floor = floor;
        self
    }

    /// Sets how many successes of an interval tell the latency. Default: 10.
    pub const fn min_calls(mut self, calls: u64) -> Self {
        self.min_calls = calls;
        self
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |problem| Err(ConfigError::new("latency_weights", problem));
        match self {
            _ if !(1.0..f64::MAX).contains(&self.below) => refuse("needs below of at least 1"),
            _ if !(self.below..f64::MAX).contains(&self.above) || self.above == self.below => {
                refuse("needs above to be more than below")
            }
            _ if self.after == 0 => refuse("needs after of at least 1"),
            _ if !(self.floor > 0.0 && self.floor <= 1.0) => {
                refuse("needs a floor above 0 and up to 1")
            }
            _ if self.min_calls == 0 => refuse("needs min_calls of at least 1"),
            _ => Ok(()),
        }
    }
}

impl Factors {
    /// Takes or gives back weight after an interval in which the endpoint was so many times as
    /// slow as its peers, if that could be told; returns whether anything changed.
    pub(crate) fn judge_pace(
        &mut self,
        patience: &mut Patience,
        slowness: Option<f64>,
        health: &Health,
    ) -> bool {
        let Some(rule) = &health.latency_weights else { return false };
        let former = self.pace;
        let too_slow = slowness.is_some_and(|times| times > rule.above);
        patience.0 = if too_slow { patience.0.saturating_add(1) } else { 0 };
        if too_slow && patience.0 >= rule.after {
            self.pace = (self.pace * STEP).max(rule.floor);
        } else if slowness.is_none_or(|times| times < rule.below) {
            // A hair more, so that as many steps up as down lead back to the whole.
            self.pace = (self.pace / STEP * (1.0 + 1e-9)).min(1.0);
        }
        self.pace != former
    }
}

/// How slow each endpoint was beside its peers, and what is usual.
#[derive(Debug)]
pub(crate) struct Paces {
    /// By place; none with too few calls.
    means: Vec<Option<f64>>,
    sorted: Vec<f64>,
}

impl Paces {
    /// Takes the means of those who have enough calls; the least number is that of the rule,
    /// or one.
    pub(crate) fn of(tallies: &[Tally], health: &Health) -> Self {
        let least = health.latency_weights.map_or(1, |rule| rule.min_calls);
        let mean = |tally: &Tally| tally.spent as f64 / tally.successes as f64;
        let means: Vec<_> =
            tallies.iter().map(|tally| (tally.successes >= least).then(|| mean(tally))).collect();
        let mut sorted: Vec<_> = means.iter().copied().flatten().collect();
        sorted.sort_by(f64::total_cmp);
        Self { means, sorted }
    }

    /// Returns the median of all, the lower one: or of two endpoints a slow one would have
    /// its own part in what is usual. None if nobody has enough calls.
    pub(crate) fn usual(&self) -> Option<f64> {
        self.sorted.get(self.sorted.len().saturating_sub(1) / 2).copied()
    }

    /// Returns how many times the median of its peers an endpoint took.
    pub(crate) fn slowness(&self, place: usize) -> Option<f64> {
        let mean = self.means.get(place).copied().flatten()?;
        let own = self.sorted.partition_point(|&other| other < mean);
        let others = |place| self.sorted[if place < own { place } else { place + 1 }];
        Some(mean / median(self.sorted.len() - 1, others)?)
    }
}

fn median(len: usize, sorted: impl Fn(usize) -> f64) -> Option<f64> {
    (len > 0).then(|| (sorted((len - 1) / 2) + sorted(len / 2)) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(calls: u64, mean: u64) -> Tally {
        Tally { successes: calls, spent: calls * mean, ..Tally::default() }
    }

    #[test]
    fn slowness_is_told_by_the_peers() {
        let health = Health::new();
        let paces = Paces::of(&[tally(20, 30), tally(20, 10), tally(20, 10)], &health);
        assert_eq!(paces.usual(), Some(10.0));
        assert_eq!([0, 1, 2].map(|i| paces.slowness(i)), [Some(3.0), Some(0.5), Some(0.5)]);
        let two = Paces::of(&[tally(1, 30), tally(1, 10), tally(0, 0)], &health);
        assert_eq!([0, 1, 2].map(|i| two.slowness(i)), [Some(3.0), Some(1.0 / 3.0), None]);
        assert_eq!(two.usual(), Some(10.0), "the faster of two");
        assert_eq!(Paces::of(&[tally(9, 5)], &health).slowness(0), None, "alone");
        assert_eq!(Paces::of(&[], &health).usual(), None);
    }

    #[test]
    fn weight_sinks_late_and_comes_back() {
        let health = Health::new().latency_weights(LatencyWeights::new());
        let (mut factors, mut patience) = (Factors::default(), Patience::default());
        let mut after = |slowness, times| {
            for _ in 0..times {
                factors.judge_pace(&mut patience, slowness, &health);
            }
            (factors.pace * 1000.0).round()
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
