//! What part of an endpoint's weight counts: the product of everything that lowers it.

use std::time::Duration;

use tokio::time::Instant;

use crate::health::{overload::Lowered, settings::Health};
use crate::util::fraction::FULL;

/// The parts of one endpoint; kept under the door's mutex.
#[derive(Debug)]
pub(crate) struct Factors {
    /// What the program has set, in units of 1/[`FULL`].
    set: u32,
    /// Since when the endpoint starts slowly, if it does.
    ramp: Option<Instant>,
    lowered: Option<Lowered>,
    /// After being slower than its peers.
    pub(super) pace: f64,
}

impl Default for Factors {
    fn default() -> Self {
        Self { set: FULL, ramp: None, lowered: None, pace: 1.0 }
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

    /// Notes that the endpoint pushed back.
    pub(crate) fn push_back(&mut self, asked: Option<Duration>, now: Instant, health: &Health) {
        self.lowered = Some(Lowered::lower(self.lowered, asked, now, &health.overload));
    }

    /// Returns the capacity at an instant, in units of 1/[`FULL`]: zero only if it was set so.
    pub(crate) fn capacity(&self, now: Instant, health: &Health) -> u32 {
        let ramp = self
            .ramp
            .zip(health.slow_start)
            .map_or(1.0, |(since, ramp)| ramp.factor(now.saturating_duration_since(since)));
        let lowered = self.lowered.map_or(1.0, |lowered| lowered.factor(now));
        let product = (f64::from(self.set) * ramp * lowered * self.pace).round() as u32;
        product.clamp(self.set.min(1), self.set)
    }

    /// Returns when the capacity moves next by itself; forgets what moves no more.
    pub(crate) fn next(&mut self, now: Instant, health: &Health) -> Option<Instant> {
        let ramp = self.ramp.zip(health.slow_start).and_then(|(since, ramp)| {
            let end = since + ramp.window();
            (now < end).then(|| end.min(now + ramp.window() / 128))
        });
        let lowered = self.lowered.and_then(|lowered| lowered.next(now));
        self.ramp = self.ramp.filter(|_| ramp.is_some());
        self.lowered = self.lowered.filter(|_| lowered.is_some());
        [ramp, lowered].into_iter().flatten().min()
    }
}
