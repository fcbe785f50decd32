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
    guard::Guard,
    pick::{self, Missed, Picked, has_room},
    trial::has_room_to_try,
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
    changed: Pin<Box<OwnedNotified>>,
    clock: Clock,
    place: Option<Place<T, P>>,
}

/// A picked whose service is ready, and the request for it.
type Departure<S, Req> = (Picked<S>, Req);

/// An endpoint's service that is not ready, until it is.
struct Readying<S, Req> {
    picked: Option<Picked<S>>,
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
        let changed = Box::pin(Arc::clone(&cluster.changed).notified_owned());
        Self {
            cluster,
            client,
            request: Some(request),
            exclusions,
            unready: FuturesUnordered::new(),
            failure: None,
            changed,
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
    /// Takes over a picked whose service was not ready when it was polled.
    pub(crate) fn take_over(
        &mut self,
        picked: Picked<T::Service>,
        readiness: Poll<Result<(), <T::Service as Service<Req>>::Error>>,
    ) {
        match readiness {
            Poll::Ready(Err(error)) => self.fail(picked, error.into()),
            Poll::Ready(Ok(())) | Poll::Pending => self.park(picked),
        }
    }

    /// Keeps an endpoint's service until it is ready.
    fn park(&mut self, mut picked: Picked<T::Service>) {
        picked.guard.wait();
        self.exclusions.exclude(&picked.guard);
        self.unready.push(Readying { picked: Some(picked), request: std::marker::PhantomData });
    }

    /// Notes that an endpoint failed to become ready: a failure of that endpoint. The
    /// request is still whole and goes to another.
    fn fail(&mut self, mut picked: Picked<T::Service>, error: BoxError) {
        self.exclusions.exclude(&picked.guard);
        picked.guard.fail_unsent();
        self.failure = Some(Error::not_ready(picked.guard.name(), error));
    }

    /// Looks at the parked services that were woken.
    fn poll_parked(&mut self, cx: &mut Context<'_>) -> Option<Picked<T::Service>> {
        while let Poll::Ready(Some((mut picked, result))) = self.unready.poll_next_unpin(cx) {
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
            // It has left rotation meanwhile; should it return, it may be chosen again.
            self.exclusions.readmit(picked.guard.node());
        }
        None
    }

    /// Lets go of parked services that take no call any more; should their endpoints return,
    /// they may be chosen again.
    fn forget_former(&mut self) {
        let panic = self.cluster.snapshot.load().panic;
        let takes = |parked: &Readying<_, _>| {
            parked.picked.as_ref().is_some_and(|picked| picked.guard.is_open(panic))
        };
        if self.unready.iter().all(takes) {
            return;
        }
        for parked in std::mem::take(&mut self.unready) {
            match &parked.picked {
                Some(_) if takes(&parked) => self.unready.push(parked),
                Some(picked) => self.exclusions.readmit(picked.guard.node()),
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
        if closing && self.failure.is_none() && !self.cluster.progress.is_unbuilt() {
            return None;
        }
        Some(self.failure.take().unwrap_or_else(|| self.cluster.shortage(counts)))
    }

    /// Waits for a change or for the end of patience.
    fn poll_wait(&mut self, counts: Counts, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.changed.as_mut().poll(cx).is_ready() {
            self.changed = Box::pin(Arc::clone(&self.cluster.changed).notified_owned());
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
        self.cluster.spawn_driver();
        loop {
            if let Some(picked) = self.poll_parked(cx) {
                return Poll::Ready(Ok(self.depart(picked)));
            }
            // Before the snapshot: an update between the two must not make an end of a wait.
            let told = self.cluster.progress.told();
            let (counts, closing) = match self.choose() {
                Ok(picked) => match self.offer(picked, cx) {
                    Some(picked) => return Poll::Ready(Ok(self.depart(picked))),
                    None => continue,
                },
                Err(Missed::Policy(error)) => return Poll::Ready(Err(error)),
                Err(Missed::UsedUp(_)) => {
                    return Poll::Ready(Err(Error::policy("it used up a new picker at once")));
                }
                Err(Missed::Nothing(counts)) => (counts, false),
                Err(Missed::Closed(counts)) => (counts, true),
            };
            if self.unready.is_empty()
                && let Some(error) = self.verdict(told, counts, closing)
            {
                return Poll::Ready(Err(error));
            }
            ready!(self.poll_wait(counts, cx))?;
        }
    }

    fn choose(&mut self) -> Result<Picked<T::Service>, Missed> {
        let request = self.request.as_ref().expect(ENDED);
        let attach = |target: &T| target.attach(&self.client);
        pick::pick(&self.cluster, request, &mut self.exclusions, Instant::now(), attach)
    }

    /// Returns the picked if its service is ready at once.
    fn offer(
        &mut self,
        mut picked: Picked<T::Service>,
        cx: &mut Context<'_>,
    ) -> Option<Picked<T::Service>> {
        let readiness = picked.guard.inside(|| picked.service.poll_ready(cx));
        if matches!(readiness, Poll::Ready(Ok(()))) {
            return Some(picked);
        }
        self.take_over(picked, readiness);
        None
    }

    fn depart(&mut self, picked: Picked<T::Service>) -> Departure<T::Service, Req> {
        (picked, self.request.take().expect(ENDED))
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
    type Output = (Picked<S>, Result<(), S::Error>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(picked) = &mut self.picked else { return Poll::Pending };
        let result = ready!(picked.guard.inside(|| picked.service.poll_ready(cx)));
        match self.picked.take() {
            Some(picked) => Poll::Ready((picked, result)),
            None => Poll::Pending,
        }
    }
}

/// Takes a place under the bound for a call that waited, and so holds none; returns whether there
/// is one, or no bound.
fn take_permit<T, P: Policy>(cluster: &Cluster<T, P>, guard: &mut Guard) -> bool {
    let Some(bounded) = &cluster.bounded else { return true };
    let snapshot = cluster.snapshot.load();
    let id = guard.node().id;
    let Some(index) = snapshot.nodes.iter().position(|node| node.state.id == id) else {
        return false;
    };
    let mut held = bounded.lock();
    let has_room = if guard.is_trial() {
        has_room_to_try(&snapshot, &held, index)
    } else {
        has_room(&snapshot, &held, index)
    };
    if has_room {
        guard.set_permit(held.start(bounded, id));
    }
    has_room
}
