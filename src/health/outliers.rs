//! Ejection by rate: an endpoint that does worse than its peers, although not in a row.

use crate::health::fisher::tail;
use crate::{error::ConfigError, health::tally::Tally};

/// Ejects endpoints that fail more often than their peers, beside those that fail many times in
/// a row.
///
/// At the end of each [interval](crate::Health::interval), each endpoint in service is compared
/// with the rest, the worst first. It is ejected if its share of failed calls is above that
/// of the rest by more than `margin`, and if chance alone would hardly have it so (Fisher's
/// exact test): in a set of endpoints that are all alike, the chance that an interval ejects
/// anybody is at most `false_ejections`, however many endpoints there are. The test knows how
/// little a few calls say, so it works with two or three endpoints and with a third of
/// them bad; when all do badly, nobody stands out. Endpoints or rests with fewer calls than
/// `min_calls` are not judged, so the last one never is.
///
/// With [`slower_than`](Self::slower_than), slow calls are judged in the same way.
///
/// # How many failures that takes
///
/// The least number of failures in an interval that eject an endpoint whose peers have none, by
/// the defaults, if each endpoint had so many calls:
///
/// | endpoints | 20 calls each | 50 | 100 | 300 |
/// |---|---|---|---|---|
/// | 2 | 12 | 13 | 14 | 31 |
/// | 3 | 9 | 9 | 11 | 31 |
/// | 10 | 5 | 6 | 11 | 31 |
///
/// So roughly ln(n / `false_ejections`) / ln n failures of n endpoints, and more than `margin` of
/// the calls. Where calls are rare make the [interval](crate::Health::interval) longer, or allow
/// more false ejections: the default of 0.0001 is at most one in a day of intervals of 10 s.
///
/// # Beside the other rules
///
/// [`max_ejected`](crate::Health::max_ejected) holds; periods and trials are those of other
/// ejections. An endpoint that fails a share p of its calls passes k trials in a row with a
/// chance of (1 - p)^k: for half of the calls, 5
/// [`trial_successes`](crate::Health::trial_successes) leave a chance of 3 %.
/// [`consecutive_failures`](crate::Health::consecutive_failures) goes on counting: by chance,
/// 5 in a row come once in 400 calls at p = 30 %.
///
/// | setting | default | accepted |
/// |---|---|---|
/// | `min_calls` | 20 | 1 and more |
/// | `margin` | 0.1 | 0 to below 1 |
/// | `false_ejections` | 0.0001 an interval | above 0, below 1 |
/// | `slower_than` | off | above 1 |
///
/// Cost: two atomic additions for each call that ends, and one clock reading; O(n log n) at the
/// end of an interval, behind the door.
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

/// Bad calls among all.
#[derive(Debug, Clone, Copy, Default)]
struct Score {
    bad: u64,
    all: u64,
}

/// In what an endpoint stands out.
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
        Self { min_calls: 20, margin: 0.1, false_ejections: 1e-4, slower_than: None }
    }

    /// Sets how many calls of an interval a judgement needs, of the endpoint and of the rest.
    /// Default: 20.
    pub const fn min_calls(mut self, calls: u64) -> Self {
        self.min_calls = calls;
        self
    }

    /// Sets by how much the share of bad calls must be above the rest's. Default: 0.1.
    pub const fn margin(mut self, margin: f64) -> Self {
        self.margin = margin;
        self
    }

    /// Sets the chance that an interval ejects anybody of a set that are all alike. Default:
    /// 0.0001.
    pub const fn false_ejections(mut self, chance: f64) -> Self {
        self.false_ejections = chance;
        self
    }

    /// Judges slow calls too: those that succeed, and take so many times as long as calls
    /// did in the interval before at the median endpoint, of an even number the faster one.
    /// Default: off.
    pub const fn slower_than(mut self, times: f64) -> Self {
        self.slower_than = Some(times);
        self
    }

    /// Returns from which latency on a call is slow, if that is asked for, by the usual one.
    pub(crate) fn slow_from(&self, usual: f64) -> Option<u64> {
        self.slower_than.map(|times| (usual * times) as u64)
    }

    /// Returns who stands out, the worst first.
    pub(crate) fn judge(&self, tallies: &[Tally]) -> Vec<(usize, Fault)> {
        let failures =
            |tally: &Tally| Score { bad: tally.failures, all: tally.successes + tally.failures };
        let slow = |tally: &Tally| Score { bad: tally.slow, all: tally.successes };
        let failing = self.stand_out(tallies, failures);
        let mut out: Vec<_> = failing.into_iter().map(|place| (place, Fault::Failures)).collect();
        if self.slower_than.is_some() {
            for place in self.stand_out(tallies, slow) {
                if out.iter().all(|(other, _)| *other != place) {
                    out.push((place, Fault::Latency));
                }
            }
        }
        out
    }

    /// Judges one kind of bad calls.
    fn stand_out(&self, tallies: &[Tally], score: impl Fn(&Tally) -> Score) -> Vec<usize> {
        let mut scores: Vec<_> = tallies.iter().map(score).enumerate().collect();
        let mut rest = Score::default();
        for (_, score) in &scores {
            rest = Score { bad: rest.bad + score.bad, all: rest.all + score.all };
        }
        scores.retain(|(_, score)| score.all >= self.min_calls.max(1));
        scores.sort_by(|(_, a), (_, b)| b.share().total_cmp(&a.share()));
        // Each of so many comparisons may err by chance.
        let chance = self.false_ejections / scores.len().max(1) as f64;
        let mut out = Vec::new();
        for (place, score) in scores {
            let others = Score { bad: rest.bad - score.bad, all: rest.all - score.all };
            let enough = others.all >= self.min_calls.max(1);
            let above = score.share() > others.share() + self.margin;
            if enough && above && tail(score.bad, score.all, others.bad, others.all) <= chance {
                out.push(place);
                rest = others;
            }
        }
        out
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |problem| Err(ConfigError::new("outlier_detection", problem));
        match self {
            _ if self.min_calls == 0 => refuse("needs min_calls of at least 1"),
            _ if !(0.0..1.0).contains(&self.margin) => refuse("needs a margin from 0 to below 1"),
            _ if !(self.false_ejections > 0.0 && self.false_ejections < 1.0) => {
                refuse("needs false_ejections above 0 and below 1")
            }
            _ if self.slower_than.is_some_and(|times| !(times > 1.0 && times.is_finite())) => {
                refuse("needs slower_than above 1")
            }
            _ => Ok(()),
        }
    }
}

impl Score {
    fn share(self) -> f64 {
        self.bad as f64 / self.all.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::util::random::Random;

    fn tally(successes: u64, failures: u64) -> Tally {
        Tally { successes, failures, ..Tally::default() }
    }

    fn judged(tallies: &[Tally]) -> Vec<usize> {
        OutlierDetection::new().judge(tallies).into_iter().map(|(place, _)| place).collect()
    }

    #[test]
    fn one_of_two_and_one_of_three_stand_out() {
        assert_eq!(judged(&[tally(30, 0), tally(15, 15)]), [1]);
        assert_eq!(judged(&[tally(30, 0), tally(15, 15), tally(29, 1)]), [1]);
    }

    #[test]
    fn three_of_ten_stand_out_the_worst_first() {
        let mut tallies = vec![tally(99, 1); 10];
        (tallies[2], tallies[5], tallies[9]) = (tally(60, 40), tally(0, 100), tally(50, 50));
        assert_eq!(judged(&tallies), [5, 9, 2]);
    }

    #[test]
    fn nobody_stands_out_where_all_do_badly() {
        assert_eq!(judged(&[tally(10, 90); 5]), [0; 0]);
        assert_eq!(judged(&[tally(0, 100)]), [0; 0], "nor alone");
        assert_eq!(judged(&[tally(0, 19), tally(100, 0)]), [0; 0], "nor with few calls");
        assert_eq!(judged(&[tally(0, 100), tally(19, 0)]), [0; 0], "nor beside few");
    }

    #[test]
    fn what_is_certain_but_small_is_within_the_margin() {
        let tallies = [tally(990_000, 10_000), tally(1_000_000, 0), tally(1_000_000, 0)];
        assert_eq!(judged(&tallies), [0; 0]);
        assert_eq!(OutlierDetection::new().margin(0.0).judge(&tallies), [(0, Fault::Failures)]);
    }

    #[test]
    fn slow_calls_are_judged_like_failures() {
        let mut tallies = vec![Tally { successes: 100, ..Tally::default() }; 3];
        tallies[1].slow = 60;
        assert_eq!(OutlierDetection::new().judge(&tallies), []);
        assert_eq!(OutlierDetection::new().slower_than(2.0).judge(&tallies), [(1, Fault::Latency)]);
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
