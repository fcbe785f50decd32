//! The endpoints that a request was sent to, across its retries.

use std::{
    fmt,
    future::Future,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use tokio::task::futures::TaskLocalFuture;
use tower_layer::Layer;
use tower_service::Service;

use crate::{cluster::node::NodeState, util::lock};

tokio::task_local! {
    static CURRENT: Attempts;
}

/// The endpoints that one request was sent to, in order.
///
/// A balancer that is called inside [`scope`](Self::scope) adds each endpoint that it sends the
/// request to, and prefers endpoints that are not in the list. So a retry goes to another endpoint
/// while there is one. Requests may be of any type.
///
/// [`AttemptsLayer`] opens a scope of its own for each request, in which an outer list has no
/// effect and stays empty: use one or the other.
///
/// The scope is a task-local value: a
/// [`Buffer`](https://docs.rs/tower/0.5/tower/buffer/struct.Buffer.html) between scope and balancer
/// moves the call to another task and out of the scope.
///
/// ```
/// # async fn run() {
/// use counterpoise::Attempts;
///
/// let attempts = Attempts::new();
/// let response = attempts.scope(async { /* call a stack without `AttemptsLayer` */ }).await;
/// println!("answered by {:?}", attempts.names().last());
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Attempts(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    attempts: Vec<Attempt>,
    preferred: Option<Arc<str>>,
    avoided: Vec<Arc<str>>,
}

/// One sending of a request: the balancer and the endpoint.
struct Attempt {
    balancer: usize,
    id: u64,
    name: Arc<str>,
}

impl Attempts {
    /// Creates an empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs a future; balanced calls in it add their endpoints to this list.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        CURRENT.scope(self.clone(), future)
    }

    /// Returns the names of the endpoints, in the order of the attempts.
    #[must_use]
    pub fn names(&self) -> Vec<Arc<str>> {
        lock(&self.0)
            .attempts
            .iter()
            .map(|attempt| Arc::clone(&attempt.name))
            .collect()
    }

    /// Prefers the endpoint of this name to the policy's pick.
    ///
    /// Calls go there unless it is out of service, at its bound, or was tried before. While it is
    /// ejected, a call may be its trial, and no other endpoint's. Default: none.
    ///
    /// Cost: each such call searches the endpoints by name, O(n).
    pub fn prefer(&self, endpoint: impl Into<Arc<str>>) {
        lock(&self.0).preferred = Some(endpoint.into());
    }

    /// Avoids the endpoint of this name, as if the request had been sent there before.
    ///
    /// Calls go there only if every other endpoint is out of service, not ready, at its bound, or
    /// was tried or avoided too. If all were tried or avoided, each of them may be taken. While
    /// another endpoint is eligible, such a call is no trial of an avoided one. Default: none.
    pub fn avoid(&self, endpoint: impl Into<Arc<str>>) {
        lock(&self.0).avoided.push(endpoint.into());
    }

    /// Returns the list of the present scope; none outside of a scope.
    #[inline]
    pub(crate) fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    pub(crate) fn add(&self, node: &NodeState) {
        let (balancer, name) = (node.balancer(), Arc::clone(&node.name));
        lock(&self.0).attempts.push(Attempt {
            balancer,
            id: node.id,
            name,
        });
    }

    /// Returns whether this balancer has sent the request before.
    pub(crate) fn was_sent_by(&self, balancer: usize) -> bool {
        lock(&self.0)
            .attempts
            .iter()
            .any(|attempt| attempt.balancer == balancer)
    }

    pub(crate) fn preferred(&self) -> Option<Arc<str>> {
        lock(&self.0).preferred.clone()
    }

    /// Returns whether the request was sent to the endpoint before, or avoids it.
    pub(crate) fn contains(&self, node: &NodeState) -> bool {
        let log = lock(&self.0);
        log.attempts.iter().any(|attempt| attempt.id == node.id) || log.avoided.contains(&node.name)
    }
}

impl fmt::Debug for Attempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Attempts").field(&self.names()).finish()
    }
}

/// Opens a scope of [`Attempts`] for each request; belongs above a retry layer.
///
/// The scope hides an outer one, so [`Attempts`] opened above this layer have no effect and stay
/// empty.
///
/// ```
/// use counterpoise::AttemptsLayer;
/// use tower::ServiceBuilder;
///
/// let stack = ServiceBuilder::new().layer(AttemptsLayer::new()); // .retry(..).layer(balance)
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct AttemptsLayer;

/// The service of [`AttemptsLayer`].
#[derive(Debug, Clone)]
pub struct AttemptsService<S> {
    inner: S,
}

impl AttemptsLayer {
    /// Creates the layer.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

impl<S> Layer<S> for AttemptsLayer {
    type Service = AttemptsService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        AttemptsService { inner }
    }
}

impl<S: Service<Req>, Req> Service<Req> for AttemptsService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = TaskLocalFuture<Attempts, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let attempts = Attempts::new();
        let future = CURRENT.sync_scope(attempts.clone(), || self.inner.call(request));
        CURRENT.scope(attempts, future)
    }
}
