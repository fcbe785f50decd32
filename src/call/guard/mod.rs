//! The guard of one call: what it reports, however the call ends.
//!
//! The clock of the way out is read here, once, and only when the end matters to health: a
//! guard's drop has no other place for it.

#[cfg_attr(not(feature = "http"), allow(dead_code, reason = "only HTTP has bodies"))]
mod bodies;

use std::{cell::LazyCell, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    cluster::node::{Ending, Node, NodeState, Reports, Verdict},
    health::{outcome::Outcome, standing::Epoch},
    load::Sign,
};

/// One call's place on an endpoint.
#[derive(Debug)]
#[allow(unnameable_types, reason = "named only by a sealed trait")]
pub struct Guard {
    node: Arc<NodeState>,
    epoch: Epoch,
    /// Which service of the endpoint it was given.
    version: u32,
    /// The call tries an ejected endpoint, and holds the one place for that.
    trial: bool,
    /// The call waits for the endpoint to become ready, and does not run.
    parked: bool,
    stage: Stage,
    started: Instant,
    /// The call counts towards a bound.
    bounded: bool,
}

/// A epoch and a version of the service: what a call avoids, it avoids on that occasion.
pub(crate) type Occasion = (Epoch, u32);

/// The clock of one end: read when somebody asks first.
type Clock = LazyCell<Instant>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Chosen, but not sent.
    Chosen,
    Running,
    /// The endpoint's own code runs now. If the guard is dropped so, that code panicked.
    Inside,
    /// The outcome is told, and the call goes on: it waits for its body to end.
    Told(Ending),
    Closed,
}

impl Guard {
    #[inline]
    pub(crate) fn new<T>(node: &Node<T>, epoch: Epoch, trial: bool, now: Instant) -> Self {
        Self {
            node: Arc::clone(&node.state),
            version: node.version,
            epoch,
            trial,
            parked: false,
            stage: Stage::Chosen,
            started: now,
            bounded: false,
        }
    }

    /// Notes that the call counts towards a bound until it ends.
    pub(crate) fn set_bounded(&mut self) {
        self.bounded = true;
    }

    /// Gives its room back, if it holds any.
    fn give_room_back(&mut self) {
        if std::mem::take(&mut self.bounded)
            && let Some(door) = self.node.door.upgrade()
        {
            door.release(self.node.id);
        }
    }

    pub(crate) fn node(&self) -> &NodeState {
        &self.node
    }

    pub(crate) fn name(&self) -> Arc<str> {
        Arc::clone(&self.node.name)
    }

    /// Notes that the call waits for the endpoint to become ready.
    pub(crate) fn park(&mut self) {
        self.give_room_back();
        self.parked = true;
        self.node.park();
        self.node.set_unready(true);
    }

    fn unpark(&mut self) {
        if std::mem::take(&mut self.parked) {
            self.node.unpark();
        }
    }

    /// Returns whether the call tries an ejected endpoint.
    pub(crate) const fn is_trial(&self) -> bool {
        self.trial
    }

    /// Tells in which epoch, and with which service, the endpoint was chosen.
    pub(crate) const fn occasion(&self) -> Occasion {
        (self.epoch, self.version)
    }

    /// Returns whether the endpoint would take this call if it were ready.
    pub(crate) fn is_open(&self, panic: bool) -> bool {
        let standing = &self.node.standing;
        let open = match self.trial {
            true => standing.epoch() == self.epoch && !standing.is_drained(),
            false => standing.admit(panic).is_some(),
        };
        open && self.node.version() == self.version
    }

    /// Asks again after a wait: returns whether the endpoint still takes this call.
    pub(crate) fn renew(&mut self, panic: bool, now: Instant) -> bool {
        self.started = now;
        self.unpark();
        self.node.set_unready(false);
        let open = self.is_open(panic);
        if open && !self.trial {
            self.epoch = self.node.standing.epoch();
        }
        open
    }

    /// Runs the endpoint's code that sends the request: the call counts from here on.
    #[inline]
    pub(crate) fn send<R>(&mut self, call: impl FnOnce() -> R) -> R {
        // Whoever sends was ready just now.
        self.node.set_unready(false);
        self.stage = Stage::Running;
        self.inside(call)
    }

    /// Runs the endpoint's code. If it panics, that is a failure of the endpoint.
    #[inline]
    pub(crate) fn inside<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let stage = std::mem::replace(&mut self.stage, Stage::Inside);
        let result = work();
        self.stage = stage;
        result
    }

    /// Ends the call with its outcome.
    #[inline]
    pub(crate) fn close(&mut self, outcome: Outcome) {
        let ending = self.judge(outcome);
        self.node.counters.end(ending);
    }

    /// Tells what the outcome means, and returns how the call ends with it.
    #[inline]
    fn judge(&mut self, outcome: Outcome) -> Ending {
        let (ending, verdict, sign) = match outcome {
            Outcome::Success => (Ending::Success, Verdict::Good, Sign::Success),
            Outcome::Failure => (Ending::Failure, Verdict::Bad, Sign::Failure),
            Outcome::Overload => (Ending::Overload, Verdict::PushedBack(None), Sign::Overload),
            Outcome::OverloadFor(asked) => {
                (Ending::Overload, Verdict::PushedBack(Some(asked)), Sign::Overload)
            }
            Outcome::Neutral => (Ending::Neutral, Verdict::Nothing, Sign::Nothing),
        };
        self.tell_of(verdict, sign, &Clock::new(Instant::now));
        ending
    }

    /// Ends a call that could not be sent, because the endpoint failed to become ready.
    pub(crate) fn fail_unsent(&mut self) {
        self.end(Ending::Failure, Verdict::Bad, Sign::Failure);
    }

    #[inline]
    fn end(&mut self, ending: Ending, verdict: Verdict, sign: Sign) {
        self.node.counters.end(ending);
        self.tell_of(verdict, sign, &Clock::new(Instant::now));
    }

    /// Tells health and pace what the call has shown.
    #[inline]
    fn tell_of(&mut self, verdict: Verdict, sign: Sign, clock: &Clock) {
        self.stage = Stage::Closed;
        if let Some(meter) = self.node.meter.as_ref().filter(|meter| meter.minds(sign)) {
            let now = **clock;
            // An outcome counts only in the epoch in which its call was admitted.
            let counts = self.node.standing.epoch() == self.epoch;
            let window = counts.then_some(&self.node.window);
            meter.note(&self.node.pace, window, sign, self.age(now), now);
        }
        self.report(verdict, clock);
        if let Verdict::PushedBack(asked) = verdict {
            let (node, epoch, began) = (&self.node, self.epoch, self.started);
            self.report_to_cluster(|door| door.push_back(node, epoch, began, asked, **clock));
        }
    }

    #[inline]
    fn report(&self, verdict: Verdict, clock: &Clock) {
        let (node, epoch) = (&self.node, self.epoch);
        if self.trial {
            self.report_to_cluster(|door| door.end_trial(node.id, epoch, verdict, **clock));
            return;
        }
        match verdict {
            Verdict::Good if node.standing.success(epoch) => {
                self.report_to_cluster(|door| door.recover(node.id, epoch, **clock));
            }
            Verdict::Bad => self.report_to_cluster(|door| {
                if node.standing.failure(epoch, door.limits().threshold) {
                    door.eject(node.id, epoch, **clock);
                }
            }),
            Verdict::Good | Verdict::Nothing | Verdict::PushedBack(_) | Verdict::Unsent => {}
        }
    }

    /// Ends a call that nobody waited for to its end.
    fn abandon(&mut self) {
        let (clock, mut shown) = (Clock::new(Instant::now), (Verdict::Nothing, Sign::Dropped));
        self.report_to_cluster(|door| {
            if self.age(*clock) >= door.limits().drop_age {
                shown = (Verdict::Bad, Sign::Failure);
            }
        });
        self.node.counters.end(Ending::Dropped);
        self.tell_of(shown.0, shown.1, &clock);
    }

    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }

    /// Does something at the door, if the balancer still exists.
    fn report_to_cluster(&self, work: impl FnOnce(&dyn Reports)) {
        if let Some(door) = self.node.door.upgrade() {
            work(&*door);
        }
    }
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        self.unpark();
        self.give_room_back();
        match self.stage {
            Stage::Closed => {}
            Stage::Chosen if self.trial => {
                self.report(Verdict::Unsent, &Clock::new(Instant::now));
            }
            Stage::Chosen => {}
            Stage::Running => self.abandon(),
            Stage::Inside => self.end(Ending::Failure, Verdict::Bad, Sign::Failure),
            Stage::Told(ending) => self.node.counters.end(ending),
        }
    }
}
