//! The record of one endpoint: name, health word, load, counters.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    health::{
        counters::{Counters, Reading},
        evidence::{Admission, HealthWord, Limits, Report},
    },
    load::{Meter, Pace, Window},
};

/// One endpoint in one snapshot: its record, and its target.
#[derive(Debug)]
pub(crate) struct Node<T> {
    pub(crate) state: Arc<NodeState>,
    pub(crate) target: T,
    /// Which service of the endpoint this is: each replacement makes the next.
    pub(crate) version: u32,
}

/// The record of one endpoint. It belongs to the key while the key stays a member, and to the
/// calls that still run.
///
/// Each call holds one reference from its pick to its end. So the number of references, less
/// those of nodes and of calls that wait, is the number of calls in flight: a gauge that costs
/// nothing and cannot drift.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct NodeState {
    // The first line: a pick and the start of a call read it.
    pub(crate) health: HealthWord,
    /// References that nodes hold.
    nodes: AtomicUsize,
    /// What is measured of the endpoint, and by what; none if nothing is.
    pub(crate) pace: Pace,
    pub(crate) meter: Option<Arc<Meter>>,
    cluster: Weak<dyn Reports>,
    // The second line: the end of a call writes it.
    pub(crate) counters: Counters,
    /// References of calls that wait for the endpoint to become ready.
    waiting: AtomicUsize,
    /// How often the service was replaced.
    version: AtomicU32,
    /// Set while the last service that was polled was not ready.
    unready: AtomicBool,
    pub(crate) id: u64,
    pub(crate) window: Window,
    pub(crate) limits: Limits,
    /// Calls that began before this, in nanoseconds since the cluster's origin, push back for
    /// the same reason as an earlier one.
    pub(crate) pushed_back_until: AtomicU64,
    pub(crate) name: Arc<str>,
}

/// Takes the reports of calls; the cluster.
pub(crate) trait Reports: Send + Sync + std::fmt::Debug {
    /// A call that began then has ended, and the cluster has to know.
    fn report(
        &self,
        node: &NodeState,
        call: Admission,
        began: Instant,
        report: Report,
        now: Instant,
    );

    /// The response to a trial has begun, and its end decides.
    fn trial_answered(&self, node: &NodeState, call: Admission, now: Instant);
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
        cluster: Weak<dyn Reports>,
        meter: Option<Arc<Meter>>,
        limits: Limits,
        now: Instant,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let pace = meter.as_ref().map(|meter| meter.start(now)).unwrap_or_default();
        Self {
            health: HealthWord::default(),
            nodes: AtomicUsize::new(0),
            pace,
            meter,
            cluster,
            counters: Counters::default(),
            waiting: AtomicUsize::new(0),
            version: AtomicU32::new(0),
            unready: AtomicBool::new(false),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            window: Window::default(),
            limits,
            pushed_back_until: AtomicU64::new(0),
            name,
        }
    }

    /// Returns the cluster, if it still exists.
    pub(crate) fn cluster(&self) -> Option<Arc<dyn Reports>> {
        self.cluster.upgrade()
    }

    /// Returns a number that all endpoints of one balancer share.
    pub(crate) fn balancer(&self) -> usize {
        self.cluster.as_ptr().cast::<()>().addr()
    }

    /// Returns whether the endpoint is a member with a weight, healthy or not.
    pub(crate) fn is_open(&self) -> bool {
        self.health.admit(true).is_some()
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

    /// Returns how many calls the endpoint holds: those that run there, and those that wait for
    /// it to become ready.
    #[inline]
    pub(crate) fn load(self: &Arc<Self>) -> u64 {
        Arc::strong_count(self).saturating_sub(self.nodes.load(Ordering::Relaxed)) as u64
    }

    /// Returns how many calls run at the endpoint.
    pub(crate) fn in_flight(self: &Arc<Self>) -> u64 {
        self.load().saturating_sub(self.waiting.load(Ordering::Relaxed) as u64)
    }

    /// Returns the moving latency, if it is measured.
    pub(crate) fn latency(&self, now: Instant) -> Option<Duration> {
        let meter = self.meter.as_ref()?;
        if !meter.has_latency() {
            return None;
        }
        Some(Duration::from_nanos(meter.cost(&self.pace, now) as u64))
    }

    /// Notes that another service has taken the place of the former.
    pub(crate) fn replaced(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// Notes that a call has begun to wait here.
    pub(crate) fn begin_wait(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a call no longer waits here.
    pub(crate) fn end_wait(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn read(self: &Arc<Self>) -> Reading {
        self.counters.read(self.in_flight())
    }
}
