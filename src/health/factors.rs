//! The capacity of an endpoint: the product of all factors that lower its weight.

use std::time::Duration;

use tokio::time::Instant;

use super::{overload::Lowered, settings::Health};
use crate::util::fraction::FULL;

/// The factors of one endpoint. The cluster changes them under its lock.
#[derive(Debug)]
pub(crate) struct Factors {
    /// The capacity that the program has set, in units of 1/[`FULL`].
    set: u32,
    /// When the ramp of the slow start began, if there is one.
    ramp: Option<Instant>,
    /// The capacity after push-back.
    lowered: Option<Lowered>,
    /// The factor of a slow endpoint, between 0 and 1: see [`LatencyWeights`](super::LatencyWeights).
    pub(super) latency: f64,
}

/// The number of steps of a ramp: each step of a linear one is less than 1 % of the weight.
const RAMP_STEPS: u32 = 128;

impl Default for Factors {
    fn default() -> Self {
        Self {
            set: FULL,
            ramp: None,
            lowered: None,
            latency: 1.0,
        }
    }
}

impl Factors {
    pub(crate) const fn set(&mut self, capacity: u32) {
        self.set = capacity;
    }

    /// Begins a slow start.
    pub(crate) fn start(&mut self, now: Instant, health: &Health) {
        self.ramp = health.slow_start.map(|_| now);
    }

    /// Lowers the capacity after a push-back, for the requested time if there is one.
    pub(crate) fn push_back(&mut self, requested: Option<Duration>, now: Instant, health: &Health) {
        self.lowered = Some(Lowered::lower(
            self.lowered,
            requested,
            now,
            &health.overload,
        ));
    }

    /// Returns the capacity at an instant, in units of 1/[`FULL`]. It is zero only if zero was set.
    pub(crate) fn capacity(&self, now: Instant, health: &Health) -> u32 {
        let ramp = match (self.ramp, health.slow_start) {
            (Some(since), Some(ramp)) => ramp.factor(now.saturating_duration_since(since)),
            _ => 1.0,
        };
        let lowered = self.lowered.map_or(1.0, |lowered| lowered.factor(now));
        let product = (f64::from(self.set) * ramp * lowered * self.latency).round() as u32;
        product.clamp(self.set.min(1), self.set)
    }

    /// Returns when the capacity changes next without an input, and clears factors that no longer
    /// change.
    pub(crate) fn next(&mut self, now: Instant, health: &Health) -> Option<Instant> {
        let ramp = self.next_ramp_step(now, health);
        let lowered = self.lowered.and_then(|lowered| lowered.next(now));
        if ramp.is_none() {
            self.ramp = None;
        }
        if lowered.is_none() {
            self.lowered = None;
        }
        [ramp, lowered].into_iter().flatten().min()
    }

    fn next_ramp_step(&self, now: Instant, health: &Health) -> Option<Instant> {
        let (since, ramp) = (self.ramp?, health.slow_start?);
        let end = since + ramp.window();
        if now < end {
            Some(end.min(now + ramp.window() / RAMP_STEPS))
        } else {
            None
        }
    }
}
