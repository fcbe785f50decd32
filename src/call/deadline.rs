//! How long a call waits, and how many may.

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

/// Since when the call waits, and until when.
#[derive(Default)]
pub(crate) struct Clock {
    /// Since when it waits for endpoints, and since when for one that is ready.
    since: [Option<Instant>; 2],
    /// What was due when it last woke: the call has looked at that, and need not again.
    seen: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
}

/// One of the places for waiting calls.
pub(crate) struct Place<T, P: Policy>(Arc<Cluster<T, P>>);

/// What ended a sleep.
pub(crate) enum Alarm {
    /// Something is due that may end the wait: the trial of an ejected endpoint.
    Due,
    Patience,
}

impl Clock {
    /// Sleeps until patience ends or something is due. Outside a tokio runtime there is no
    /// clock to wake by, and patience has no end. `next_due` tells what is due after an instant.
    pub(crate) fn poll(
        &mut self,
        patience: Duration,
        parked: bool,
        next_due: impl FnOnce(Option<Instant>) -> Option<Instant>,
        cx: &mut Context<'_>,
    ) -> Poll<Alarm> {
        if Handle::try_current().is_err() {
            return Poll::Pending;
        }
        let end = *self.since[usize::from(parked)].get_or_insert_with(Instant::now) + patience;
        let due = next_due(self.seen);
        let until = due.map_or(end, |due| due.min(end));
        if self.sleep.is_none() {
            self.sleep = sleep(until);
        }
        let Some(sleep) = &mut self.sleep else { return Poll::Pending };
        if sleep.deadline() != until {
            sleep.as_mut().reset(until);
        }
        ready!(sleep.as_mut().poll(cx));
        if until < end {
            self.seen = due;
            return Poll::Ready(Alarm::Due);
        }
        Poll::Ready(Alarm::Patience)
    }
}

/// Returns a timer; none in a runtime that has no time driver, of which tokio tells only by
/// a panic.
fn sleep(until: Instant) -> Option<Pin<Box<Sleep>>> {
    catch_unwind(|| Box::pin(sleep_until(until))).ok()
}

impl<T, P: Policy> Place<T, P> {
    pub(crate) fn take(cluster: &Arc<Cluster<T, P>>) -> Option<Self> {
        let most = cluster.settings.max_waiting;
        let more = |waiting| (waiting < most).then_some(waiting + 1);
        let took = cluster.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        took.ok().map(|_| Self(Arc::clone(cluster)))
    }
}

impl<T, P: Policy> Drop for Place<T, P> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}
