//! How long a call waits, and how many calls may wait at once.

use std::{
    future::Future,
    panic::catch_unwind,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    time::{Instant, Sleep, sleep_until},
};

use crate::{cluster::Cluster, policy::Policy};

/// The timer of a call that waits.
#[derive(Default)]
pub(crate) struct WaitTimer {
    /// When the wait for an endpoint began, and when the wait for a ready one.
    since: [Option<Instant>; 2],
    /// The deadline of the cluster that last ended a sleep. The call has acted on it.
    seen: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
}

/// Counts one call among those that wait, until it is dropped.
pub(crate) struct WaitSlot<T, P: Policy>(Arc<Cluster<T, P>>);

/// Why a sleep ended.
pub(crate) enum Wakeup {
    /// A deadline of the cluster has passed, such as the trial of an ejected endpoint.
    Due,
    /// The call has waited as long as it may.
    Timeout,
}

impl WaitTimer {
    /// Sleeps until the timeout or the next deadline of the cluster.
    ///
    /// `next_due` returns the first deadline after an instant. Outside a tokio runtime there is no
    /// timer, so the wait has no timeout.
    pub(crate) fn poll(
        &mut self,
        timeout: Duration,
        has_unready: bool,
        next_due: impl FnOnce(Option<Instant>) -> Option<Instant>,
        cx: &mut Context<'_>,
    ) -> Poll<Wakeup> {
        if Handle::try_current().is_err() {
            return Poll::Pending;
        }
        let since = self.since[usize::from(has_unready)].get_or_insert_with(Instant::now);
        let end = *since + timeout;
        let due = next_due(self.seen);
        let until = due.map_or(end, |due| due.min(end));
        ready!(self.poll_sleep(until, cx));
        if until < end {
            self.seen = due;
            return Poll::Ready(Wakeup::Due);
        }
        Poll::Ready(Wakeup::Timeout)
    }

    fn poll_sleep(&mut self, until: Instant, cx: &mut Context<'_>) -> Poll<()> {
        if self.sleep.is_none() {
            self.sleep = sleep(until);
        }
        let Some(sleep) = &mut self.sleep else {
            return Poll::Pending;
        };
        if sleep.deadline() != until {
            sleep.as_mut().reset(until);
        }
        sleep.as_mut().poll(cx)
    }
}

/// Returns a timer; none in a runtime without a time driver, where tokio panics.
fn sleep(until: Instant) -> Option<Pin<Box<Sleep>>> {
    catch_unwind(|| Box::pin(sleep_until(until))).ok()
}

impl<T, P: Policy> WaitSlot<T, P> {
    /// Counts a call that waits; none if `max_waiting` calls wait already.
    pub(crate) fn take(cluster: &Arc<Cluster<T, P>>) -> Option<Self> {
        let most = cluster.settings.max_waiting;
        let one_more = |waiting| (waiting < most).then_some(waiting + 1);
        let counted = cluster
            .waiting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        counted.ok().map(|_| Self(Arc::clone(cluster)))
    }
}

impl<T, P: Policy> Drop for WaitSlot<T, P> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}
