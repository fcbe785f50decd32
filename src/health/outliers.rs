//! Outlier detection: ejects endpoints that fail more often than their peers.

use super::{fisher::tail, tally::Tally};
use crate::error::ConfigError;

/// Ejects endpoints whose share of failed calls is above that of their peers.
///
/// It works beside [`consecutive_failures`](crate::Health::consecutive_failures). At the end of each
/// [interval](crate::Health::interval), each endpoint in service is compared with the rest, the worst
/// first. It is ejected if its share of failed calls exceeds that of the rest by more than `margin`,
/// and if Fisher's exact test makes an accident improbable: in a set of equal endpoints of any size,
/// an interval ejects any endpoint with a probability of at most `false_ejections`, for each kind of
/// test. The test takes the number of calls into account, so it also works with two or three endpoints,
/// and if a third of them fails. If all endpoints fail alike, none is ejected. An endpoint or a rest with fewer calls
/// than `min_calls` is not compared, so the last endpoint is never ejected.
///
/// [`slower_than`](Self::slower_than) adds a second kind of test: it compares the shares of slow calls in
/// the same way, with the whole of `false_ejections` for itself.
///
/// # How many failures eject
///
/// The table has the least number of failures in an interval that eject an endpoint, with the
/// defaults, if its peers have none and each endpoint has so many calls:
///
/// | endpoints | 20 calls each | 50 | 100 | 300 |
/// |---|---|---|---|---|
/// | 2 | 12 | 13 | 14 | 31 |
/// | 3 | 9 | 9 | 11 | 31 |
/// | 10 | 5 | 6 | 11 | 31 |
///
/// The number is about ln(n / `false_ejections`) / ln n for n endpoints, and more than `margin` of the
/// calls. If calls are rare, a longer [interval](crate::Health::interval) or a greater
/// `false_ejections` helps. The default of 0.0001 is at most one false ejection a day, for each kind
/// of test, with intervals of 10 s.
///
/// # Other settings
///
/// [`max_ejected`](crate::Health::max_ejected) limits these ejections too, and their periods and
/// trials are the usual ones. An endpoint that fails a share p of its calls passes k trials in a row
/// with a probability of (1 - p)^k: for half of the calls, 5
/// [`trial_successes`](crate::Health::trial_successes) lower it to 3 %.
/// [`consecutive_failures`](crate::Health::consecutive_failures) still ejects: at p = 30 %, 5 failures
/// in a row come about once in 400 calls.
///
/// | setting | default | accepted |
/// |---|---|---|
/// | `min_calls` | 20 | 1 and more |
/// | `margin` | 0.1 | 0 to below 1 |
/// | `false_ejections` | 0.0001 an interval | above 0, below 1 |
/// | `slower_than` | off | above 1 |
///
/// Cost: two atomic additions and one clock reading for each call that ends; O(n log n) at the end of
/// an interval, under the cluster's lock.
///
/// ```
/// use counterpoise::{health::OutlierDetection, Health};
///
/// let health = Health::new().outlier_detection(OutlierDetection::new().margin(0.05).slower_than(3.0));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[must_use]
pub struct OutlierDetection {
    min_calls: u64,
    margin: f64,
    false_ejections: f64,
    slower_than: Option<f64>,
}

/// The number of bad calls among all.
#[derive(Debug, Clone, Copy, Default)]
struct Score {
    bad: u64,
    all: u64,
}

/// Why an endpoint is an outlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Failures,
    Latency,
}

impl Default for OutlierDetection {
    fn default() -> Self {
        Self::new()
    }
}

impl OutlierDetection {
    /// Creates the default settings.
    pub const fn new() -> Self {
        Self {
            min_calls: 20,
            margin: 0.1,
            false_ejections: 1e-4,
            slower_than: None,
        }
    }

    /// Sets how many calls of an interval a comparison needs, of the endpoint and of the rest.
    /// Default: 20.
    pub const fn min_calls(mut self, calls: u64) -> Self {
        self.min_calls = calls;
        self
    }

    /// Sets the difference of the shares of failed calls above which an endpoint may be ejected.
    /// Default: 0.1.
    pub const fn margin(mut self, margin: f64) -> Self {
        self.margin = margin;
        self
    }

    /// Sets the greatest probability that an interval ejects an endpoint of a set of equal ones, for
    /// each kind of test. Default: 0.0001.
    pub const fn false_ejections(mut self, chance: f64) -> Self {
        self.false_ejections = chance;
        self
    }

    /// Also ejects endpoints with a greater share of slow calls than their peers. Default: off.
    ///
    /// A call is slow if it succeeds and takes more than `times` the mean latency of the median
    /// endpoint in the interval before; of an even number of endpoints, the faster one of the middle
    /// two. An endpoint without a success in that interval has no mean and is left out; with
    /// [`latency_weights`](crate::Health::latency_weights), so is one with fewer successes than
    /// [`LatencyWeights::min_calls`](super::LatencyWeights::min_calls).
    pub const fn slower_than(mut self, times: f64) -> Self {
        self.slower_than = Some(times);
        self
    }

    /// Returns the latency above which a call is slow, for the usual latency of the set; both are in
    /// nanoseconds.
    pub(crate) fn slow_from(&self, usual: f64) -> Option<u64> {
        self.slower_than.map(|times| (usual * times) as u64)
    }

    /// Returns the indexes of the outliers, the worst first.
    pub(crate) fn judge(&self, tallies: &[Tally]) -> Vec<(usize, Fault)> {
        let failed = tallies.iter().map(Score::failed).collect();
        let mut has_failed = vec![false; tallies.len()];
        let mut outliers = Vec::new();
        for index in self.outliers(failed) {
            has_failed[index] = true;
            outliers.push((index, Fault::Failures));
        }
        if self.slower_than.is_none() {
            return outliers;
        }
        let slow = tallies.iter().map(Score::slow).collect();
        for index in self.outliers(slow) {
            if !has_failed[index] {
                outliers.push((index, Fault::Latency));
            }
        }
        outliers
    }

    /// Returns the indexes of the outliers by one kind of bad calls.
    fn outliers(&self, scores: Vec<Score>) -> Vec<usize> {
        let mut rest = Score::default();
        for score in &scores {
            rest = Score {
                bad: rest.bad + score.bad,
                all: rest.all + score.all,
            };
        }
        let compared = self.worst_first(scores);
        // Bonferroni's correction: the probabilities of false ejections add up over the comparisons.
        let chance = self.false_ejections / compared.len().max(1) as f64;
        let mut outliers = Vec::new();
        for (index, score) in compared {
            let others = Score {
                bad: rest.bad - score.bad,
                all: rest.all - score.all,
            };
            if self.is_outlier(score, others, chance) {
                outliers.push(index);
                rest = others;
            }
        }
        outliers
    }

    /// Returns the scores with enough calls and their indexes, the greatest share first.
    fn worst_first(&self, scores: Vec<Score>) -> Vec<(usize, Score)> {
        let mut compared: Vec<_> = scores.into_iter().enumerate().collect();
        compared.retain(|(_, score)| score.all >= self.least_calls());
        compared.sort_by(|(_, a), (_, b)| b.share().total_cmp(&a.share()));
        compared
    }

    fn is_outlier(&self, score: Score, others: Score, chance: f64) -> bool {
        others.all >= self.least_calls()
            && score.share() > others.share() + self.margin
            && tail(score.bad, score.all, others.bad, others.all) <= chance
    }

    fn least_calls(&self) -> u64 {
        self.min_calls.max(1)
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let require = |ok, problem| ConfigError::require(ok, "outlier_detection", problem);
        require(self.min_calls > 0, "needs min_calls of at least 1")?;
        require(
            (0.0..1.0).contains(&self.margin),
            "needs a margin from 0 to below 1",
        )?;
        let chance = self.false_ejections > 0.0 && self.false_ejections < 1.0;
        require(chance, "needs false_ejections above 0 and below 1")?;
        let slower = self
            .slower_than
            .is_none_or(|times| times > 1.0 && times.is_finite());
        require(slower, "needs slower_than above 1")
    }
}

impl Score {
    fn failed(tally: &Tally) -> Self {
        Self {
            bad: tally.failures,
            all: tally.successes + tally.failures,
        }
    }

    fn slow(tally: &Tally) -> Self {
        Self {
            bad: tally.slow,
            all: tally.successes,
        }
    }

    fn share(self) -> f64 {
        self.bad as f64 / self.all.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::util::random::Random;

    fn tally(successes: u64, failures: u64) -> Tally {
        Tally {
            successes,
            failures,
            ..Tally::default()
        }
    }

    fn judged(tallies: &[Tally]) -> Vec<usize> {
        OutlierDetection::new()
            .judge(tallies)
            .into_iter()
            .map(|(index, _)| index)
            .collect()
    }

    #[test]
    fn one_of_two_and_one_of_three_are_ejected() {
        assert_eq!(judged(&[tally(30, 0), tally(15, 15)]), [1]);
        assert_eq!(judged(&[tally(30, 0), tally(15, 15), tally(29, 1)]), [1]);
    }

    #[test]
    fn three_of_ten_are_ejected_the_worst_first() {
        let mut tallies = vec![tally(99, 1); 10];
        (tallies[2], tallies[5], tallies[9]) = (tally(60, 40), tally(0, 100), tally(50, 50));
        assert_eq!(judged(&tallies), [5, 9, 2]);
    }

    #[test]
    fn none_is_ejected_if_all_fail_alike() {
        assert_eq!(judged(&[tally(10, 90); 5]), [0; 0]);
        assert_eq!(judged(&[tally(0, 100)]), [0; 0], "alone");
        assert_eq!(
            judged(&[tally(0, 19), tally(100, 0)]),
            [0; 0],
            "with few calls"
        );
        assert_eq!(
            judged(&[tally(0, 100), tally(19, 0)]),
            [0; 0],
            "beside few calls"
        );
    }

    #[test]
    fn a_significant_small_difference_is_within_the_margin() {
        let tallies = [
            tally(990_000, 10_000),
            tally(1_000_000, 0),
            tally(1_000_000, 0),
        ];
        assert_eq!(judged(&tallies), [0; 0]);
        assert_eq!(
            OutlierDetection::new().margin(0.0).judge(&tallies),
            [(0, Fault::Failures)]
        );
    }

    #[test]
    fn slow_calls_are_judged_like_failures() {
        let mut tallies = vec![
            Tally {
                successes: 100,
                ..Tally::default()
            };
            3
        ];
        tallies[1].slow = 60;
        assert_eq!(OutlierDetection::new().judge(&tallies), []);
        assert_eq!(
            OutlierDetection::new().slower_than(2.0).judge(&tallies),
            [(1, Fault::Latency)]
        );
    }

    #[test]
    fn false_ejections_keep_to_the_budget() {
        let mut random = Random::seeded(7);
        for (n, calls, failing) in [(2, 30, 0.5), (3, 100, 0.05), (20, 50, 0.2)] {
            let settings = OutlierDetection::new().margin(0.0).false_ejections(0.05);
            let rounds = 2_000;
            let mut ejecting = 0;
            for _ in 0..rounds {
                let mut draw = || {
                    let failures = (0..calls).filter(|_| random.unit() < failing).count() as u64;
                    tally(calls - failures, failures)
                };
                let tallies: Vec<_> = (0..n).map(|_| draw()).collect();
                ejecting += usize::from(!settings.judge(&tallies).is_empty());
            }
            // 100 are expected at most; five standard deviations are 49.
            assert!(ejecting < 149, "{ejecting} of {rounds} with {n} endpoints");
        }
    }
}
