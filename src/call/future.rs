//! The response future: waits for an endpoint if none is ready, then runs the call.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    attempts::Attempts,
    guard::Guard,
    judge::{Implied, Judge},
    pick::Picked,
    wait::Waiting,
};
use crate::{
    endpoint::Target,
    error::{BoxError, Error},
    policy::{Picker, Policy},
};

pin_project! {
    /// The future of a balanced call.
    ///
    /// Dropping it ends the call. A call that is at least
    /// [`drop_counts_after`](crate::Health::drop_counts_after) old then counts as a failure of the
    /// endpoint.
    ///
    /// # Panics
    ///
    /// Panics if it is polled after its end.
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
        /// The request was sent.
        Running { #[pin] call: <T::Service as Service<Req>>::Future, guard: Guard },
        /// Boxed, so that the future stays small.
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
        Self {
            state: State::send(picked, request, attempts),
            judge,
        }
    }

    pub(crate) fn fail(error: Error, judge: J) -> Self {
        Self {
            state: State::Failed { error: Some(error) },
            judge,
        }
    }

    pub(crate) fn wait(waiting: Waiting<Req, T, P, C>, judge: J) -> Self {
        Self {
            state: State::Waiting {
                waiting: Box::new(waiting),
            },
            judge,
        }
    }
}

impl<Req, T, P, C> State<Req, T, P, C>
where
    T: Target<C>,
    T::Service: Service<Req>,
    P: Policy,
{
    /// Sends the request by a service that is ready.
    fn send(picked: Picked<T::Service>, request: Req, attempts: Option<&Attempts>) -> Self {
        let Picked {
            mut service,
            mut guard,
        } = picked;
        if let Some(attempts) = attempts {
            attempts.add(guard.node());
        }
        // The service is also dropped inside the guard, because its drop may panic.
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
            let result = match this.state.as_mut().project() {
                Projected::Running { call, guard } => {
                    let result = ready!(guard.inside(|| call.poll(cx)));
                    let result = this.judge.end(guard, result);
                    result.map_err(|error| Error::call(guard.name(), error.into()))
                }
                Projected::Waiting { waiting } => match ready!(waiting.poll(cx)) {
                    Ok((picked, request)) => {
                        let attempts = waiting.attempts().cloned();
                        this.state.set(State::Done);
                        this.state
                            .set(State::send(picked, request, attempts.as_ref()));
                        continue;
                    }
                    Err(error) => Err(error),
                },
                Projected::Failed { error } => Err(error.take().expect(ENDED)),
                Projected::Done => panic!("{ENDED}"),
            };
            this.state.set(State::Done);
            return Poll::Ready(result);
        }
    }
}

/// The state is `Done` once a result was returned, and `Failed` holds its error until then.
const ENDED: &str = "a response future was polled after it had ended";

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
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
