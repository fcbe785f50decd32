//! What calls report of their endpoints, on their way to the door.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::Instant;

use crate::cluster::{Change, Cluster};
use crate::{
    cluster::node::{Limits, NodeState, Reports, Verdict},
    health::standing::Epoch,
    policy::Policy,
};

impl<T: Send + Sync, P: Policy> Reports for Cluster<T, P> {
    fn limits(&self) -> Limits {
        let health = &self.settings.health;
        Limits { threshold: health.threshold(), drop_age: health.drop_age() }
    }

    fn release(&self, id: u64) {
        if let Some(loads) = &self.loads {
            loads.release(id);
        }
    }

    fn push_back(
        &self,
        node: &NodeState,
        epoch: Epoch,
        began: Instant,
        asked: Option<Duration>,
        now: Instant,
    ) {
        let Some(overload) = self.settings.health.heeded_overload() else { return };
        let is_news = || self.deadlines.nanos(began) >= node.deaf_until.load(Ordering::Relaxed);
        if !is_news() {
            return;
        }
        self.visit(now, |core| {
            let heard = is_news() && core.push_back(node.id, epoch, asked, now);
            if heard {
                let until = self.deadlines.nanos(now + overload.deafness());
                node.deaf_until.store(until, Ordering::Relaxed);
            }
            ((), Change::health(heard))
        });
    }

    fn eject(&self, id: u64, epoch: Epoch, now: Instant) {
        self.visit(now, |core| ((), Change::health(core.eject(id, epoch, now))));
    }

    fn recover(&self, id: u64, epoch: Epoch, now: Instant) {
        self.visit(now, |core| ((), Change::health(core.recover(id, epoch, now))));
    }

    fn answer_trial(&self, id: u64, epoch: Epoch, now: Instant) {
        self.visit(now, |core| (core.answer_trial(id, epoch, now), Change::Nothing));
        // When its place is free again is news for waiting calls.
        self.bell.notify_waiters();
    }

    fn end_trial(&self, id: u64, epoch: Epoch, verdict: Verdict, now: Instant) {
        self.visit(now, |core| ((), Change::health(core.end_trial(id, epoch, verdict, now))));
        // Its place, or the time of the next trial, is news for waiting calls.
        self.bell.notify_waiters();
    }
}
