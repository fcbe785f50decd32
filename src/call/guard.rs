//! The guard of one call: it counts the call in and out, and reports its end, however it ends.
//!
//! The clock is read at most once at the end, and only if something needs the time: health, a
//! trial, or a measurement.

use std::{cell::LazyCell, mem, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    cluster::{
        core::Occasion,
        node::{Node, NodeState},
    },
    health::{
        evidence::{Admission, AdmissionKind, End, Report},
        outcome::Outcome,
    },
    load::bounded::Permit,
};

/// One call's place on an endpoint.
#[derive(Debug)]
#[allow(unnameable_types, reason = "only named by a sealed trait")]
pub struct Guard {
    node: Arc<NodeState>,
    call: Admission,
    /// Which service of the endpoint the call was given.
    version: u32,
    stage: Stage,
    /// When the endpoint was picked; after a wait, when it became ready.
    started: Instant,
    /// The call's place under a bound, if there is one.
    permit: Option<Permit>,
}

/// How far the call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The endpoint was picked, and the request was not sent.
    Picked,
    /// The call waits for the endpoint to become ready.
    Waiting,
    /// The request was sent.
    Running,
    /// The outcome was reported, and the call goes on until its body ends.
    #[cfg_attr(not(feature = "http"), allow(dead_code, reason = "only HTTP has bodies"))]
    Judged(End),
    Closed,
}

/// The time of one end, read when it is needed first.
type Clock = LazyCell<Instant>;

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

    /// Returns whether the call tries an ejected endpoint.
    pub(crate) fn is_trial(&self) -> bool {
        self.call.kind == AdmissionKind::Trial
    }

    /// Returns in which epoch, and with which service, the endpoint was picked.
    pub(crate) const fn occasion(&self) -> Occasion {
        (self.call.epoch, self.version)
    }

    /// Notes that the call waits for the endpoint to become ready; it gives its place under a
    /// bound back.
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

    /// Returns whether the endpoint would take this call if it were ready.
    pub(crate) fn is_open(&self, panic: bool) -> bool {
        let health = &self.node.health;
        let open = if self.is_trial() {
            let word = health.load();
            word.epoch() == self.call.epoch && !word.is_drained()
        } else {
            health.admit(panic).is_some()
        };
        open && self.node.version() == self.version
    }

    /// Ends a wait: returns whether the endpoint, now ready, still takes the call.
    pub(crate) fn renew(&mut self, panic: bool, now: Instant) -> bool {
        self.started = now;
        self.end_wait();
        self.node.set_unready(false);
        let open = self.is_open(panic);
        if open && !self.is_trial() {
            self.call.epoch = self.node.health.epoch();
        }
        open
    }

    /// Gives the call a place under a bound.
    pub(crate) fn set_permit(&mut self, permit: Permit) {
        self.permit = Some(permit);
    }

    /// Runs the code of the endpoint's service that sends the request.
    #[inline]
    pub(crate) fn send<R>(&mut self, call: impl FnOnce() -> R) -> R {
        // The service was ready just now.
        self.node.set_unready(false);
        self.stage = Stage::Running;
        self.inside(call)
    }

    /// Runs the endpoint's code: a panic in it is a failure of the endpoint.
    #[inline]
    pub(crate) fn inside<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let panicking = Panicking(self);
        let result = work();
        mem::forget(panicking);
        result
    }

    /// Ends the call with its outcome.
    #[inline]
    pub(crate) fn close(&mut self, outcome: Outcome) {
        self.end(outcome.into(), &Clock::new(Instant::now));
    }

    /// Ends a call that was not sent because the endpoint failed to become ready.
    pub(crate) fn fail_unsent(&mut self) {
        self.end(End::Failure, &Clock::new(Instant::now));
    }

    #[inline]
    fn end(&mut self, end: End, clock: &Clock) {
        self.end_wait();
        self.stage = Stage::Closed;
        self.node.counters.count(end);
        self.report(end, clock);
    }

    /// Reports an end to measurement, health and, if need be, the cluster.
    #[inline]
    fn report(&self, end: End, clock: &Clock) {
        self.measure(end, clock);
        let report = self.node.health.end(self.call, end, &self.node.limits);
        if report == Report::Nothing {
            return;
        }
        if let Some(cluster) = self.node.cluster() {
            cluster.report(&self.node, self.call, self.started, report, **clock);
        }
    }

    #[inline]
    fn measure(&self, end: End, clock: &Clock) {
        let Some(meter) = &self.node.meter else { return };
        let end = if end.is_failure(&self.node.limits) { End::Failure } else { end };
        if !meter.minds(end) {
            return;
        }
        let now = **clock;
        let in_epoch = self.node.health.epoch() == self.call.epoch;
        let window = if in_epoch { Some(&self.node.window) } else { None };
        meter.note(&self.node.pace, window, end, self.age(now), now);
    }

    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }
}

/// Calls that go on after their response has begun, until a body ends.
#[cfg_attr(not(feature = "http"), allow(dead_code, reason = "only HTTP has bodies"))]
impl Guard {
    /// Hands the call over to another guard; this one has nothing left to do.
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

    /// Notes that the response has begun and its end decides: an endpoint on trial may be tried
    /// by another call if that takes long.
    pub(crate) fn answer(&self) {
        if self.is_trial()
            && let Some(cluster) = self.node.cluster()
        {
            cluster.trial_answered(&self.node, self.call, Instant::now());
        }
    }

    /// Reports the outcome of a call that goes on until its body ends.
    pub(crate) fn tell(&mut self, outcome: Outcome) {
        let end = outcome.into();
        self.stage = Stage::Judged(end);
        self.report(end, &Clock::new(Instant::now));
    }

    /// Ends a call whose outcome was reported.
    pub(crate) fn finish(&mut self) {
        if let Stage::Judged(end) = self.stage {
            self.stage = Stage::Closed;
            self.node.counters.count(end);
        }
    }

    /// Ends a call whose caller has seen a good head, and wants no more of the body.
    pub(crate) fn let_go(&mut self) {
        if self.stage == Stage::Running {
            self.end(End::BodyDropped, &Clock::new(Instant::now));
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
        // Before the report: the calls that it wakes find the place free.
        self.permit = None;
        let clock = Clock::new(Instant::now);
        match self.stage {
            Stage::Running => self.end(End::Dropped(self.age(*clock)), &clock),
            Stage::Judged(end) => self.node.counters.count(end),
            Stage::Picked if self.is_trial() => self.report(End::Unsent, &clock),
            Stage::Picked | Stage::Waiting | Stage::Closed => {}
        }
    }
}

/// Ends the call as a failure if it is dropped: then the endpoint's code has panicked.
struct Panicking<'a>(&'a mut Guard);

impl Drop for Panicking<'_> {
    fn drop(&mut self) {
        self.0.permit = None;
        self.0.end(End::Failure, &Clock::new(Instant::now));
    }
}

impl From<Outcome> for End {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Success => Self::Success,
            Outcome::Failure => Self::Failure,
            Outcome::Overload => Self::Overload(None),
            Outcome::OverloadFor(asked) => Self::Overload(Some(asked)),
            Outcome::Neutral => Self::Neutral,
        }
    }
}
