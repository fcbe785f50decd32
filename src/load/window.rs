//! The calls of one interval, for comparisons.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::health::{evidence::End, tally::Tally};

/// The calls of one endpoint that have ended since it was last compared with its peers.
#[derive(Debug, Default)]
pub(crate) struct Window {
    successes: AtomicU64,
    failed: AtomicU64,
    slow: AtomicU64,
    /// The sum of the latencies of the successes.
    spent: AtomicU64,
}

/// No call counts as longer in the sum, or streams that end together, all weeks old, would overflow
/// it: a million of these fit. 4.9 hours.
const LONGEST: u64 = 1 << 44;

impl Window {
    /// Notes the end of a call, which is slow if it took longer than `slow_from`.
    pub(crate) fn note(&self, end: End, took: u64, slow_from: u64) {
        let more = |counter: &AtomicU64, by| {
            counter.fetch_add(by, Ordering::Relaxed);
        };
        match end {
            End::Success => {
                more(&self.successes, 1);
                more(&self.spent, took.min(LONGEST));
                if took > slow_from {
                    more(&self.slow, 1);
                }
            }
            End::Failure => more(&self.failed, 1),
            _ => {}
        }
    }

    /// Returns the window, and begins the next one.
    ///
    /// Calls end meanwhile: one may be a success in one window and slow in the other.
    pub(crate) fn take(&self) -> Tally {
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        let successes = take(&self.successes);
        Tally {
            successes,
            failures: take(&self.failed),
            slow: take(&self.slow).min(successes),
            spent: take(&self.spent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_took_years_do_not_overflow() {
        let window = Window::default();
        for _ in 0..10_000 {
            window.note(End::Success, u64::MAX, 1);
        }
        let tally = window.take();
        assert_eq!((tally.spent / tally.successes, tally.slow), (LONGEST, 10_000));
    }
}
