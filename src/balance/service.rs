//! The service.

#[cfg(feature = "metrics")]
use std::time::Duration;
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tokio::time::Instant;
use tower_service::Service;

use super::connect;
#[cfg(feature = "metrics")]
use crate::observe::{self, Metrics, Reporter};
use crate::{
    call::{
        attempts::Attempts,
        exclusions::Exclusions,
        future::ResponseFuture,
        judge::{Implied, Judge},
        pick::{self, Missed},
        wait::Waiting,
    },
    checks::{self, Checker, Checks, Probe},
    cluster::{Cluster, node::NodeState, settings::Settings, snapshot::Snapshot},
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
/// [`BalanceLayer`](crate::BalanceLayer) creates it around a client that all endpoints share;
/// [`Balance::new`] creates it for endpoints with services of their own. Clones share endpoints,
/// health and counters. No `Buffer` is needed.
///
/// `poll_ready` is always ready and reserves nothing. The endpoint is picked in `call`, where the
/// request is known. All waiting is inside the response future, so that a timeout above the
/// balancer covers it. Errors are [`Error`]s that name the endpoint.
///
/// Cost: a clone clones one `Arc` and the client; a call to a ready endpoint allocates nothing.
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
    /// Creates a balancer over endpoints with services of their own, with default settings.
    ///
    /// The same as [`BalanceLayer::new`](crate::BalanceLayer::new) around the client `()`; see there
    /// for the driver of discovery. For other settings see
    /// [`Builder::balance`](crate::Builder::balance).
    #[must_use]
    pub fn new<D>(discover: D, policy: P) -> Self
    where
        D: Source<Target = T> + Send + 'static,
    {
        let cluster = connect::spawn(Settings::default(), discover, policy);
        Self {
            cluster,
            client: (),
            judge: Implied,
        }
    }
}

impl<T, P: Policy, C, J> Balance<T, P, C, J> {
    /// Returns statistics of the set and of each endpoint: health, load and counters.
    ///
    /// They show the state that the next pick reads. Cost: O(n).
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::of(&self.cluster)
    }

    /// Returns a future that checks the endpoints and ejects those that fail; see [`checks`].
    ///
    /// It has to be spawned, and ends with the last service and layer of the balancer.
    ///
    /// # Errors
    ///
    /// Fails if a setting is invalid; the error names the setting.
    pub fn check<R>(&self, checks: Checks<R>) -> Result<Checker, ConfigError>
    where
        T: Send + Sync + 'static,
        R: Probe<T>,
    {
        checks::check(&self.cluster, checks)
    }

    /// Returns a future that reports the statistics as metrics, at once and after each interval.
    ///
    /// It has to be spawned, and ends with the last service and layer of the balancer. The interval
    /// is at least 1 ms; a shorter one counts as 1 ms. Cost of each report: that of
    /// [`stats`](Self::stats), and a few map lookups for each endpoint.
    #[cfg(feature = "metrics")]
    pub fn report(&self, metrics: Metrics, interval: Duration) -> Reporter
    where
        T: Send + Sync + 'static,
    {
        observe::report(&self.cluster, metrics, interval)
    }

    /// Waits until the set has at least `count` endpoints, drained ones included.
    ///
    /// The wait has no timeout.
    ///
    /// # Errors
    ///
    /// Fails with [`ErrorKind::Empty`](crate::error::ErrorKind::Empty) if discovery has yielded an error
    /// since its last change, and with
    /// [`ErrorKind::DiscoveryEnded`](crate::error::ErrorKind::DiscoveryEnded) if discovery has ended with
    /// fewer endpoints. The kinds are the same if the set has some endpoints, and the messages then still
    /// say that there are none; [`Error::counts`] has the number.
    pub async fn ready_when(&self, count: usize) -> Result<(), Error> {
        self.cluster.ready_when(count).await
    }

    /// Multiplies the weight of an endpoint by a factor from 0 to 1.
    ///
    /// The factor is for what the program knows of the endpoint's load or health. Each policy gives
    /// the endpoint the share of the weight that is left; with 0 no policy picks it. A policy with
    /// affinity moves the rest of the endpoint's keys to other endpoints, always the same keys.
    ///
    /// The factor has a resolution of 1/65,536. It stays until the next one, or until the endpoint
    /// leaves the set; an insert of the same key keeps it. The endpoint is found by its name; if
    /// several have the name, all get the factor. Cost: that of a rebuild.
    pub fn set_capacity(&self, endpoint: &str, factor: f64) -> CapacityChange {
        self.cluster.set_capacity(endpoint, factor, Instant::now())
    }
}

impl<T, A, S, C, J> Balance<T, Keyed<A, S>, C, J>
where
    A: Send + Sync + 'static,
    S: Structure,
{
    /// Returns the endpoints in their order of preference for a key, and why each is skipped now.
    ///
    /// Endpoints of weight zero are left out. [`Keyed::map`] returns the owners in a set that is not
    /// deployed. Cost: that of a walk through all endpoints.
    #[must_use]
    pub fn owners(&self, key: &[u8]) -> Vec<Owner> {
        let snapshot = self.cluster.snapshot.load();
        let picker = snapshot.picker.as_ref();
        let walk = picker.map(|picker| picker.walk(key)).unwrap_or_default();
        walk.into_iter()
            .filter_map(|index| owner(&snapshot, index, key))
            .collect()
    }
}

fn owner<T, B>(snapshot: &Snapshot<T, B>, index: usize, key: &[u8]) -> Option<Owner> {
    let state = &snapshot.nodes.get(index)?.state;
    let capacity = snapshot.capacities.get(index).copied();
    let keeps = capacity.is_none_or(|capacity| keeps(key, &state.name, capacity));
    let skipped = skipped(state, snapshot.panic, keeps);
    Some(Owner {
        name: Arc::clone(&state.name),
        skipped,
    })
}

/// Returns why an endpoint is skipped for a key.
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
        let judge = self.judge.clone();
        let mut picked = match pick::pick(&self.cluster, &request, &mut exclusions, now, attach) {
            Ok(picked) => picked,
            Err(Missed::Policy(error)) => return ResponseFuture::fail(error, judge),
            Err(_) => return ResponseFuture::wait(self.waiting(request, exclusions), judge),
        };
        // Wakes no task: the future polls a service again that is not ready.
        let mut cx = Context::from_waker(Waker::noop());
        match picked.poll_ready(&mut cx) {
            Poll::Ready(Ok(())) => {
                ResponseFuture::send(picked, request, exclusions.attempts(), judge)
            }
            Poll::Ready(Err(error)) => {
                let mut waiting = self.waiting(request, exclusions);
                waiting.fail(picked, error.into());
                ResponseFuture::wait(waiting, judge)
            }
            Poll::Pending => {
                let mut waiting = self.waiting(request, exclusions);
                waiting.wait_for(picked);
                ResponseFuture::wait(waiting, judge)
            }
        }
    }
}

impl<T, P: Policy, C: Clone, J> Balance<T, P, C, J> {
    fn waiting<Req>(&self, request: Req, exclusions: Exclusions) -> Waiting<Req, T, P, C>
    where
        T: Target<C>,
        T::Service: Service<Req>,
    {
        let cluster = Arc::clone(&self.cluster);
        Waiting::new(cluster, self.client.clone(), request, exclusions)
    }
}

impl<T, P: Policy, C: Clone, J: Clone> Clone for Balance<T, P, C, J> {
    fn clone(&self) -> Self {
        let (client, judge) = (self.client.clone(), self.judge.clone());
        Self {
            cluster: Arc::clone(&self.cluster),
            client,
            judge,
        }
    }
}

impl<T, P: Policy, C, J> fmt::Debug for Balance<T, P, C, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Balance")
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}
