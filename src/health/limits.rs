//! The limits that follow from the settings of health.

use super::{
    evidence::Limits,
    overload::Overload,
    settings::{Health, PanicMode},
};

/// Added to or taken from products like 0.7 × 10, which otherwise miss a whole number by rounding.
/// It is far above the rounding error and far below the smallest share of one endpoint.
const ROUNDING: f64 = 1e-9;

impl Health {
    /// Returns the settings for push-back, unless it changes nothing.
    pub(crate) fn active_overload(&self) -> Option<&Overload> {
        if self.overload.is_off() {
            None
        } else {
            Some(&self.overload)
        }
    }

    /// Returns whether endpoints are compared with their peers.
    pub(crate) const fn compares(&self) -> bool {
        (self.outlier_detection.is_some() && self.ejects) || self.latency_weights.is_some()
    }

    /// Returns whether endpoints are ejected.
    pub(crate) const fn ejects(&self) -> bool {
        self.ejects
    }

    /// Returns the settings by which the ends of calls are weighed.
    pub(crate) const fn limits(&self) -> Limits {
        Limits {
            threshold: self.threshold(),
            drop_age: self.drop_counts_after,
        }
    }

    /// Returns the number of failures in a row that ejects. If health is off it is unreachable.
    pub(crate) const fn threshold(&self) -> u32 {
        if self.ejects {
            self.consecutive_failures
        } else {
            u32::MAX
        }
    }

    pub(crate) const fn trials_needed(&self) -> u32 {
        self.trial_successes
    }

    pub(crate) const fn fails_in_panic(&self) -> bool {
        matches!(self.panic, PanicMode::Fail)
    }

    /// Returns how many of `candidates` may be ejected at once.
    pub(crate) fn ejection_limit(&self, candidates: usize) -> usize {
        if candidates < 2 || self.max_ejected == 0.0 {
            return 0;
        }
        let limit = (self.max_ejected * candidates as f64 + ROUNDING).floor() as usize;
        limit.clamp(1, candidates)
    }

    /// Returns whether `healthy` of `candidates` are too few, so that panic mode applies.
    pub(crate) fn is_panic(&self, healthy: usize, candidates: usize) -> bool {
        let least = self.panic_below * candidates as f64;
        candidates > 0 && (healthy == 0 || (healthy as f64) < least - ROUNDING)
    }
}
