//! One endpoint's record of ejections: how long it is out, what is forgotten, when it is
//! tried.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    health::{evidence::Verdict, settings::Health},
    util::random::Random,
};

/// The record of one endpoint; kept under the door's mutex.
#[derive(Debug)]
pub(crate) struct Ejections {
    /// Ejections that still count; each makes the next period longer.
    streak: u32,
    /// Trials in a row that said nothing.
    vain: u32,
    /// When the present stage began.
    since: Instant,
    stage: Stage,
    /// Ejections ever, for the statistics.
    total: u64,
}

/// What an endpoint is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// In service.
    Serving,
    /// Out until an instant; from then on waiting to be tried.
    Out { until: Instant, passed: u32 },
    /// One call is trying it, after so many trials that succeeded. With a lease, its response
    /// has begun, and if its body has not ended by then another may try.
    Trial { passed: u32, started: Instant, lease: Option<Instant> },
}

impl Ejections {
    pub(crate) const fn new(now: Instant) -> Self {
        Self { streak: 0, vain: 0, since: now, stage: Stage::Serving, total: 0 }
    }

    pub(crate) const fn stage(&self) -> Stage {
        self.stage
    }

    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    /// Takes the endpoint out, from service or after a failed trial; returns until when.
    pub(crate) fn eject(&mut self, now: Instant, health: &Health, random: &mut Random) -> Instant {
        if self.stage == Stage::Serving {
            self.forget(now.saturating_duration_since(self.since), health);
        }
        self.streak = health.next_streak(self.streak);
        self.total = self.total.saturating_add(1);
        self.since = now;
        let period = health.period(self.streak);
        let until = now + period + period.mul_f64(health.jitter * random.unit());
        self.vain = 0;
        self.stage = Stage::Out { until, passed: 0 };
        until
    }

    /// Brings the endpoint back into service.
    pub(crate) fn recover(&mut self, now: Instant) {
        (self.since, self.vain) = (now, 0);
        self.stage = Stage::Serving;
    }

    /// Hands out the one place of the trial.
    pub(crate) fn start_trial(&mut self, now: Instant) {
        if let Stage::Out { passed, .. } | Stage::Trial { passed, .. } = self.stage {
            self.stage = Stage::Trial { passed, started: now, lease: None };
        }
    }

    /// Notes that the response to a trial has begun; returns until when its body may take.
    pub(crate) fn answer_trial(&mut self, now: Instant, health: &Health) -> Option<Instant> {
        let Stage::Trial { lease, .. } = &mut self.stage else { return None };
        *lease = Some(now + health.base_ejection);
        *lease
    }

    /// Returns from when on a call may try it.
    pub(crate) const fn due(&self) -> Option<Instant> {
        match self.stage {
            Stage::Out { until, .. } => Some(until),
            Stage::Trial { lease, .. } => lease,
            Stage::Serving => None,
        }
    }

    /// Takes the place back; returns from when on it is handed out again, and whether enough
    /// trials have now succeeded.
    ///
    /// After a trial that said nothing there is a pause, as long as the trial took and a
    /// little more, which doubles each time up to the base period: or an endpoint that hangs,
    /// under callers who do not wait for long, would get every call. After one that was pushed
    /// back it is the base period, or as long as the endpoint asked.
    pub(crate) fn end_trial(
        &mut self,
        verdict: Verdict,
        now: Instant,
        health: &Health,
    ) -> (Instant, bool) {
        let Stage::Trial { passed, started, .. } = self.stage else { return (now, false) };
        let (until, passed) = match verdict {
            Verdict::Passed => (now, passed.saturating_add(1)),
            Verdict::Unsent => (now, passed),
            Verdict::PushedBack(asked) => {
                let asked = asked.unwrap_or_default().min(health.max_ejection);
                (now + asked.max(health.base_ejection), passed)
            }
            Verdict::Failed | Verdict::Nothing => {
                let took = now.saturating_duration_since(started);
                let more = health.base_ejection * (1 << self.vain.min(7)) / 100;
                self.vain = self.vain.saturating_add(1);
                let pause = took.saturating_add(more.min(health.base_ejection));
                (now + pause.min(health.max_ejection), passed)
            }
        };
        if verdict == Verdict::Passed {
            self.vain = 0;
        }
        self.stage = Stage::Out { until, passed };
        (until, passed >= health.trials_needed())
    }

    /// Forgets a past period for each time that the endpoint served for as long.
    fn forget(&mut self, mut served: Duration, health: &Health) {
        while self.streak > 0 {
            let Some(rest) = served.checked_sub(health.period(self.streak)) else { return };
            served = rest;
            self.streak -= 1;
        }
    }
}

impl Health {
    /// Returns the length of the n-th period in a row, before jitter; n counts from 1.
    fn period(&self, n: u32) -> Duration {
        let factor = self.growth.powi(i32::try_from(n - 1).unwrap_or(i32::MAX));
        let seconds = self.base_ejection.as_secs_f64() * factor;
        if seconds < self.max_ejection.as_secs_f64() {
            Duration::from_secs_f64(seconds)
        } else {
            self.max_ejection
        }
    }

    /// Returns the streak after one more ejection; what lies beyond the longest period is
    /// not remembered.
    fn next_streak(&self, streak: u32) -> u32 {
        let longest = streak > 0 && self.period(streak) >= self.max_ejection;
        if longest || self.growth == 1.0 { streak.max(1) } else { (streak + 1).min(MAX_STREAK) }
    }
}

/// No more ejections are remembered, however slowly the periods grow.
const MAX_STREAK: u32 = 64;

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
        for (served, want) in [(0, 10), (9, 20), (19, 40), (40, 40), (40 + 20 + 10, 10), (10, 10)] {
            let (until, period) = eject_after(&mut record, served, &health);
            assert_eq!(period.as_secs(), want, "after {served} s of service");
            record.recover(until);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn extremes_do_not_overflow() {
        for growth in [1.0, 1.000_000_1, 1e6] {
            let longest = crate::util::time::YEAR;
            let health = Health::new().growth(growth).max_ejection(longest).jitter(1.0);
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
        assert_eq!(end(Verdict::Nothing, until), (until + SECOND + pause, false));
        assert_eq!(end(Verdict::Unsent, until), (until + SECOND, false));
        assert!(end(Verdict::Passed, until).1);
    }
}
