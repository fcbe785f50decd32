//! The counters of an endpoint, read at one moment.

use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use super::evidence::Counters;

/// The counters of an endpoint at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) in_flight: u64,
    pub(crate) successes: u64,
    pub(crate) failures: u64,
    pub(crate) overloads: u64,
    pub(crate) neutrals: u64,
    pub(crate) drops: u64,
}

impl Reading {
    /// Returns how many calls are in flight or have ended.
    pub(crate) const fn picks(&self) -> u64 {
        let Self {
            in_flight,
            successes,
            failures,
            overloads,
            neutrals,
            drops,
        } = *self;
        in_flight + successes + failures + overloads + neutrals + drops
    }
}

impl Counters {
    pub(crate) fn read(&self, in_flight: u64) -> Reading {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Reading {
            in_flight,
            successes: read(&self.successes),
            failures: read(&self.failures),
            overloads: read(&self.overloads),
            neutrals: read(&self.neutrals),
            drops: read(&self.drops),
        }
    }
}
