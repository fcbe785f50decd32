//! The response future: waits for an endpoint if it must, then drives the call.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tower_service::Service;

use crate::{
    call::{
        attempts::Attempts,
        completion::{Implied, Judge},
        guard::Guard,
        pick::Picked,
        wait::Waiting,
    },
    endpoint::Target,
    error::{BoxError, Error},
    policy::{Picker, Policy},
};

pin_project! {
    /// The future of a balanced call.
    ///
    /// Dropping it ends the call: what that means for the endpoint's health depends on
    /// [`drop_counts_after`](crate::Health::drop_counts_after).
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<Req, T, P, C, J = Implied>
    where
        T: Target<C>,
        T::Service: Service<Req>,
        P: Policy,
    {
        #[pin]
        state: State<Req, T, P, C>,
        judge: J,
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
        Running { #[pin] call: <T::Service as Service<Req>>::Future, guard: Guard },
        /// Off the healthy path, so in a box: the future stays small.
        Waiting { waiting: Box<Waiting<Req, T, P, C>> },
        Failed { error: Option<Error> },
        Done,
    }
}

impl<Req, T, P, C, J> ResponseFuture<Req, T, P, C, J>
where
    T: Target<C>,
    T::Service: Service<Req>,
    P: Policy,
{
    #[inline]
    pub(crate) fn send(
        picked: Picked<T::Service>,
        request: Req,
        attempts: Option<&Attempts>,
        judge: J,
    ) -> Self {
        Self { state: State::send(picked, request, attempts), judge }
    }

    pub(crate) fn fail(error: Error, judge: J) -> Self {
        Self { state: State::Failed { error: Some(error) }, judge }
    }

    pub(crate) fn wait(waiting: Waiting<Req, T, P, C>, judge: J) -> Self {
        Self { state: State::Waiting { waiting: Box::new(waiting) }, judge }
    }
}

impl<Req, T, P, C> State<Req, T, P, C>
where
    T: Target<C>,
    T::Service: Service<Req>,
    P: Policy,
{
    /// Sends the request with a service that was just ready.
    fn send(picked: Picked<T::Service>, request: Req, attempts: Option<&Attempts>) -> Self {
        let Picked { mut service, mut guard } = picked;
        if let Some(attempts) = attempts {
            attempts.note(guard.node());
        }
        // The service is dropped in there, too: it may panic.
        let call = guard.send(move || service.call(request));
        Self::Running { call, guard }
    }
}

impl<Req, T, P, C, J> Future for ResponseFuture<Req, T, P, C, J>
where
    T: Target<C>,
    T::Service: Service<Req>,
    <T::Service as Service<Req>>::Error: Into<BoxError>,
    P: Policy,
    P::Picker: Picker<Req>,
    J: Judge<T, C, <T::Service as Service<Req>>::Response, <T::Service as Service<Req>>::Error>,
{
    type Output = Result<J::Response, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                Projected::Running { call, guard } => {
                    let result = ready!(guard.inside(|| call.poll(cx)));
                    let result = this.judge.end(guard, result);
                    let result = result.map_err(|error| Error::call(guard.name(), error.into()));
                    this.state.set(State::Done);
                    return Poll::Ready(result);
                }
                Projected::Waiting { waiting } => match ready!(waiting.poll(cx)) {
                    Ok((picked, request)) => {
                        let attempts = waiting.attempts().cloned();
                        this.state.set(State::Done);
                        this.state.set(State::send(picked, request, attempts.as_ref()));
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

impl<Req, T, P, C, J> fmt::Debug for ResponseFuture<Req, T, P, C, J>
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
