//! The record of one endpoint: its name, health word, load and counters.

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
    load::{Measurement, Meter, Window},
};

/// One endpoint in a snapshot: its record and its target.
#[derive(Debug)]
pub(crate) struct Node<T> {
    pub(crate) state: Arc<NodeState>,
    pub(crate) target: T,
    /// How often the target had been replaced before this one.
    pub(crate) version: u32,
}

/// The record of one endpoint. It lasts while the key is a member, and until its calls have ended.
///
/// Each call holds one reference from its pick to its end. So the number of references, minus
/// those of nodes and of calls that wait, is the number of calls in flight. This count has no cost
/// of its own and cannot drift.
///
/// Aligned to two cache lines of 64 bytes, because processors prefetch lines in pairs: records of
/// different endpoints share none.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct NodeState {
    // The first cache line: a pick and the start of a call read it.
    pub(crate) health: HealthWord,
    /// How many references nodes hold.
    nodes: AtomicUsize,
    pub(crate) measurement: Measurement,
    /// Measures the load; none if neither the policy nor a rule of health needs it.
    pub(crate) meter: Option<Arc<Meter>>,
    cluster: Weak<dyn Reports>,
    // The second cache line: the end of a call writes it.
    pub(crate) counters: Counters,
    /// How many references calls hold that wait for the endpoint to become ready.
    waiting: AtomicUsize,
    /// How often the target was replaced.
    version: AtomicU32,
    /// Whether the service was not ready when it was last polled.
    unready: AtomicBool,
    pub(crate) id: u64,
    pub(crate) window: Window,
    pub(crate) limits: Limits,
    /// In nanoseconds since the cluster's origin. A push-back of a call that began before this
    /// counts as part of an earlier one.
    pub(crate) pushed_back_until: AtomicU64,
    pub(crate) name: Arc<str>,
}

/// Receives the reports of calls; implemented by the cluster.
pub(crate) trait Reports: Send + Sync + std::fmt::Debug {
    /// Handles the report of a call that began at `began` and has ended.
    fn report(
        &self,
        node: &NodeState,
        call: Admission,
        began: Instant,
        report: Report,
        now: Instant,
    );

    /// Handles a trial whose response has begun and has not ended.
    fn trial_answered(&self, node: &NodeState, call: Admission, now: Instant);
}

impl<T> Node<T> {
    pub(crate) fn new(state: Arc<NodeState>, target: T) -> Self {
        state.nodes.fetch_add(1, Ordering::Relaxed);
        Self {
            version: state.version(),
            state,
            target,
        }
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
        let measurement = meter
            .as_ref()
            .map(|meter| meter.start(now))
            .unwrap_or_default();
        Self {
            health: HealthWord::default(),
            nodes: AtomicUsize::new(0),
            measurement,
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

    /// Returns the same number as the `balancer` method of the cluster.
    pub(crate) fn balancer(&self) -> usize {
        self.cluster.as_ptr().cast::<()>().addr()
    }

    /// Returns whether the endpoint is a member with a weight, healthy or not.
    pub(crate) fn has_weight(&self) -> bool {
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

    /// Returns how many calls run at the endpoint or wait for it to become ready.
    #[inline]
    pub(crate) fn load(self: &Arc<Self>) -> u64 {
        Arc::strong_count(self).saturating_sub(self.nodes.load(Ordering::Relaxed)) as u64
    }

    /// Returns how many calls run at the endpoint.
    pub(crate) fn in_flight(self: &Arc<Self>) -> u64 {
        self.load()
            .saturating_sub(self.waiting.load(Ordering::Relaxed) as u64)
    }

    /// Returns the moving average of the latency, if it is measured.
    pub(crate) fn latency(&self, now: Instant) -> Option<Duration> {
        let meter = self.meter.as_ref()?;
        if !meter.has_latency() {
            return None;
        }
        Some(Duration::from_nanos(
            meter.cost(&self.measurement, now) as u64
        ))
    }

    /// Begins the next version of the service.
    pub(crate) fn begin_version(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// Counts a call that waits for the endpoint.
    pub(crate) fn begin_wait(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the count of a call that waited for the endpoint.
    pub(crate) fn end_wait(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn read(self: &Arc<Self>) -> Reading {
        self.counters.read(self.in_flight())
    }
}
