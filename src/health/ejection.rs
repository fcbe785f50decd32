//! The ejections of one endpoint: their periods and trials.

use std::time::Duration;

use tokio::time::Instant;

use super::{evidence::Verdict, settings::Health};
use crate::util::random::Random;

/// The ejections of one endpoint. The cluster changes them under its lock.
#[derive(Debug)]
pub(crate) struct Ejections {
    /// Past ejections that still count; each makes the next period longer.
    streak: u32,
    /// Trials in a row without a result.
    inconclusive: u32,
    /// When the present stage began.
    since: Instant,
    stage: Stage,
    /// All ejections, for the statistics.
    total: u64,
}

/// The stage of an endpoint between two ejections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Serving,
    /// Ejected until an instant; from then on the next call is the trial. `passed` trials in a row
    /// have succeeded.
    Out {
        until: Instant,
        passed: u32,
    },
    /// A trial runs. It has a lease if its response has begun: if its body has not ended by then,
    /// another call may be the trial.
    Trial {
        passed: u32,
        started: Instant,
        lease: Option<Instant>,
    },
}

/// The most ejections that are remembered. By then the period has reached its maximum, unless
/// `growth` is close to 1.
const MAX_STREAK: u32 = 64;

/// The greatest exponent of a pause after trials without a result: 2^7 hundredths of
/// `base_ejection` are more than all of it.
const MAX_DOUBLINGS: u32 = 7;

impl Ejections {
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            streak: 0,
            inconclusive: 0,
            since: now,
            stage: Stage::Serving,
            total: 0,
        }
    }

    pub(crate) const fn stage(&self) -> Stage {
        self.stage
    }

    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    /// Ejects the endpoint, from service or after a failed trial. Returns the end of the period.
    pub(crate) fn eject(&mut self, now: Instant, health: &Health, random: &mut Random) -> Instant {
        if self.stage == Stage::Serving {
            self.shorten_streak(now.saturating_duration_since(self.since), health);
        }
        self.streak = health.next_streak(self.streak);
        self.total = self.total.saturating_add(1);
        self.since = now;
        let period = health.period(self.streak);
        let until = now + period + period.mul_f64(health.jitter * random.unit());
        self.inconclusive = 0;
        self.stage = Stage::Out { until, passed: 0 };
        until
    }

    pub(crate) fn recover(&mut self, now: Instant) {
        self.since = now;
        self.inconclusive = 0;
        self.stage = Stage::Serving;
    }

    pub(crate) fn start_trial(&mut self, now: Instant) {
        if let Stage::Out { passed, .. } | Stage::Trial { passed, .. } = self.stage {
            self.stage = Stage::Trial {
                passed,
                started: now,
                lease: None,
            };
        }
    }

    /// Begins the lease of a trial whose response has begun. Returns the end of the lease.
    pub(crate) fn answer_trial(&mut self, now: Instant, health: &Health) -> Option<Instant> {
        let Stage::Trial { lease, .. } = &mut self.stage else {
            return None;
        };
        *lease = Some(now + health.base_ejection);
        *lease
    }

    /// Returns when a call may be the trial.
    pub(crate) const fn due(&self) -> Option<Instant> {
        match self.stage {
            Stage::Out { until, .. } => Some(until),
            Stage::Trial { lease, .. } => lease,
            Stage::Serving => None,
        }
    }

    /// Ends a trial. Returns when the next call may be a trial, and whether enough trials in a row
    /// have succeeded.
    pub(crate) fn end_trial(
        &mut self,
        verdict: Verdict,
        now: Instant,
        health: &Health,
    ) -> (Instant, bool) {
        let Stage::Trial {
            mut passed,
            started,
            ..
        } = self.stage
        else {
            return (now, false);
        };
        let until = match verdict {
            Verdict::Passed => {
                self.inconclusive = 0;
                passed = passed.saturating_add(1);
                now
            }
            Verdict::Unsent => now,
            Verdict::PushedBack(requested) => {
                let requested = requested.unwrap_or_default().min(health.max_ejection);
                now + requested.max(health.base_ejection)
            }
            Verdict::Failed | Verdict::Nothing => {
                now + self.next_pause(now.saturating_duration_since(started), health)
            }
        };
        self.stage = Stage::Out { until, passed };
        (until, passed >= health.trials_needed())
    }

    /// Returns the pause after a trial without a result: its own duration, and a part of
    /// `base_ejection` that doubles with each such trial in a row.
    ///
    /// Without the pause, an endpoint that hangs would get every call of callers with short timeouts.
    fn next_pause(&mut self, trial: Duration, health: &Health) -> Duration {
        let doublings = self.inconclusive.min(MAX_DOUBLINGS);
        self.inconclusive = self.inconclusive.saturating_add(1);
        let more = health.base_ejection * (1 << doublings) / 100;
        trial
            .saturating_add(more.min(health.base_ejection))
            .min(health.max_ejection)
    }

    /// Removes a past ejection for each of its periods that fits into the time in service.
    fn shorten_streak(&mut self, mut served: Duration, health: &Health) {
        while self.streak > 0 {
            let Some(rest) = served.checked_sub(health.period(self.streak)) else {
                return;
            };
            served = rest;
            self.streak -= 1;
        }
    }
}

impl Health {
    /// Returns the n-th period in a row, before jitter. The first is number 1.
    fn period(&self, n: u32) -> Duration {
        let factor = self.growth.powi(i32::try_from(n - 1).unwrap_or(i32::MAX));
        let seconds = self.base_ejection.as_secs_f64() * factor;
        if seconds < self.max_ejection.as_secs_f64() {
            Duration::from_secs_f64(seconds)
        } else {
            self.max_ejection
        }
    }

    /// Returns the streak after one more ejection. It stays at the number of the longest period.
    fn next_streak(&self, streak: u32) -> u32 {
        let is_longest = streak > 0 && self.period(streak) >= self.max_ejection;
        if is_longest || self.growth == 1.0 {
            streak.max(1)
        } else {
            (streak + 1).min(MAX_STREAK)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn exact() -> Health {
        Health::new().jitter(0.0)
    }

    fn eject_after(record: &mut Ejections, served: u32, health: &Health) -> (Instant, Duration) {
        let now = record.since + served * SECOND;
        let until = record.eject(now, health, &mut Random::seeded(1));
        (until, until - now)
    }

    #[tokio::test(start_paused = true)]
    async fn periods_grow_to_the_cap_and_no_further() {
        let health = exact();
        let mut record = Ejections::new(Instant::now());
        let mut periods = Vec::new();
        for _ in 0..100 {
            periods.push(eject_after(&mut record, 0, &health).1.as_secs());
        }
        assert_eq!(periods[..7], [10, 20, 40, 80, 160, 300, 300]);
        assert!(periods[7..].iter().all(|&period| period == 300));
        assert_eq!(record.streak, 6, "history beyond the cap is not remembered");
        assert_eq!(record.total(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn a_period_is_forgotten_after_serving_as_long() {
        let health = exact();
        let mut record = Ejections::new(Instant::now());
        for (served, want) in [
            (0, 10),
            (9, 20),
            (19, 40),
            (40, 40),
            (40 + 20 + 10, 10),
            (10, 10),
        ] {
            let (until, period) = eject_after(&mut record, served, &health);
            assert_eq!(period.as_secs(), want, "after {served} s of service");
            record.recover(until);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn extremes_do_not_overflow() {
        for growth in [1.0, 1.000_000_1, 1e6] {
            let longest = crate::util::time::YEAR;
            let health = Health::new()
                .growth(growth)
                .max_ejection(longest)
                .jitter(1.0);
            health.validate().unwrap();
            let mut record = Ejections::new(Instant::now());
            for _ in 0..10_000 {
                assert!(eject_after(&mut record, 0, &health).1 <= 2 * longest);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn trials_in_a_row() {
        let health = exact().trial_successes(2);
        let mut record = Ejections::new(Instant::now());
        let (until, _) = eject_after(&mut record, 0, &health);
        let mut end = |verdict, now: Instant| {
            record.start_trial(now);
            record.end_trial(verdict, now + SECOND, &health)
        };
        assert_eq!(end(Verdict::Passed, until), (until + SECOND, false));
        let pause = SECOND + health.base_ejection / 100;
        assert_eq!(
            end(Verdict::Nothing, until),
            (until + SECOND + pause, false)
        );
        assert_eq!(end(Verdict::Unsent, until), (until + SECOND, false));
        assert!(end(Verdict::Passed, until).1);
    }
}
