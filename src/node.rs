//! Our record of one endpoint: name, health, load.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::health::standing::{Period, Standing};

/// One endpoint in one snapshot: what is known of it, and how to reach it.
#[derive(Debug)]
pub(crate) struct Node<T> {
    pub(crate) state: Arc<NodeState>,
    pub(crate) target: T,
}

/// What is known of one endpoint. It belongs to the key while the key stays a member, and
/// to the calls that still run.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct NodeState {
    pub(crate) standing: Standing,
    pub(crate) counters: Counters,
    /// Set while the last service that was polled was not ready.
    unready: AtomicBool,
    pub(crate) id: u64,
    pub(crate) name: Arc<str>,
    pub(crate) door: Weak<dyn Door>,
}

/// Where transitions of health are decided; see [`Hub`](crate::hub::Hub).
pub(crate) trait Door: Send + Sync + std::fmt::Debug {
    /// Settings that are needed beside the way of a call.
    fn limits(&self) -> Limits;

    /// The endpoint has failed as often as it may.
    fn eject(&self, id: u64, period: Period, now: Instant);

    /// An ejected endpoint that was used all the same has succeeded.
    fn recover(&self, id: u64, period: Period, now: Instant);

    /// The one call that tried the endpoint is over.
    fn end_trial(&self, id: u64, period: Period, verdict: Verdict, now: Instant);
}

/// What a call's end means for health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Good,
    Bad,
    Nothing,
}

/// See [`Health`](crate::Health).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) threshold: u32,
    pub(crate) drop_age: Duration,
}

/// How calls began and ended. Gauges are differences of these, so they cannot drift.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    started: AtomicU64,
    successes: AtomicU64,
    failures: AtomicU64,
    overloads: AtomicU64,
    neutrals: AtomicU64,
    drops: AtomicU64,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Success,
    Failure,
    Overload,
    Neutral,
    Dropped,
}

/// A reading of the counters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) started: u64,
    pub(crate) successes: u64,
    pub(crate) failures: u64,
    pub(crate) overloads: u64,
    pub(crate) neutrals: u64,
    pub(crate) drops: u64,
}

impl Counters {
    pub(crate) fn start(&self) {
        self.started.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self, ending: Ending) {
        let counter = match ending {
            Ending::Success => &self.successes,
            Ending::Failure => &self.failures,
            Ending::Overload => &self.overloads,
            Ending::Neutral => &self.neutrals,
            Ending::Dropped => &self.drops,
        };
        // Pairs with the loads of a reading: whoever sees the end sees the start.
        counter.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn read(&self) -> Reading {
        let ended = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        Reading {
            successes: ended(&self.successes),
            failures: ended(&self.failures),
            overloads: ended(&self.overloads),
            neutrals: ended(&self.neutrals),
            drops: ended(&self.drops),
            // Last, so that no call is seen to end before it began.
            started: self.started.load(Ordering::Relaxed),
        }
    }
}

impl Reading {
    pub(crate) const fn in_flight(&self) -> u64 {
        let ended = self.successes + self.failures + self.overloads + self.neutrals + self.drops;
        self.started.saturating_sub(ended)
    }
}

impl NodeState {
    pub(crate) fn new(name: Arc<str>, door: Weak<dyn Door>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            standing: Standing::default(),
            counters: Counters::default(),
            unready: AtomicBool::new(false),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            name,
            door,
        }
    }

    pub(crate) fn is_unready(&self) -> bool {
        self.unready.load(Ordering::Relaxed)
    }

    pub(crate) fn set_unready(&self, unready: bool) {
        if self.is_unready() != unready {
            self.unready.store(unready, Ordering::Relaxed);
        }
    }
}
