//! The layer.

#[cfg(feature = "metrics")]
use std::time::Duration;
use std::{fmt, sync::Arc};

use tokio::time::Instant;
use tower_layer::Layer;

use super::{connect, service::Balance};
#[cfg(feature = "metrics")]
use crate::observe::{self, Metrics, Reporter};
use crate::{
    call::judge::Implied,
    checks::{self, Checker, Checks, Probe},
    cluster::{Cluster, settings::Settings},
    discover::{Driver, Source},
    error::{ConfigError, Error},
    health::capacity::CapacityChange,
    observe::stats::Stats,
    policy::Policy,
};

/// Spreads the calls of a client over a live set of endpoints.
///
/// All services of a layer share its endpoints, health and counters. So a clone of the layer
/// returns the [statistics](Self::stats) of the stack that the layer is in.
///
/// ```
/// use counterpoise::{discover, policy::RoundRobin, BalanceLayer, Direct, Endpoint};
/// use tower::ServiceBuilder;
/// use std::time::Duration;
///
/// let endpoints = discover::list([
///     ("a", Endpoint::new(Direct("service a"))),
///     ("b", Endpoint::new(Direct("service b"))),
/// ]);
/// let client = ServiceBuilder::new()
///     .timeout(Duration::from_secs(2))
///     .layer(BalanceLayer::new(endpoints, RoundRobin::new()))
///     .service("the client that all endpoints share");
/// ```
pub struct BalanceLayer<T, P: Policy, J = Implied> {
    pub(super) cluster: Arc<Cluster<T, P>>,
    pub(super) judge: J,
}

impl<T, P> BalanceLayer<T, P>
where
    T: Send + Sync + 'static,
    P: Policy,
{
    /// Creates a layer over the endpoints of `discover`, with default settings.
    ///
    /// `discover` is any [`Source`]: a stream of `Result<Change<K, Endpoint<T>>, E>`. Its driver is
    /// spawned, inside a tokio runtime at once and otherwise at the first call. It ends with the
    /// stream, or with the last service and layer.
    ///
    /// A timeout above the layer drops calls. A dropped call counts as a failure of the endpoint
    /// only if it is at least [`drop_counts_after`](crate::Health::drop_counts_after) old, by
    /// default 1 s. Set that below a shorter timeout; otherwise endpoints that hang are never
    /// ejected. [`Builder::layer`](crate::Builder::layer) has this and all other settings.
    #[must_use]
    pub fn new<D>(discover: D, policy: P) -> Self
    where
        D: Source<Target = T> + Send + 'static,
    {
        Self {
            cluster: connect::spawn(Settings::default(), discover, policy),
            judge: Implied,
        }
    }

    /// Creates a layer and its driver, which is not spawned.
    ///
    /// For other executors than tokio, and for tests. Endpoints are only discovered while the
    /// driver is polled.
    pub fn pair<D>(discover: D, policy: P) -> (Self, Driver<D, T, P>)
    where
        D: Source<Target = T>,
    {
        let (cluster, driver) = connect::connect(Settings::default(), discover, policy);
        (
            Self {
                cluster,
                judge: Implied,
            },
            driver,
        )
    }
}

impl<T, P: Policy, J> BalanceLayer<T, P, J> {
    /// Returns statistics of the set and of each endpoint: health, load and counters.
    ///
    /// They show the state that the next pick reads. Cost: O(n).
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::of(&self.cluster)
    }

    /// Multiplies the weight of an endpoint by a factor from 0 to 1; see
    /// [`Balance::set_capacity`].
    pub fn set_capacity(&self, endpoint: &str, factor: f64) -> CapacityChange {
        self.cluster.set_capacity(endpoint, factor, Instant::now())
    }

    /// Returns a future that checks the endpoints; see [`Balance::check`].
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

    /// Returns a future that reports the statistics as metrics; see
    /// [`Balance::report`].
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
    /// Fails with the error of discovery, or if discovery has ended with fewer endpoints.
    pub async fn ready_when(&self, count: usize) -> Result<(), Error> {
        self.cluster.ready_when(count).await
    }
}

impl<T, P: Policy, J: Clone, C> Layer<C> for BalanceLayer<T, P, J> {
    type Service = Balance<T, P, C, J>;

    fn layer(&self, client: C) -> Self::Service {
        Balance {
            cluster: Arc::clone(&self.cluster),
            client,
            judge: self.judge.clone(),
        }
    }
}

impl<T, P: Policy, J: Clone> Clone for BalanceLayer<T, P, J> {
    fn clone(&self) -> Self {
        Self {
            cluster: Arc::clone(&self.cluster),
            judge: self.judge.clone(),
        }
    }
}

impl<T, P: Policy, J> fmt::Debug for BalanceLayer<T, P, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BalanceLayer")
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}
