//! When each endpoint is checked, and what its results in a row mean.

use std::collections::{BTreeSet, HashMap};

use tokio::time::Instant;

use super::Checks;
use crate::util::random::Random;

/// The checked endpoints, by id. It is pure: time is an argument.
#[derive(Debug)]
pub(super) struct Rounds {
    streaks: HashMap<u64, Streak>,
    /// The times of the next checks, without the endpoints whose check runs.
    due: BTreeSet<(Instant, u64)>,
    random: Random,
}

/// The results of one endpoint in a row.
#[derive(Debug, Default, Clone, Copy)]
struct Streak {
    passed: u32,
    failed: u32,
}

/// What a result changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    /// Checks have passed [`rise`](Checks::rise) times in a row.
    Passing,
    /// Checks have failed at least [`fall`](Checks::fall) times in a row.
    Failing,
    Nothing,
}

impl Streak {
    const fn next(self, passed: bool) -> Self {
        if passed {
            Self {
                passed: self.passed.saturating_add(1),
                failed: 0,
            }
        } else {
            Self {
                passed: 0,
                failed: self.failed.saturating_add(1),
            }
        }
    }
}

impl Rounds {
    pub(super) fn new(seed: u64) -> Self {
        let random = Random::seeded(seed);
        Self {
            streaks: HashMap::new(),
            due: BTreeSet::new(),
            random,
        }
    }

    /// Takes the ids of the members. New ones have their first check within an interval.
    pub(super) fn members<R>(&mut self, ids: &[u64], checks: &Checks<R>, now: Instant) {
        let mut former = std::mem::take(&mut self.streaks);
        for &id in ids {
            let streak = former.remove(&id);
            if streak.is_none() {
                self.due
                    .insert((now + checks.interval.mul_f64(self.random.unit()), id));
            }
            self.streaks.insert(id, streak.unwrap_or_default());
        }
        if !former.is_empty() {
            self.due.retain(|(_, id)| self.streaks.contains_key(id));
        }
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.due.first().map(|&(at, _)| at)
    }

    /// Removes and returns an endpoint whose check is due.
    pub(super) fn take(&mut self, now: Instant) -> Option<u64> {
        let &(at, id) = self.due.first()?;
        if at > now {
            return None;
        }
        self.due.remove(&(at, id));
        Some(id)
    }

    /// Notes a result, and sets the time of the next check.
    pub(super) fn result<R>(
        &mut self,
        id: u64,
        passed: bool,
        checks: &Checks<R>,
        now: Instant,
    ) -> Finding {
        let Some(streak) = self.streaks.get_mut(&id) else {
            return Finding::Nothing;
        };
        let more = checks.interval.mul_f64(checks.jitter * self.random.unit());
        self.due.insert((now + checks.interval + more, id));
        *streak = streak.next(passed);
        if streak.passed == checks.rise {
            Finding::Passing
        } else if streak.failed >= checks.fall {
            Finding::Failing
        } else {
            Finding::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn results_in_a_row_are_counted() {
        let (checks, now) = (Checks::new(()).rise(2).fall(3), Instant::now());
        let mut rounds = Rounds::new(1);
        rounds.members(&[7], &checks, now);
        let mut findings = |results: &str| {
            let finding = |result| match rounds.result(7, result == '+', &checks, now) {
                Finding::Passing => 'p',
                Finding::Failing => 'f',
                Finding::Nothing => '.',
            };
            results.chars().map(finding).collect::<String>()
        };
        assert_eq!(findings("+++--+---"), ".p......f");
        assert_eq!(findings("--+-++"), "ff...p");
    }

    #[tokio::test(start_paused = true)]
    async fn checks_come_within_the_interval_and_after_it() {
        let (checks, start) = (Checks::new(()).jitter(0.5), Instant::now());
        let mut rounds = Rounds::new(1);
        let ids: Vec<_> = (0..100).collect();
        rounds.members(&ids, &checks, start);
        assert!(
            rounds
                .due
                .iter()
                .all(|(at, _)| *at < start + checks.interval)
        );
        let now = start + checks.interval;
        let mut taken: Vec<_> = std::iter::from_fn(|| rounds.take(now)).collect();
        taken.sort_unstable();
        assert_eq!(taken, ids);
        for id in taken {
            rounds.result(id, true, &checks, now);
        }
        let within = now + checks.interval..=now + checks.interval + Duration::from_millis(2_500);
        assert!(rounds.due.iter().all(|(at, _)| within.contains(at)));
        rounds.members(&[5], &checks, now);
        assert_eq!(rounds.due.len(), 1, "an endpoint that left is not checked");
        assert_eq!(rounds.result(6, false, &checks, now), Finding::Nothing);
        assert_eq!(rounds.due.len(), 1);
    }
}
