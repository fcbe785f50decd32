//! Our record of one endpoint: name, health, load.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    health::standing::{Epoch, Standing},
    load::{Meter, Pace, Window},
};

/// One endpoint in one snapshot: what is known of it, and how to reach it.
#[derive(Debug)]
pub(crate) struct Node<T> {
    pub(crate) state: Arc<NodeState>,
    pub(crate) target: T,
    /// Tells this service of the endpoint from former and later ones.
    pub(crate) version: u32,
}

/// What is known of one endpoint. It belongs to the key while the key stays a member, and
/// to the calls that still run.
///
/// Every call holds one reference, from being chosen until it ends. So the number of
/// references, less those that nodes and waiting calls hold, is the number of calls in
/// flight: a gauge that costs nothing and cannot drift.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct NodeState {
    // A pick and the beginning of a call look at this line and no other.
    pub(crate) standing: Standing,
    /// References that nodes hold.
    nodes: AtomicUsize,
    /// What is measured of it, and by what; nothing if nobody asks.
    pub(crate) pace: Pace,
    pub(crate) meter: Option<Arc<Meter>>,
    pub(crate) door: Weak<dyn Reports>,
    // The end of a call writes to this one.
    pub(crate) counters: Counters,
    /// References of calls that wait for the endpoint to become ready.
    parked: AtomicUsize,
    /// How often the service was replaced.
    version: AtomicU32,
    /// Set while the last service that was polled was not ready.
    unready: AtomicBool,
    pub(crate) id: u64,
    pub(crate) window: Window,
    /// Push-backs of calls that began before this say nothing new; in nanoseconds, see
    /// [`Cluster`](crate::cluster::Cluster).
    pub(crate) deaf_until: AtomicU64,
    pub(crate) name: Arc<str>,
}

/// Where transitions of health are decided; see [`Cluster`](crate::cluster::Cluster).
pub(crate) trait Reports: Send + Sync + std::fmt::Debug {
    /// Settings that are needed beside the way of a call.
    fn limits(&self) -> Limits;

    /// A call that counts towards a bound is over.
    fn release(&self, id: u64);

    /// The endpoint pushed back a call that began then; perhaps for a time.
    fn push_back(
        &self,
        node: &NodeState,
        epoch: Epoch,
        began: Instant,
        asked: Option<Duration>,
        now: Instant,
    );

    /// The endpoint has failed as often as it may.
    fn eject(&self, id: u64, epoch: Epoch, now: Instant);

    /// An ejected endpoint that was used all the same has succeeded.
    fn recover(&self, id: u64, epoch: Epoch, now: Instant);

    /// The response to the call that tries the endpoint has begun.
    fn answer_trial(&self, id: u64, epoch: Epoch, now: Instant);

    /// The one call that tried the endpoint is over.
    fn end_trial(&self, id: u64, epoch: Epoch, verdict: Verdict, now: Instant);
}

/// What a call's end means for health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Good,
    Bad,
    Nothing,
    /// The endpoint pushed back; perhaps for a time.
    PushedBack(Option<Duration>),
    /// The call was not sent at all.
    Unsent,
}

/// See [`Health`](crate::Health).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) threshold: u32,
    pub(crate) drop_age: Duration,
}

/// How calls ended.
#[derive(Debug, Default)]
pub(crate) struct Counters {
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

/// A reading of an endpoint's load.
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
    #[inline]
    pub(crate) fn end(&self, ending: Ending) {
        let counter = match ending {
            Ending::Success => &self.successes,
            Ending::Failure => &self.failures,
            Ending::Overload => &self.overloads,
            Ending::Neutral => &self.neutrals,
            Ending::Dropped => &self.drops,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Reading {
    /// Returns how many calls were sent.
    pub(crate) const fn picks(&self) -> u64 {
        let Self { in_flight, successes, failures, overloads, neutrals, drops } = *self;
        in_flight + successes + failures + overloads + neutrals + drops
    }
}

impl<T> Node<T> {
    pub(crate) fn new(state: Arc<NodeState>, target: T) -> Self {
        state.nodes.fetch_add(1, Ordering::Relaxed);
        Self { version: state.version(), state, target }
    }
}

impl<T> Drop for Node<T> {
    fn drop(&mut self) {
        self.state.nodes.fetch_sub(1, Ordering::Relaxed);
    }
}

impl NodeState {
    pub(crate) fn new(
        name: Arc<str>,
        door: Weak<dyn Reports>,
        meter: Option<Arc<Meter>>,
        now: Instant,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let pace = meter.as_ref().map(|meter| meter.start(now)).unwrap_or_default();
        Self {
            pace,
            window: Window::default(),
            meter,
            deaf_until: AtomicU64::new(0),
            standing: Standing::default(),
            counters: Counters::default(),
            nodes: AtomicUsize::new(0),
            parked: AtomicUsize::new(0),
            version: AtomicU32::new(0),
            unready: AtomicBool::new(false),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            name,
            door,
        }
    }

    /// Tells whose endpoint this is; see [`Cluster::address`](crate::cluster::Cluster::address).
    pub(crate) fn balancer(&self) -> usize {
        self.door.as_ptr().cast::<()>().addr()
    }

    /// Returns whether the endpoint is a member with a weight, healthy or not.
    pub(crate) fn is_open(&self) -> bool {
        self.standing.admit(true).is_some()
    }

    #[inline]
    pub(crate) fn is_unready(&self) -> bool {
        self.unready.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set_unready(&self, unready: bool) {
        if self.is_unready() != unready {
            self.unready.store(unready, Ordering::Relaxed);
        }
    }

    /// Returns how many calls are held here now: running, or waiting for it to be ready.
    #[inline]
    pub(crate) fn load(self: &Arc<Self>) -> u64 {
        Arc::strong_count(self).saturating_sub(self.nodes.load(Ordering::Relaxed)) as u64
    }

    /// Returns the moving latency, if it is measured.
    pub(crate) fn latency(&self, now: Instant) -> Option<Duration> {
        let meter = self.meter.as_ref().filter(|meter| meter.has_latency())?;
        Some(Duration::from_nanos(meter.cost(&self.pace, now) as u64))
    }

    /// Returns how many calls run here now.
    pub(crate) fn in_flight(self: &Arc<Self>) -> usize {
        let others = self.nodes.load(Ordering::Relaxed) + self.parked.load(Ordering::Relaxed);
        Arc::strong_count(self).saturating_sub(others)
    }

    /// Notes that another service has taken the place of the former.
    pub(crate) fn replaced(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// Tells the present service from former ones.
    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// Notes that a call waits, and does not run.
    pub(crate) fn park(&self) {
        self.parked.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a call waits no longer.
    pub(crate) fn unpark(&self) {
        self.parked.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn read(self: &Arc<Self>) -> Reading {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Reading {
            in_flight: self.in_flight() as u64,
            successes: read(&self.counters.successes),
            failures: read(&self.counters.failures),
            overloads: read(&self.counters.overloads),
            neutrals: read(&self.counters.neutrals),
            drops: read(&self.counters.drops),
        }
    }
}
