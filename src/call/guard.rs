//! The guard of one call: counts the call as in flight, and reports its end.
//!
//! The end reads the clock at most once, and only if health, a trial or a measurement needs the
//! time.

use std::{cell::LazyCell, mem, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    cluster::node::{Node, NodeState},
    health::{
        evidence::{Admission, AdmissionKind, End, Epoch, Report},
        outcome::Outcome,
    },
    load::bounded::Permit,
};

/// One call at one endpoint, in flight until the guard is closed or dropped.
#[derive(Debug)]
#[allow(unnameable_types, reason = "only named by a sealed trait")]
pub struct Guard {
    node: Arc<NodeState>,
    call: Admission,
    /// The version of the endpoint's service that the call uses.
    version: u32,
    stage: Stage,
    /// When the endpoint was picked; after a wait, when it became ready.
    started: Instant,
    /// Counts the call under a bound, if there is one.
    permit: Option<Permit>,
}

/// How far the call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The request was not sent yet.
    Picked,
    /// The call waits for the endpoint to become ready.
    Waiting,
    /// The request was sent.
    Running,
    /// The outcome was reported; the body has not ended yet.
    #[cfg_attr(
        not(feature = "http"),
        allow(dead_code, reason = "only HTTP has bodies")
    )]
    Judged(End),
    Closed,
}

/// An epoch of an endpoint, and a version of its service.
///
/// A call that excludes an endpoint excludes it on one occasion only.
pub(crate) type Occasion = (Epoch, u32);

/// The time of an end, read at its first use.
type LazyNow = LazyCell<Instant>;

impl Guard {
    #[inline]
    pub(crate) fn new<T>(
        node: &Node<T>,
        call: Admission,
        permit: Option<Permit>,
        now: Instant,
    ) -> Self {
        Self {
            node: Arc::clone(&node.state),
            call,
            version: node.version,
            stage: Stage::Picked,
            started: now,
            permit,
        }
    }

    pub(crate) fn node(&self) -> &NodeState {
        &self.node
    }

    pub(crate) fn name(&self) -> Arc<str> {
        Arc::clone(&self.node.name)
    }

    pub(crate) const fn kind(&self) -> AdmissionKind {
        self.call.kind
    }

    /// Returns whether the call is the trial of an ejected endpoint.
    pub(crate) fn is_trial(&self) -> bool {
        self.call.kind == AdmissionKind::Trial
    }

    /// Returns the epoch of the pick, and the version of the service.
    pub(crate) const fn occasion(&self) -> Occasion {
        (self.call.epoch, self.version)
    }

    /// Starts a wait for the endpoint to become ready; returns the permit of a bound.
    pub(crate) fn wait(&mut self) {
        self.permit = None;
        self.stage = Stage::Waiting;
        self.node.begin_wait();
        self.node.set_unready(true);
    }

    fn end_wait(&mut self) {
        if self.stage == Stage::Waiting {
            self.stage = Stage::Picked;
            self.node.end_wait();
        }
    }

    /// Returns whether the endpoint takes this call as soon as it is ready.
    pub(crate) fn takes_call(&self, panic: bool) -> bool {
        let health = &self.node.health;
        let open = if self.is_trial() {
            let word = health.load();
            word.epoch() == self.call.epoch && !word.is_drained()
        } else {
            health.admit(panic).is_some()
        };
        open && self.node.version() == self.version
    }

    /// Ends a wait for an endpoint that is now ready; returns whether it still takes the call.
    pub(crate) fn renew(&mut self, panic: bool, now: Instant) -> bool {
        self.started = now;
        self.end_wait();
        self.node.set_unready(false);
        let open = self.takes_call(panic);
        if open && !self.is_trial() {
            self.call.epoch = self.node.health.epoch();
        }
        open
    }

    /// Counts the call under a bound.
    pub(crate) fn set_permit(&mut self, permit: Permit) {
        self.permit = Some(permit);
    }

    /// Runs the code that sends the request.
    #[inline]
    pub(crate) fn send<R>(&mut self, call: impl FnOnce() -> R) -> R {
        self.node.set_unready(false);
        self.stage = Stage::Running;
        self.inside(call)
    }

    /// Runs code of the endpoint; a panic in it counts as a failure of the endpoint.
    #[inline]
    pub(crate) fn inside<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let on_panic = FailOnPanic(self);
        let result = work();
        mem::forget(on_panic);
        result
    }

    /// Ends the call with its outcome.
    #[inline]
    pub(crate) fn close(&mut self, outcome: Outcome) {
        self.end(outcome.into(), &LazyNow::new(Instant::now));
    }

    /// Ends a call whose endpoint failed to become ready; the request was not sent.
    pub(crate) fn fail_unsent(&mut self) {
        self.end(End::Failure, &LazyNow::new(Instant::now));
    }

    #[inline]
    fn end(&mut self, end: End, now: &LazyNow) {
        // A body or future that is polled again after a panic does not end its call twice.
        if self.stage == Stage::Closed {
            return;
        }
        self.end_wait();
        self.stage = Stage::Closed;
        // Dropped before the report, which wakes calls that may take the permit.
        self.permit = None;
        self.node.counters.count(end);
        self.report(end, now);
    }

    /// Reports an end to the meter, to health and, if health needs it, to the cluster.
    #[inline]
    fn report(&self, end: End, now: &LazyNow) {
        self.measure(end, now);
        let report = self.node.health.end(self.call, end, &self.node.limits);
        if report == Report::Nothing {
            return;
        }
        if let Some(cluster) = self.node.cluster() {
            cluster.report(&self.node, self.call, self.started, report, **now);
        }
    }

    #[inline]
    fn measure(&self, end: End, now: &LazyNow) {
        let Some(meter) = &self.node.meter else {
            return;
        };
        let end = if end.is_failure(&self.node.limits) {
            End::Failure
        } else {
            end
        };
        if !meter.measures(end) {
            return;
        }
        let now = **now;
        let in_epoch = self.node.health.epoch() == self.call.epoch;
        let window = if in_epoch {
            Some(&self.node.window)
        } else {
            None
        };
        meter.note(&self.node.measurement, window, end, self.age(now), now);
    }

    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }
}

/// Calls that last until the end of the response's body.
#[cfg_attr(
    not(feature = "http"),
    allow(dead_code, reason = "only HTTP has bodies")
)]
impl Guard {
    /// Moves the call to another guard and closes this one.
    pub(crate) fn hand_over(&mut self) -> Self {
        Self {
            node: Arc::clone(&self.node),
            call: self.call,
            version: self.version,
            stage: mem::replace(&mut self.stage, Stage::Closed),
            started: self.started,
            permit: self.permit.take(),
        }
    }

    /// Reports that the response has begun. A trial then holds a lease: if the body takes longer,
    /// another call may try the endpoint.
    pub(crate) fn answer(&self) {
        if self.is_trial()
            && self.stage == Stage::Running
            && let Some(cluster) = self.node.cluster()
        {
            cluster.trial_answered(&self.node, self.call, Instant::now());
        }
    }

    /// Reports the outcome of a call before its body ends, unless a panic has ended the call.
    pub(crate) fn report_outcome(&mut self, outcome: Outcome) {
        if self.stage == Stage::Closed {
            return;
        }
        let end = outcome.into();
        self.stage = Stage::Judged(end);
        self.report(end, &LazyNow::new(Instant::now));
    }

    /// Ends a call whose outcome was reported before.
    pub(crate) fn finish(&mut self) {
        if let Stage::Judged(end) = self.stage {
            self.stage = Stage::Closed;
            self.node.counters.count(end);
        }
    }

    /// Ends a call whose body the caller dropped after a good head.
    pub(crate) fn end_body_dropped(&mut self) {
        if self.stage == Stage::Running {
            self.end(End::BodyDropped, &LazyNow::new(Instant::now));
        }
    }
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        if self.stage == Stage::Closed {
            return;
        }
        self.end_wait();
        // Dropped before the report, which wakes calls that may take the permit.
        self.permit = None;
        let now = LazyNow::new(Instant::now);
        match self.stage {
            Stage::Running => self.end(End::Dropped(self.age(*now)), &now),
            Stage::Judged(end) => self.node.counters.count(end),
            Stage::Picked if self.is_trial() => self.report(End::Unsent, &now),
            Stage::Picked | Stage::Waiting | Stage::Closed => {}
        }
    }
}

/// Ends the call as a failure when it is dropped by a panic of the endpoint's code.
struct FailOnPanic<'a>(&'a mut Guard);

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        self.0.end(End::Failure, &LazyNow::new(Instant::now));
    }
}

impl From<Outcome> for End {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Success => Self::Success,
            Outcome::Failure => Self::Failure,
            Outcome::Overload => Self::Overload(None),
            Outcome::OverloadFor(duration) => Self::Overload(Some(duration)),
            Outcome::Neutral => Self::Neutral,
        }
    }
}
