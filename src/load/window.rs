//! The calls of one endpoint in one interval, counted for a comparison.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::health::{evidence::End, tally::Tally};

/// The calls of one endpoint that have ended since it was last compared with its peers.
#[derive(Debug, Default)]
pub(crate) struct Window {
    successes: AtomicU64,
    failures: AtomicU64,
    slow: AtomicU64,
    /// The sum of the latencies of the successes, in nanoseconds.
    spent: AtomicU64,
}

/// The greatest latency that enters the sum, 4.9 hours in nanoseconds. The sum holds a million of
/// them, so that long streams that end together do not overflow it.
const LONGEST: u64 = 1 << 44;

impl Window {
    /// Counts the end of a call. A success is slow if it took more than `slow_from` nanoseconds.
    pub(crate) fn note(&self, end: End, took: u64, slow_from: u64) {
        match end {
            End::Success => {
                self.successes.fetch_add(1, Ordering::Relaxed);
                self.spent.fetch_add(took.min(LONGEST), Ordering::Relaxed);
                if took > slow_from {
                    self.slow.fetch_add(1, Ordering::Relaxed);
                }
            }
            End::Failure => {
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Returns the counts of the window, and begins the next one.
    ///
    /// A call that ends at this moment may count as a success in one window and as slow in the next.
    pub(crate) fn take(&self) -> Tally {
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        let successes = take(&self.successes);
        Tally {
            successes,
            failures: take(&self.failures),
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
        assert_eq!(
            (tally.spent / tally.successes, tally.slow),
            (LONGEST, 10_000)
        );
    }
}
