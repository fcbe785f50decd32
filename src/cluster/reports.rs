//! The reports of calls about their endpoints.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::Instant;

use super::{
    Cluster,
    core::Input,
    node::{NodeState, Reports},
};
use crate::{
    health::evidence::{Admission, Report, Verdict},
    policy::Policy,
    util::lock,
};

impl<T: Send + Sync, P: Policy> Reports for Cluster<T, P> {
    fn report(
        &self,
        node: &NodeState,
        call: Admission,
        began: Instant,
        report: Report,
        now: Instant,
    ) {
        let (id, epoch) = (node.id, call.epoch);
        match report {
            Report::Nothing => {}
            Report::Failed => self.failed(node, call, now),
            Report::Recovered => {
                self.update(now, Input::Recovered { id, epoch });
            }
            Report::PushedBack(duration) => self.pushed_back(node, call, began, duration, now),
            Report::TrialEnded(verdict) => {
                self.update(now, Input::TrialEnded { id, epoch, verdict });
                // Calls that wait may make the next trial.
                self.changed.notify_waiters();
                if let Verdict::PushedBack(duration) = verdict {
                    self.pushed_back(node, call, began, duration, now);
                }
            }
        }
    }

    fn trial_answered(&self, node: &NodeState, call: Admission, now: Instant) {
        self.update(
            now,
            Input::TrialAnswered {
                id: node.id,
                epoch: call.epoch,
            },
        );
        // Calls that wait may make the next trial once the lease has ended.
        self.changed.notify_waiters();
    }
}

impl<T, P: Policy> Cluster<T, P> {
    fn failed(&self, node: &NodeState, call: Admission, now: Instant) {
        let mut locked = lock(&self.locked);
        // Read under the lock, because a success may have cleared the count meanwhile.
        let failures = node.health.load().failures();
        let input = Input::Failed {
            id: node.id,
            epoch: call.epoch,
            failures,
        };
        let effects = locked.core.update(now, input);
        self.apply(locked, effects, None, now);
    }

    /// Lowers the capacity once for push-backs that come together. Those of calls that began before
    /// the last one that counted, or shortly after it, are ignored.
    fn pushed_back(
        &self,
        node: &NodeState,
        call: Admission,
        began: Instant,
        duration: Option<Duration>,
        now: Instant,
    ) {
        let Some(overload) = self.settings.health.active_overload() else {
            return;
        };
        let began = self.deadlines.nanos(began);
        if began < node.pushed_back_until.load(Ordering::Relaxed) {
            return;
        }
        let mut locked = lock(&self.locked);
        if began < node.pushed_back_until.load(Ordering::Relaxed) {
            return;
        }
        let input = Input::PushedBack {
            id: node.id,
            epoch: call.epoch,
            duration,
        };
        let effects = locked.core.update(now, input);
        if effects.applied {
            let until = self.deadlines.nanos(now + overload.merge_time());
            node.pushed_back_until.store(until, Ordering::Relaxed);
        }
        self.apply(locked, effects, None, now);
    }
}
