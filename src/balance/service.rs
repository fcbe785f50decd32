//! The service that users call.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll, Waker},
};

#[cfg(feature = "metrics")]
use std::time::Duration;

use tokio::time::Instant;
use tower_service::Service;

#[cfg(feature = "metrics")]
use crate::observe::{self, Metrics, Reporter};
use crate::{
    balance::connect,
    call::{
        attempts::Attempts,
        completion::{Implied, Judge},
        exclusions::Exclusions,
        future::ResponseFuture,
        pick::{self, Missed},
        wait::Waiting,
    },
};
use crate::{
    checks::{self, Checker, Checks, Probe},
    cluster::{Cluster, node::NodeState, settings::Settings},
    discover::Source,
    endpoint::Target,
    error::{BoxError, ConfigError, Error},
    health::capacity::CapacityChange,
    observe::stats::Stats,
    policy::{
        Picker, Policy,
        affinity::{Keyed, Owner, Skipped, Structure, keeps},
    },
};

/// Spreads calls over a live set of endpoints.
///
/// Made by [`BalanceLayer`](crate::BalanceLayer) around a client that all endpoints share, or by
/// [`Balance::new`] for endpoints that bring their own service. Clones are cheap (one
/// `Arc` and the client) and share endpoints, health and counters. No `Buffer` is needed.
///
/// `poll_ready` is always ready and reserves nothing: the endpoint is chosen in `call`,
/// where the request is known, and all waiting is inside the response future, where a
/// timeout above covers it. Errors are [`Error`]s that name the endpoint.
///
/// A call that is sent to an endpoint costs no allocation here.
///
/// ```
/// use counterpoise::{discover, policy::RoundRobin, Balance, Direct, Endpoint};
/// use tower::{Service, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), counterpoise::Error> {
/// let double = service_fn(async |n: u32| Ok::<_, std::io::Error>(2 * n));
/// let endpoints = discover::list([("a", Endpoint::new(Direct(double)))]);
/// let mut balance = Balance::new(endpoints, RoundRobin::new());
/// assert_eq!(balance.ready().await?.call(21).await?, 42);
/// # Ok(())
/// # }
/// ```
pub struct Balance<T, P: Policy, C = (), J = Implied> {
    pub(super) cluster: Arc<Cluster<T, P>>,
    pub(super) client: C,
    pub(super) judge: J,
}

impl<T, P> Balance<T, P>
where
    T: Send + Sync + 'static,
    P: Policy,
{
    /// Balances over endpoints that bring their own service, with default settings.
    ///
    /// The same as layering [`BalanceLayer::new`](crate::BalanceLayer::new) on `()`; see there for how discovery is
    /// driven. For other settings see [`Builder::balance`](crate::Builder::balance).
    #[must_use]
    pub fn new<D>(discover: D, policy: P) -> Self
    where
        D: Source<Target = T> + Send + 'static,
    {
        let cluster = connect::spawn(Settings::default(), discover, policy);
        Self { cluster, client: (), judge: Implied }
    }
}

impl<T, P: Policy, C, J> Balance<T, P, C, J> {
    /// Returns what the next pick would see: endpoints, their health, load and counters.
    ///
    /// Changes nothing. Cost: O(n).
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::of(&self.cluster)
    }

    /// Returns a future that checks the endpoints beside the calls, and ejects those that fail
    /// their checks. It has to be spawned. See [`checks`].
    ///
    /// It ends with the last service and layer of the balancer.
    ///
    /// # Errors
    ///
    /// Refuses settings that make no sense, naming the setting.
    pub fn check<R>(&self, checks: Checks<R>) -> Result<Checker, ConfigError>
    where
        T: Send + Sync + 'static,
        R: Probe<T>,
    {
        checks::check(&self.cluster, checks)
    }

    /// Returns a future that reports the statistics as metrics, now and after every interval: to be
    /// spawned. It ends with the last service and layer of the balancer.
    ///
    /// An interval of less than a millisecond counts as a millisecond. Cost: that of
    /// [`stats`](Self::stats) and a few look-ups for each endpoint, each time.
    #[cfg(feature = "metrics")]
    pub fn report(&self, metrics: Metrics, interval: Duration) -> Reporter
    where
        T: Send + Sync + 'static,
    {
        observe::report(&self.cluster, metrics, interval)
    }

    /// Waits until the set has at least `count` endpoints, drained ones included.
    ///
    /// # Errors
    ///
    /// Fails with the error of discovery, or once discovery has ended with fewer.
    pub async fn ready_when(&self, count: usize) -> Result<(), Error> {
        self.cluster.ready_when(count).await
    }

    /// Multiplies the weight of an endpoint by a factor from 0 to 1, without touching the set
    /// weight: for what you know of its load or its health.
    ///
    /// Every policy gives it the share of what is left; at 0 none picks it. One that keeps keys
    /// hands over the rest of the endpoint's keys, always the same ones. The factor has a
    /// resolution of 1/65,536 and stays until the next one, or until the endpoint leaves the set;
    /// an insert of the same key keeps it. The endpoint is found by its name; if several share
    /// the name, all get the factor. Cost: that of a rebuild.
    pub fn set_capacity(&self, endpoint: &str, factor: f64) -> CapacityChange {
        self.cluster.set_capacity(endpoint, factor, Instant::now())
    }
}

impl<T, A, S, C, J> Balance<T, Keyed<A, S>, C, J>
where
    A: Send + Sync + 'static,
    S: Structure,
{
    /// Returns the endpoints in the order in which they are chosen for a key, and why each is
    /// passed over at present.
    ///
    /// Those of weight zero are not in it. What sets would do that are not deployed yet:
    /// [`Keyed::map`]. Cost: that of the whole walk.
    #[must_use]
    pub fn owners(&self, key: &[u8]) -> Vec<Owner> {
        let snapshot = self.cluster.snapshot.load();
        let picker = snapshot.picker.as_ref();
        let walk = picker.map(|picker| picker.walk(key)).unwrap_or_default();
        let owner = |index: usize| {
            let node = snapshot.nodes.get(index)?;
            let capacity = snapshot.capacities.get(index).copied();
            let keeps = capacity.is_none_or(|capacity| keeps(key, &node.state.name, capacity));
            Some(Owner {
                name: Arc::clone(&node.state.name),
                skipped: skipped(&node.state, snapshot.panic, keeps),
            })
        };
        walk.into_iter().filter_map(owner).collect()
    }
}

/// Returns why an endpoint is passed over for a key.
fn skipped(node: &NodeState, panic: bool, keeps: bool) -> Option<Skipped> {
    if node.health.load().is_drained() {
        Some(Skipped::Drained)
    } else if node.health.admit(panic).is_none() {
        Some(Skipped::Ejected)
    } else if !keeps {
        Some(Skipped::Capacity)
    } else {
        None
    }
}

impl<T, P, C, J, Req> Service<Req> for Balance<T, P, C, J>
where
    T: Target<C>,
    T::Service: Service<Req>,
    <T::Service as Service<Req>>::Error: Into<BoxError>,
    P: Policy,
    P::Picker: Picker<Req>,
    C: Clone,
    J: Judge<T, C, <T::Service as Service<Req>>::Response, <T::Service as Service<Req>>::Error>,
{
    type Response = J::Response;
    type Error = Error;
    type Future = ResponseFuture<Req, T, P, C, J>;

    /// Is always ready, and reserves nothing.
    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        self.cluster.spawn_driver();
        let now = Instant::now();
        let mut exclusions = Exclusions::new(Attempts::current());
        let attach = |target: &T| target.attach(&self.client);
        let chosen = pick::pick(&self.cluster, &request, &mut exclusions, now, attach);
        let unready = match chosen {
            Ok(mut picked) => {
                // Without a task to wake: the future polls a service again that is not ready.
                let mut cx = Context::from_waker(Waker::noop());
                match picked.guard.inside(|| picked.service.poll_ready(&mut cx)) {
                    Poll::Ready(Ok(())) => {
                        let attempts = exclusions.attempts();
                        return ResponseFuture::send(picked, request, attempts, self.judge.clone());
                    }
                    readiness => Some((picked, readiness)),
                }
            }
            Err(Missed::Policy(error)) => {
                return ResponseFuture::fail(error, self.judge.clone());
            }
            Err(_) => None,
        };
        let mut waiting =
            Waiting::new(Arc::clone(&self.cluster), self.client.clone(), request, exclusions);
        if let Some((picked, readiness)) = unready {
            waiting.add_unready(picked, readiness);
        }
        ResponseFuture::wait(waiting, self.judge.clone())
    }
}

impl<T, P: Policy, C: Clone, J: Clone> Clone for Balance<T, P, C, J> {
    fn clone(&self) -> Self {
        let (client, judge) = (self.client.clone(), self.judge.clone());
        Self { cluster: Arc::clone(&self.cluster), client, judge }
    }
}

impl<T, P: Policy, C, J> fmt::Debug for Balance<T, P, C, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Balance").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}
