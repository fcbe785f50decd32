//! The response future: waits for an endpoint if it must, then drives the call.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tower_service::Service;

use super::{attempts::Attempts, choose::Seat, in_flight::InFlight, waiting::Waiting};
use crate::{
    classify::Classify,
    endpoint::Target,
    error::{BoxError, Error},
    policy::{Pick, Policy},
};

pin_project! {
    /// The future of a balanced call.
    ///
    /// Dropping it ends the call: what that means for the endpoint's health depends on
    /// [`drop_counts_after`](crate::Health::drop_counts_after).
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<Req, T, P, C, K>
    where
        T: Target<C>,
        T::Service: Service<Req>,
        P: Policy,
    {
        #[pin]
        state: State<Req, T, P, C>,
        classify: K,
    }
}

pin_project! {
    #[project = Projected]
    enum State<Req, T, P, C>
    where
        T: Target<C>,
        T::Service: Service<Req>,
        P: Policy,
    {
        /// The endpoint was ready: the request is with it.
        Running { #[pin] call: <T::Service as Service<Req>>::Future, guard: InFlight },
        /// Off the healthy path, so in a box: the future stays small.
        Waiting { waiting: Box<Waiting<Req, T, P, C>> },
        Failed { error: Option<Error> },
        Done,
    }
}

impl<Req, T, P, C, K> ResponseFuture<Req, T, P, C, K>
where
    T: Target<C>,
    T::Service: Service<Req>,
    P: Policy,
{
    #[inline]
    pub(super) fn send(
        seat: Seat<T::Service>,
        request: Req,
        attempts: Option<&Attempts>,
        classify: K,
    ) -> Self {
        Self { state: State::send(seat, request, attempts), classify }
    }

    pub(super) fn fail(error: Error, classify: K) -> Self {
        Self { state: State::Failed { error: Some(error) }, classify }
    }

    pub(super) fn wait(waiting: Waiting<Req, T, P, C>, classify: K) -> Self {
        Self { state: State::Waiting { waiting: Box::new(waiting) }, classify }
    }
}

impl<Req, T, P, C> State<Req, T, P, C>
where
    T: Target<C>,
    T::Service: Service<Req>,
    P: Policy,
{
    /// Sends the request with a service that was just ready.
    fn send(seat: Seat<T::Service>, request: Req, attempts: Option<&Attempts>) -> Self {
        let Seat { mut service, mut guard } = seat;
        if let Some(attempts) = attempts {
            attempts.note(guard.node());
        }
        // The service is dropped in there, too: it may panic.
        let call = guard.send(move || service.call(request));
        Self::Running { call, guard }
    }
}

impl<Req, T, P, C, K> Future for ResponseFuture<Req, T, P, C, K>
where
    T: Target<C>,
    T::Service: Service<Req>,
    <T::Service as Service<Req>>::Error: Into<BoxError>,
    P: Pick<Req>,
    K: Classify<<T::Service as Service<Req>>::Response, <T::Service as Service<Req>>::Error>,
{
    type Output = Result<<T::Service as Service<Req>>::Response, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                Projected::Running { call, guard } => {
                    let result = ready!(guard.inside(|| call.poll(cx)));
                    let outcome = guard.inside(|| this.classify.classify(result.as_ref()));
                    guard.close(outcome);
                    let result = result.map_err(|error| Error::call(guard.name(), error.into()));
                    this.state.set(State::Done);
                    return Poll::Ready(result);
                }
                Projected::Waiting { waiting } => match ready!(waiting.poll(cx)) {
                    Ok((seat, request)) => {
                        let attempts = waiting.attempts().cloned();
                        this.state.set(State::Done);
                        this.state.set(State::send(seat, request, attempts.as_ref()));
                    }
                    Err(error) => {
                        this.state.set(State::Done);
                        return Poll::Ready(Err(error));
                    }
                },
                Projected::Failed { error } => {
                    let error = error.take();
                    this.state.set(State::Done);
                    if let Some(error) = error {
                        return Poll::Ready(Err(error));
                    }
                }
                Projected::Done => panic!("a response future was polled after it had ended"),
            }
        }
    }
}

impl<Req, T, P, C, K> fmt::Debug for ResponseFuture<Req, T, P, C, K>
where
    T: Target<C>,
    T::Service: Service<Req>,
    P: Policy,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Running { .. } => "running",
            State::Waiting { .. } => "waiting",
            State::Failed { .. } => "failed",
            State::Done => "done",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}
