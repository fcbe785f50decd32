//! The endpoints that one call waits for.

use std::{
    future::Future,
    marker::PhantomData,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tower_service::Service;

use super::{guard::Guard, pick::Picked};
use crate::{cluster::Cluster, policy::Policy};

/// Services that were picked and are not ready yet. Each one is polled only when it was woken.
pub(super) struct UnreadyServices<S, Req>(FuturesUnordered<ReadyFuture<S, Req>>);

/// A service that became ready, or failed to.
type Settled<S, E> = (Picked<S>, Result<(), E>);

/// Waits until one service is ready.
struct ReadyFuture<S, Req> {
    /// None after the end.
    picked: Option<Picked<S>>,
    request: PhantomData<fn(Req)>,
}

impl<S: Service<Req>, Req> UnreadyServices<S, Req> {
    pub(super) fn new() -> Self {
        Self(FuturesUnordered::new())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn push(&self, picked: Picked<S>) {
        self.0.push(ReadyFuture {
            picked: Some(picked),
            request: PhantomData,
        });
    }

    /// Returns the next service that became ready or failed to; none while all are pending.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Option<Settled<S, S::Error>> {
        match self.0.poll_next_unpin(cx) {
            Poll::Ready(next) => next,
            Poll::Pending => None,
        }
    }

    /// Drops the services whose endpoints no longer take the call; `removed` gets the guard of
    /// each.
    pub(super) fn remove_closed(&mut self, panic: bool, mut removed: impl FnMut(&Guard)) {
        if self.0.iter().all(|service| service.takes_call(panic)) {
            return;
        }
        for service in mem::take(&mut self.0) {
            if service.takes_call(panic) {
                self.0.push(service);
            } else if let Some(picked) = &service.picked {
                removed(&picked.guard);
            }
        }
    }
}

impl<S, Req> ReadyFuture<S, Req> {
    fn takes_call(&self, panic: bool) -> bool {
        self.picked
            .as_ref()
            .is_some_and(|picked| picked.guard.takes_call(panic))
    }
}

/// No field is ever pinned.
impl<S, Req> Unpin for ReadyFuture<S, Req> {}

impl<S: Service<Req>, Req> Future for ReadyFuture<S, Req> {
    type Output = Settled<S, S::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(picked) = &mut self.picked else {
            return Poll::Pending;
        };
        let result = ready!(picked.poll_ready(cx));
        match self.picked.take() {
            Some(picked) => Poll::Ready((picked, result)),
            None => Poll::Pending,
        }
    }
}

/// Takes a permit under the bound for a call whose wait has ended; returns false if the endpoint
/// is at its bound.
pub(super) fn take_permit<T, P: Policy>(cluster: &Cluster<T, P>, guard: &mut Guard) -> bool {
    let Some(bounded) = &cluster.bounded else {
        return true;
    };
    let snapshot = cluster.snapshot.load();
    let Some(index) = snapshot.nodes.position(guard.node().id) else {
        return false;
    };
    let Some(permit) = snapshot.take_permit(bounded, index, guard.kind()) else {
        return false;
    };
    guard.set_permit(permit);
    true
}
