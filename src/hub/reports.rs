//! What calls report of their endpoints, on their way to the door.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::Instant;

use super::{Change, Hub};
use crate::{
    health::standing::Period,
    node::{Door, Limits, NodeState, Verdict},
    policy::Policy,
};

impl<T: Send + Sync, P: Policy> Door for Hub<T, P> {
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
        period: Period,
        began: Instant,
        asked: Option<Duration>,
        now: Instant,
    ) {
        let Some(overload) = self.settings.health.heeded_overload() else { return };
        let is_news = || self.deadlines.nanos(began) >= node.deaf_until.load(Ordering::Relaxed);
        if !is_news() {
            return;
        }
        self.visit(now, |roster| {
            let heard = is_news() && roster.push_back(node.id, period, asked, now);
            if heard {
                let until = self.deadlines.nanos(now + overload.deafness());
                node.deaf_until.store(until, Ordering::Relaxed);
            }
            ((), Change::health(heard))
        });
    }

    fn eject(&self, id: u64, period: Period, now: Instant) {
        self.visit(now, |roster| ((), Change::health(roster.eject(id, period, now))));
    }

    fn recover(&self, id: u64, period: Period, now: Instant) {
        self.visit(now, |roster| ((), Change::health(roster.recover(id, period, now))));
    }

    fn answer_trial(&self, id: u64, period: Period, now: Instant) {
        self.visit(now, |roster| (roster.answer_trial(id, period, now), Change::Nothing));
        // When its place is free again is news for waiting calls.
        self.bell.notify_waiters();
    }

    fn end_trial(&self, id: u64, period: Period, verdict: Verdict, now: Instant) {
        self.visit(now, |roster| ((), Change::health(roster.end_trial(id, period, verdict, now))));
        // Its place, or the time of the next trial, is news for waiting calls.
        self.bell.notify_waiters();
    }
}
