//! How many calls of an endpoint have ended, and how.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::health::evidence::End;

/// Counts the calls of one endpoint by their ends.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    successes: AtomicU64,
    failures: AtomicU64,
    overloads: AtomicU64,
    neutrals: AtomicU64,
    drops: AtomicU64,
}

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

impl Counters {
    /// Counts the end of a call; a call that was never sent is not counted.
    #[inline]
    pub(crate) fn count(&self, end: End) {
        let counter = match end {
            End::Success => &self.successes,
            End::Failure => &self.failures,
            End::Overload(_) => &self.overloads,
            End::Neutral => &self.neutrals,
            End::Dropped(_) | End::BodyDropped => &self.drops,
            End::Unsent => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

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

impl Reading {
    /// Returns how many calls were sent.
    pub(crate) const fn picks(&self) -> u64 {
        let Self { in_flight, successes, failures, overloads, neutrals, drops } = *self;
        in_flight + successes + failures + overloads + neutrals + drops
    }
}
