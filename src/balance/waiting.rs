//! A call without a ready endpoint: all waiting is here.

use std::{
    future::Future,
    panic::catch_unwind,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::{
    runtime::Handle,
    sync::futures::OwnedNotified,
    time::{Instant, Sleep, sleep_until},
};
use tower_service::Service;

use super::{
    attempts::Attempts,
    avoid::Avoid,
    choose::{Missed, Seat},
};
use crate::{
    discover::progress::Told,
    endpoint::Target,
    error::{BoxError, Counts, Error, ErrorKind},
    hub::Hub,
    policy::{Pick, Policy},
};

/// A request that is bound to no endpoint yet.
///
/// It waits for every endpoint it was offered that was not ready, and for a new snapshot,
/// and takes whatever comes first.
pub(super) struct Waiting<Req, T, P, C>
where
    T: Target<C>,
    T::Service: Service<Req>,
    P: Policy,
{
    hub: Arc<Hub<T, P>>,
    client: C,
    request: Option<Req>,
    avoid: Avoid,
    unready: FuturesUnordered<Readying<T::Service, Req>>,
    /// What the last endpoint failed with that could not become ready.
    failure: Option<Error>,
    /// Heard since before the last look at the snapshot, so that no change is missed.
    bell: Pin<Box<OwnedNotified>>,
    clock: Clock,
    place: Option<Place<T, P>>,
}

/// A seat whose service is ready, and the request for it.
type Departure<S, Req> = (Seat<S>, Req);

/// Since when the call waits, and until when.
#[derive(Default)]
struct Clock {
    /// Since when it waits for endpoints, and since when for one that is ready.
    since: [Option<Instant>; 2],
    /// What was due when it last woke: the call has looked at that, and need not again.
    seen: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
}

/// One of the places for waiting calls.
struct Place<T, P: Policy>(Arc<Hub<T, P>>);

/// An endpoint's service that is not ready, until it is.
struct Readying<S, Req> {
    seat: Option<Seat<S>>,
    request: std::marker::PhantomData<fn(Req)>,
}

impl<Req, T, P, C> Waiting<Req, T, P, C>
where
    T: Target<C>,
    T::Service: Service<Req>,
    P: Policy,
{
    pub(super) fn new(hub: Arc<Hub<T, P>>, client: C, request: Req, avoid: Avoid) -> Self {
        let bell = Box::pin(Arc::clone(&hub.bell).notified_owned());
        Self {
            hub,
            client,
            request: Some(request),
            avoid,
            unready: FuturesUnordered::new(),
            failure: None,
            bell,
            clock: Clock::default(),
            place: None,
        }
    }

    pub(super) fn attempts(&self) -> Option<&Attempts> {
        self.avoid.attempts()
    }
}

impl<Req, T, P, C> Waiting<Req, T, P, C>
where
    T: Target<C>,
    T::Service: Service<Req>,
    <T::Service as Service<Req>>::Error: Into<BoxError>,
    P: Policy,
{
    /// Takes over a seat whose service was not ready when it was polled.
    pub(super) fn take_over(
        &mut self,
        seat: Seat<T::Service>,
        readiness: Poll<Result<(), <T::Service as Service<Req>>::Error>>,
    ) {
        match readiness {
            Poll::Ready(Err(error)) => self.fail(seat, error.into()),
            Poll::Ready(Ok(())) | Poll::Pending => self.park(seat),
        }
    }

    /// Keeps an endpoint's service until it is ready.
    fn park(&mut self, mut seat: Seat<T::Service>) {
        seat.guard.park();
        self.avoid.exclude(&seat.guard);
        self.unready.push(Readying { seat: Some(seat), request: std::marker::PhantomData });
    }

    /// Notes that an endpoint failed to become ready: a failure of that endpoint. The
    /// request is still whole and goes to another.
    fn fail(&mut self, mut seat: Seat<T::Service>, error: BoxError) {
        self.avoid.exclude(&seat.guard);
        seat.guard.fail_unsent();
        self.failure = Some(Error::not_ready(seat.guard.name(), error));
    }

    /// Looks at the parked services that were woken.
    fn poll_parked(&mut self, cx: &mut Context<'_>) -> Option<Seat<T::Service>> {
        while let Poll::Ready(Some((mut seat, result))) = self.unready.poll_next_unpin(cx) {
            if let Err(error) = result {
                self.fail(seat, error.into());
                continue;
            }
            let panic = self.hub.snapshot.load().panic;
            if seat.guard.renew(panic, Instant::now()) {
                return Some(seat);
            }
            // It has left rotation meanwhile; should it return, it may be chosen again.
            self.avoid.readmit(seat.guard.node());
        }
        None
    }

    /// Lets go of parked services that take no call any more; should their endpoints return,
    /// they may be chosen again.
    fn forget_former(&mut self) {
        let panic = self.hub.snapshot.load().panic;
        let takes = |parked: &Readying<_, _>| {
            parked.seat.as_ref().is_some_and(|seat| seat.guard.is_open(panic))
        };
        if self.unready.iter().all(takes) {
            return;
        }
        for parked in std::mem::take(&mut self.unready) {
            match &parked.seat {
                Some(_) if takes(&parked) => self.unready.push(parked),
                Some(seat) => self.avoid.readmit(seat.guard.node()),
                None => {}
            }
        }
    }

    /// Returns why the call should end rather than wait for a change of the set.
    fn verdict(&mut self, told: Told, counts: Counts) -> Option<Error> {
        let empty = counts.members == 0 && self.hub.settings.wait_when_empty;
        if (!told.updated || empty) && !told.finished {
            return None;
        }
        Some(self.failure.take().unwrap_or_else(|| self.hub.shortage(counts)))
    }

    /// Waits for a change or for the end of patience.
    fn poll_wait(&mut self, counts: Counts, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.bell.as_mut().poll(cx).is_ready() {
            self.bell = Box::pin(Arc::clone(&self.hub.bell).notified_owned());
            self.forget_former();
            return Poll::Ready(Ok(()));
        }
        if self.place.is_none() {
            let place = Place::take(&self.hub);
            self.place = Some(place.ok_or_else(|| too_many(counts))?);
        }
        let (settings, parked) = (&self.hub.settings, self.unready.len());
        let patience = match parked {
            0 => settings.wait_for_endpoints,
            _ => settings.wait_for_ready,
        };
        match ready!(self.clock.poll(patience, parked > 0, self.hub.next_due(), cx)) {
            Alarm::Due => Poll::Ready(Ok(())),
            Alarm::Patience if parked == 0 => Poll::Ready(Err(self.hub.shortage(counts))),
            Alarm::Patience => {
                let counts = Counts { unready: parked, ..counts };
                Poll::Ready(Err(Error::unavailable(ErrorKind::Unready, counts, None)))
            }
        }
    }
}

impl<Req, T, P, C> Waiting<Req, T, P, C>
where
    T: Target<C>,
    T::Service: Service<Req>,
    <T::Service as Service<Req>>::Error: Into<BoxError>,
    P: Pick<Req>,
{
    /// Waits for an endpoint that is ready; returns it with the request.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Departure<T::Service, Req>, Error>> {
        self.hub.launch();
        loop {
            if let Some(seat) = self.poll_parked(cx) {
                return Poll::Ready(Ok(self.depart(seat)));
            }
            // Before the snapshot: an update between the two must not make an end of a wait.
            let told = self.hub.progress.told();
            let counts = match self.choose() {
                Ok(seat) => match self.offer(seat, cx) {
                    Some(seat) => return Poll::Ready(Ok(self.depart(seat))),
                    None => continue,
                },
                Err(Missed::Policy(error)) => return Poll::Ready(Err(error)),
                Err(Missed::UsedUp(_)) => {
                    return Poll::Ready(Err(Error::policy("it used up a new table at once")));
                }
                Err(Missed::Nothing(counts) | Missed::Exhausted(counts)) => counts,
            };
            if self.unready.is_empty()
                && let Some(error) = self.verdict(told, counts)
            {
                return Poll::Ready(Err(error));
            }
            ready!(self.poll_wait(counts, cx))?;
        }
    }

    fn choose(&mut self) -> Result<Seat<T::Service>, Missed> {
        let request = self.request.as_ref().expect(ENDED);
        let attach = |target: &T| target.attach(&self.client);
        self.hub.choose(request, &mut self.avoid, Instant::now(), attach)
    }

    /// Returns the seat if its service is ready at once.
    fn offer(
        &mut self,
        mut seat: Seat<T::Service>,
        cx: &mut Context<'_>,
    ) -> Option<Seat<T::Service>> {
        let readiness = seat.guard.inside(|| seat.service.poll_ready(cx));
        if matches!(readiness, Poll::Ready(Ok(()))) {
            return Some(seat);
        }
        self.take_over(seat, readiness);
        None
    }

    fn depart(&mut self, seat: Seat<T::Service>) -> Departure<T::Service, Req> {
        (seat, self.request.take().expect(ENDED))
    }
}

/// The request is only taken when the wait ends, and an ended wait is dropped at once.
const ENDED: &str = "a wait that ended is not polled again";

fn too_many(counts: Counts) -> Error {
    Error::unavailable(ErrorKind::TooManyWaiting, counts, None)
}

/// What ended a sleep.
enum Alarm {
    /// Something is due that may end the wait: the trial of an ejected endpoint.
    Due,
    Patience,
}

impl Clock {
    /// Sleeps until patience ends or something is due. Outside a tokio runtime there is no
    /// clock to wake by, and patience has no end.
    fn poll(
        &mut self,
        patience: Duration,
        parked: bool,
        due: Option<Instant>,
        cx: &mut Context<'_>,
    ) -> Poll<Alarm> {
        if Handle::try_current().is_err() {
            return Poll::Pending;
        }
        let end = *self.since[usize::from(parked)].get_or_insert_with(Instant::now) + patience;
        let due = due.filter(|&due| self.seen.is_none_or(|seen| due > seen));
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
    fn take(hub: &Arc<Hub<T, P>>) -> Option<Self> {
        let most = hub.settings.max_waiting;
        let more = |waiting| (waiting < most).then_some(waiting + 1);
        let took = hub.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        took.ok().map(|_| Self(Arc::clone(hub)))
    }
}

impl<T, P: Policy> Drop for Place<T, P> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Nothing in it is ever pinned.
impl<S, Req> Unpin for Readying<S, Req> {}

impl<S: Service<Req>, Req> Future for Readying<S, Req> {
    type Output = (Seat<S>, Result<(), S::Error>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(seat) = &mut self.seat else { return Poll::Pending };
        let result = ready!(seat.guard.inside(|| seat.service.poll_ready(cx)));
        match self.seat.take() {
            Some(seat) => Poll::Ready((seat, result)),
            None => Poll::Pending,
        }
    }
}
