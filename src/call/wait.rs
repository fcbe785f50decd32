//! The wait of a call that found no ready endpoint.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{sync::futures::OwnedNotified, time::Instant};
use tower_service::Service;

use super::{
    attempts::Attempts,
    deadline::{WaitSlot, WaitTimer, Wakeup},
    exclusions::Exclusions,
    pick::{self, Missed, Picked},
    unready::{UnreadyServices, take_permit},
};
use crate::{
    cluster::{Cluster, discovery::ProgressFlags},
    endpoint::Target,
    error::{BoxError, Counts, Error, ErrorKind},
    policy::{Picker, Policy},
};

/// A request that waits for an endpoint.
///
/// It waits for every endpoint that was picked and not ready, and for a new snapshot. The first
/// endpoint that becomes ready takes the call.
pub(crate) struct Waiting<Req, T, P, C>
where
    T: Target<C>,
    T::Service: Service<Req>,
    P: Policy,
{
    cluster: Arc<Cluster<T, P>>,
    client: C,
    request: Option<Req>,
    exclusions: Exclusions,
    unready: UnreadyServices<T::Service, Req>,
    /// The error of the last endpoint that failed to become ready.
    failure: Option<Error>,
    /// The next change of the cluster. Created before the snapshot is read, so that no change is
    /// missed.
    changed: Pin<Box<OwnedNotified>>,
    timer: WaitTimer,
    slot: Option<WaitSlot<T, P>>,
}

/// An endpoint whose service is ready, and the request for it.
type ReadyCall<S, Req> = (Picked<S>, Req);

impl<Req, T, P, C> Waiting<Req, T, P, C>
where
    T: Target<C>,
    T::Service: Service<Req>,
    P: Policy,
{
    pub(crate) fn new(
        cluster: Arc<Cluster<T, P>>,
        client: C,
        request: Req,
        exclusions: Exclusions,
    ) -> Self {
        let changed = Box::pin(Arc::clone(&cluster.changed).notified_owned());
        Self {
            cluster,
            client,
            request: Some(request),
            exclusions,
            unready: UnreadyServices::new(),
            failure: None,
            changed,
            timer: WaitTimer::default(),
            slot: None,
        }
    }

    pub(crate) fn attempts(&self) -> Option<&Attempts> {
        self.exclusions.attempts()
    }
}

impl<Req, T, P, C> Waiting<Req, T, P, C>
where
    T: Target<C>,
    T::Service: Service<Req>,
    <T::Service as Service<Req>>::Error: Into<BoxError>,
    P: Policy,
{
    /// Waits for an endpoint whose service was not ready when it was polled.
    pub(crate) fn wait_for(&mut self, mut picked: Picked<T::Service>) {
        picked.guard.wait();
        self.exclusions.exclude(&picked.guard);
        self.unready.push(picked);
    }

    /// Counts a failure of an endpoint that failed to become ready. The request was not sent and
    /// goes to another endpoint.
    pub(crate) fn fail(&mut self, mut picked: Picked<T::Service>, error: BoxError) {
        self.exclusions.exclude(&picked.guard);
        picked.guard.fail_unsent();
        self.failure = Some(Error::not_ready(picked.guard.name(), error));
    }

    /// Polls the services that were woken; returns the first one that is ready and takes the call.
    fn poll_unready(&mut self, cx: &mut Context<'_>) -> Option<Picked<T::Service>> {
        while let Some((mut picked, result)) = self.unready.poll_next(cx) {
            if let Err(error) = result {
                self.fail(picked, error.into());
                continue;
            }
            let panic = self.cluster.snapshot.load().panic;
            if picked.guard.renew(panic, Instant::now())
                && take_permit(&self.cluster, &mut picked.guard)
            {
                return Some(picked);
            }
            // The endpoint takes no call now; it may be picked again after its return.
            self.exclusions.readmit(picked.guard.node());
        }
        None
    }

    /// Drops the services whose endpoints no longer take the call; these may be picked again after
    /// their return.
    fn drop_closed(&mut self) {
        let panic = self.cluster.snapshot.load().panic;
        let exclusions = &mut self.exclusions;
        self.unready
            .remove_closed(panic, |guard| exclusions.readmit(guard.node()));
    }

    /// Returns the error of a call that no change of the set is expected to help; none if the
    /// call should wait.
    fn final_error(
        &mut self,
        progress: ProgressFlags,
        counts: Counts,
        all_closed: bool,
    ) -> Option<Error> {
        let empty = counts.members == 0 && self.cluster.settings.wait_when_empty;
        if (!progress.updated || empty) && !progress.finished {
            return None;
        }
        // The snapshot has eligible endpoints and all have been ejected or drained since: the next
        // snapshot follows soon.
        if all_closed && self.failure.is_none() && !self.cluster.progress.is_unbuilt() {
            return None;
        }
        Some(
            self.failure
                .take()
                .unwrap_or_else(|| self.cluster.shortage(counts)),
        )
    }

    /// Waits for a change or for the timeout.
    fn poll_wait(&mut self, counts: Counts, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.changed.as_mut().poll(cx).is_ready() {
            self.changed = Box::pin(Arc::clone(&self.cluster.changed).notified_owned());
            self.drop_closed();
            return Poll::Ready(Ok(()));
        }
        if self.slot.is_none() {
            let slot = WaitSlot::take(&self.cluster);
            self.slot = Some(slot.ok_or_else(|| too_many(counts))?);
        }
        match ready!(self.poll_timer(cx)) {
            Wakeup::Due => Poll::Ready(Ok(())),
            Wakeup::Timeout => Poll::Ready(Err(self.timed_out(counts))),
        }
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<Wakeup> {
        let settings = &self.cluster.settings;
        let has_unready = !self.unready.is_empty();
        let timeout = if has_unready {
            settings.wait_for_ready
        } else {
            settings.wait_for_endpoints
        };
        let next_due = |seen| self.cluster.next_due(seen);
        self.timer.poll(timeout, has_unready, next_due, cx)
    }

    fn timed_out(&self, counts: Counts) -> Error {
        if self.unready.is_empty() {
            return self.cluster.shortage(counts);
        }
        let counts = Counts {
            unready: self.unready.len(),
            ..counts
        };
        Error::unavailable(ErrorKind::ReadyTimeout, counts, None)
    }
}

impl<Req, T, P, C> Waiting<Req, T, P, C>
where
    T: Target<C>,
    T::Service: Service<Req>,
    <T::Service as Service<Req>>::Error: Into<BoxError>,
    P: Policy,
    P::Picker: Picker<Req>,
{
    /// Waits for an endpoint that is ready; returns it with the request.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ReadyCall<T::Service, Req>, Error>> {
        self.cluster.spawn_driver();
        loop {
            if let Some(picked) = self.poll_unready(cx) {
                return Poll::Ready(Ok(self.ready_call(picked)));
            }
            // Read before the snapshot, so that an update between the two does not end the wait.
            let progress = self.cluster.progress.flags();
            match self.pick() {
                Ok(picked) => {
                    if let Some(picked) = self.poll_picked(picked, cx) {
                        return Poll::Ready(Ok(self.ready_call(picked)));
                    }
                }
                Err(missed) => ready!(self.poll_missed(missed, progress, cx))?,
            }
        }
    }

    fn pick(&mut self) -> Result<Picked<T::Service>, Missed> {
        let request = self.request.as_ref().expect(ENDED);
        let attach = |target: &T| target.attach(&self.client);
        pick::pick(
            &self.cluster,
            request,
            &mut self.exclusions,
            Instant::now(),
            attach,
        )
    }

    /// Returns the endpoint if its service is ready at once, and waits for it otherwise.
    fn poll_picked(
        &mut self,
        mut picked: Picked<T::Service>,
        cx: &mut Context<'_>,
    ) -> Option<Picked<T::Service>> {
        match picked.poll_ready(cx) {
            Poll::Ready(Ok(())) => return Some(picked),
            Poll::Ready(Err(error)) => self.fail(picked, error.into()),
            Poll::Pending => self.wait_for(picked),
        }
        None
    }

    /// Waits after a pick that found no endpoint, or fails if waiting is of no use.
    fn poll_missed(
        &mut self,
        missed: Missed,
        progress: ProgressFlags,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        let (counts, all_closed) = match missed {
            Missed::Policy(error) => return Poll::Ready(Err(error)),
            Missed::UsedUp(_) => {
                return Poll::Ready(Err(Error::policy("it used up a new picker at once")));
            }
            Missed::Nothing(counts) => (counts, false),
            Missed::Closed(counts) => (counts, true),
        };
        if self.unready.is_empty()
            && let Some(error) = self.final_error(progress, counts, all_closed)
        {
            return Poll::Ready(Err(error));
        }
        self.poll_wait(counts, cx)
    }

    fn ready_call(&mut self, picked: Picked<T::Service>) -> ReadyCall<T::Service, Req> {
        (picked, self.request.take().expect(ENDED))
    }
}

/// The request is taken only at the end of the wait, and the future then drops the wait.
const ENDED: &str = "a wait that ended is not polled again";

fn too_many(counts: Counts) -> Error {
    Error::unavailable(ErrorKind::TooManyWaiting, counts, None)
}
