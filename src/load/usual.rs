//! The usual latency of the whole set, and the penalty of a failed call.

use std::sync::atomic::{AtomicU64, Ordering};

use super::decay::{Decay, Fading};

/// The latency of the calls that succeed, over all endpoints.
#[derive(Debug, Default)]
pub(super) struct Usual {
    /// The moving average in nanoseconds, as the bits of a double; zero before the first success.
    average: AtomicU64,
    /// When the average was last updated.
    updated: AtomicU64,
    /// The greatest latency, which fades. Only failures raise the moving latency of an endpoint
    /// above it by much.
    peak: Fading,
}

/// The usual latency before the first success, 1 ms in nanoseconds. The number is a choice; it is the
/// same for all endpoints, so it prefers none.
const FIRST: f64 = 1e6;

/// The latency that a failure counts as, as a multiple of the usual latency. 10 is a choice: above
/// the scatter of most latencies. The peak covers the others.
const PENALTY: f64 = 10.0;

/// The greatest penalty before the first success, 10 s in nanoseconds.
const MAX_PENALTY: f64 = 1e10;

/// The part of the decay time within which only one latency enters the average: mostly the cache
/// line is then read, and the average moves by less than 2 % at once.
const UPDATE_PART: f64 = 64.0;

impl Usual {
    #[inline]
    pub(super) fn latency(&self) -> f64 {
        let average = f64::from_bits(self.average.load(Ordering::Relaxed));
        if average > 0.0 { average } else { FIRST }
    }

    #[inline]
    pub(super) fn note(&self, took: f64, now: u64, decay: Decay) {
        self.update_average(took, now, decay);
        self.peak.raise_by_far(took, now, decay);
    }

    /// Returns the latency that a failure counts as, for the estimate of its endpoint.
    ///
    /// Before the first success there is no scale, so each failure doubles the estimate, within
    /// bounds.
    pub(super) fn penalty(&self, estimate: f64, now: u64, decay: Decay) -> f64 {
        if self.average.load(Ordering::Relaxed) == 0 {
            return (2.0 * estimate).clamp(PENALTY * FIRST, MAX_PENALTY);
        }
        (PENALTY * self.latency()).max(2.0 * self.peak.at(now, decay))
    }

    #[inline]
    fn update_average(&self, took: f64, now: u64, decay: Decay) {
        let relaxed = Ordering::Relaxed;
        let before = self.updated.load(relaxed);
        let average = f64::from_bits(self.average.load(relaxed));
        let since = now.saturating_sub(before) as f64;
        if average > 0.0 && since < decay.time() / UPDATE_PART {
            return;
        }
        if self
            .updated
            .compare_exchange(before, now, relaxed, relaxed)
            .is_ok()
        {
            let kept = if average > 0.0 {
                decay.left(since)
            } else {
                0.0
            };
            let next = average * kept + took * (1.0 - kept);
            self.average.store(next.to_bits(), relaxed);
        }
    }
}
