//! The measured load of one endpoint.

use std::sync::atomic::{AtomicU64, Ordering};

use super::decay::{Decay, Fading};

/// The measured load of one endpoint. Instants are nanoseconds since the meter's origin.
#[derive(Debug, Default)]
pub(crate) struct Measurement {
    /// The moving latency in nanoseconds, as far as it was measured.
    latency: Fading,
    failures: Fading,
    /// When a latency was last noted.
    seen: AtomicU64,
}

/// The latency to which the estimate of an endpoint without calls moves, as a part of the usual
/// latency. It is below 1 so that the endpoint gets a call, and not so far below that it gets all.
const UNKNOWN: f64 = 0.5;

/// The number of parts of the decay time. Within one part, only peaks and the first latency are
/// noted, so under load a call mostly reads and writes nothing. A part changes the average by less
/// than 0.03 %.
const PARTS: f64 = 4096.0;

impl Measurement {
    /// Creates the record of an endpoint that joins at an instant.
    pub(super) fn new(now: u64) -> Self {
        Self {
            seen: AtomicU64::new(now),
            ..Self::default()
        }
    }

    /// Returns the estimated latency. It begins at the usual latency, and moves to half of it while
    /// there are no calls.
    #[inline]
    pub(super) fn estimate(&self, usual: f64, now: u64, decay: Decay) -> f64 {
        let age = now.saturating_sub(self.seen.load(Ordering::Relaxed));
        let fade = decay.left(age as f64);
        let measured = if self.latency.is_zero() {
            usual * fade
        } else {
            self.latency.at(now, decay)
        };
        measured + UNKNOWN * usual * (1.0 - fade)
    }

    /// Returns whether a failed call was added at any time.
    #[inline]
    pub(super) fn has_failures(&self) -> bool {
        !self.failures.is_zero()
    }

    /// Returns how many failed calls count as load.
    pub(super) fn failures(&self, now: u64, decay: Decay) -> f64 {
        self.failures.at(now, decay)
    }

    pub(super) fn add_failure(&self, now: u64, decay: Decay) {
        self.failures.update(now, decay, |left| left + 1.0);
    }

    /// Raises the moving latency to a value that is at least the present estimate. From then on the
    /// whole estimate fades as a measured latency.
    pub(super) fn raise(&self, to: f64, now: u64, decay: Decay) {
        self.latency.raise(to, now, decay);
        self.seen.fetch_max(now, Ordering::Relaxed);
    }

    /// Adds a latency to the moving average: a greater one replaces it, a smaller one counts for the
    /// time since the last (the peak-sensitive average of Finagle's `PeakEwma`).
    #[inline]
    pub(super) fn average(&self, took: f64, now: u64, decay: Decay) {
        let part = decay.time() / PARTS;
        let since = now.saturating_sub(self.seen.load(Ordering::Relaxed)) as f64;
        if since < part && self.latency.exceeds(took, now as f64 - since, decay) {
            return;
        }
        // Of several calls that end together, only the one that moves `seen` counts the time since.
        let before = self.seen.fetch_max(now, Ordering::Relaxed);
        let kept = decay.left(now.saturating_sub(before) as f64);
        self.latency.update(now, decay, |faded| {
            let last = faded / kept;
            if took >= last {
                took
            } else {
                faded + took * (1.0 - kept)
            }
        });
    }
}
