//! A call without a ready endpoint: all waiting is here.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::{sync::futures::OwnedNotified, time::Instant};
use tower_service::Service;

use crate::call::{
    attempts::Attempts,
    deadline::{Alarm, Clock, Place},
    exclusions::Exclusions,
    pick::{Missed, Placed},
};
use crate::{
    cluster::{Cluster, discovery::Told},
    endpoint::Target,
    error::{BoxError, Counts, Error, ErrorKind},
    policy::{Picker, Policy},
};

/// A request that is bound to no endpoint yet.
///
/// It waits for every endpoint it was offered that was not ready, and for a new snapshot,
/// and takes whatever comes first.
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
    unready: FuturesUnordered<Readying<T::Service, Req>>,
    /// What the last endpoint failed with that could not become ready.
    failure: Option<Error>,
    /// Heard since before the last look at the snapshot, so that no change is missed.
    bell: Pin<Box<OwnedNotified>>,
    clock: Clock,
    place: Option<Place<T, P>>,
}

/// A placed whose service is ready, and the request for it.
type Departure<S, Req> = (Placed<S>, Req);

/// An endpoint's service that is not ready, until it is.
struct Readying<S, Req> {
    placed: Option<Placed<S>>,
    request: std::marker::PhantomData<fn(Req)>,
}

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
        let bell = Box::pin(Arc::clone(&cluster.bell).notified_owned());
        Self {
            cluster,
            client,
            request: Some(request),
            exclusions,
            unready: FuturesUnordered::new(),
            failure: None,
            bell,
            clock: Clock::default(),
            place: None,
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
    /// Takes over a placed whose service was not ready when it was polled.
    pub(crate) fn take_over(
        &mut self,
        placed: Placed<T::Service>,
        readiness: Poll<Result<(), <T::Service as Service<Req>>::Error>>,
    ) {
        match readiness {
            Poll::Ready(Err(error)) => self.fail(placed, error.into()),
            Poll::Ready(Ok(())) | Poll::Pending => self.park(placed),
        }
    }

    /// Keeps an endpoint's service until it is ready.
    fn park(&mut self, mut placed: Placed<T::Service>) {
        placed.guard.park();
        self.exclusions.exclude(&placed.guard);
        self.unready.push(Readying { placed: Some(placed), request: std::marker::PhantomData });
    }

    /// Notes that an endpoint failed to become ready: a failure of that endpoint. The
    /// request is still whole and goes to another.
    fn fail(&mut self, mut placed: Placed<T::Service>, error: BoxError) {
        self.exclusions.exclude(&placed.guard);
        placed.guard.fail_unsent();
        self.failure = Some(Error::not_ready(placed.guard.name(), error));
    }

    /// Looks at the parked services that were woken.
    fn poll_parked(&mut self, cx: &mut Context<'_>) -> Option<Placed<T::Service>> {
        while let Poll::Ready(Some((mut placed, result))) = self.unready.poll_next_unpin(cx) {
            if let Err(error) = result {
                self.fail(placed, error.into());
                continue;
            }
            let panic = self.cluster.snapshot.load().panic;
            if placed.guard.renew(panic, Instant::now())
                && self.cluster.take_room(&mut placed.guard)
            {
                return Some(placed);
            }
            // It has left rotation meanwhile; should it return, it may be chosen again.
            self.exclusions.readmit(placed.guard.node());
        }
        None
    }

    /// Lets go of parked services that take no call any more; should their endpoints return,
    /// they may be chosen again.
    fn forget_former(&mut self) {
        let panic = self.cluster.snapshot.load().panic;
        let takes = |parked: &Readying<_, _>| {
            parked.placed.as_ref().is_some_and(|placed| placed.guard.is_open(panic))
        };
        if self.unready.iter().all(takes) {
            return;
        }
        for parked in std::mem::take(&mut self.unready) {
            match &parked.placed {
                Some(_) if takes(&parked) => self.unready.push(parked),
                Some(placed) => self.exclusions.readmit(placed.guard.node()),
                None => {}
            }
        }
    }

    /// Returns why the call should end rather than wait for a change of the set.
    fn verdict(&mut self, told: Told, counts: Counts, closing: bool) -> Option<Error> {
        let empty = counts.members == 0 && self.cluster.settings.wait_when_empty;
        if (!told.updated || empty) && !told.finished {
            return None;
        }
        // Somebody is in the snapshot, but all gates have closed: the next one is about to be
        // published.
        if closing && self.failure.is_none() && !self.cluster.progress.is_uncompiled() {
            return None;
        }
        Some(self.failure.take().unwrap_or_else(|| self.cluster.shortage(counts)))
    }

    /// Waits for a change or for the end of patience.
    fn poll_wait(&mut self, counts: Counts, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.bell.as_mut().poll(cx).is_ready() {
            self.bell = Box::pin(Arc::clone(&self.cluster.bell).notified_owned());
            self.forget_former();
            return Poll::Ready(Ok(()));
        }
        if self.place.is_none() {
            let place = Place::take(&self.cluster);
            self.place = Some(place.ok_or_else(|| too_many(counts))?);
        }
        let (settings, parked) = (&self.cluster.settings, self.unready.len());
        let patience = match parked {
            0 => settings.wait_for_endpoints,
            _ => settings.wait_for_ready,
        };
        let next_due = |seen| self.cluster.next_due(seen);
        match ready!(self.clock.poll(patience, parked > 0, next_due, cx)) {
            Alarm::Due => Poll::Ready(Ok(())),
            Alarm::Patience if parked == 0 => Poll::Ready(Err(self.cluster.shortage(counts))),
            Alarm::Patience => {
                let counts = Counts { unready: parked, ..counts };
                Poll::Ready(Err(Error::unavailable(ErrorKind::ReadyTimeout, counts, None)))
            }
        }
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
    ) -> Poll<Result<Departure<T::Service, Req>, Error>> {
        self.cluster.launch();
        loop {
            if let Some(placed) = self.poll_parked(cx) {
                return Poll::Ready(Ok(self.depart(placed)));
            }
            // Before the snapshot: an update between the two must not make an end of a wait.
            let told = self.cluster.progress.told();
            let (counts, closing) = match self.choose() {
                Ok(placed) => match self.offer(placed, cx) {
                    Some(placed) => return Poll::Ready(Ok(self.depart(placed))),
                    None => continue,
                },
                Err(Missed::Policy(error)) => return Poll::Ready(Err(error)),
                Err(Missed::UsedUp(_)) => {
                    return Poll::Ready(Err(Error::policy("it used up a new table at once")));
                }
                Err(Missed::Nothing(counts)) => (counts, false),
                Err(Missed::Exhausted(counts)) => (counts, true),
            };
            if self.unready.is_empty()
                && let Some(error) = self.verdict(told, counts, closing)
            {
                return Poll::Ready(Err(error));
            }
            ready!(self.poll_wait(counts, cx))?;
        }
    }

    fn choose(&mut self) -> Result<Placed<T::Service>, Missed> {
        let request = self.request.as_ref().expect(ENDED);
        let attach = |target: &T| target.attach(&self.client);
        self.cluster.choose(request, &mut self.exclusions, Instant::now(), attach)
    }

    /// Returns the placed if its service is ready at once.
    fn offer(
        &mut self,
        mut placed: Placed<T::Service>,
        cx: &mut Context<'_>,
    ) -> Option<Placed<T::Service>> {
        let readiness = placed.guard.inside(|| placed.service.poll_ready(cx));
        if matches!(readiness, Poll::Ready(Ok(()))) {
            return Some(placed);
        }
        self.take_over(placed, readiness);
        None
    }

    fn depart(&mut self, placed: Placed<T::Service>) -> Departure<T::Service, Req> {
        (placed, self.request.take().expect(ENDED))
    }
}

/// The request is only taken when the wait ends, and an ended wait is dropped at once.
const ENDED: &str = "a wait that ended is not polled again";

fn too_many(counts: Counts) -> Error {
    Error::unavailable(ErrorKind::TooManyWaiting, counts, None)
}

/// Nothing in it is ever pinned.
impl<S, Req> Unpin for Readying<S, Req> {}

impl<S: Service<Req>, Req> Future for Readying<S, Req> {
    type Output = (Placed<S>, Result<(), S::Error>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(placed) = &mut self.placed else { return Poll::Pending };
        let result = ready!(placed.guard.inside(|| placed.service.poll_ready(cx)));
        match self.placed.take() {
            Some(placed) => Poll::Ready((placed, result)),
            None => Poll::Pending,
        }
    }
}
