//! Creates the cluster and its driver.

use std::sync::Arc;

use tokio::time::Instant;

use crate::{
    cluster::{Cluster, settings::Settings, spawn::Spawner},
    discover::{Driver, Source},
    policy::Policy,
};
#[cfg(feature = "tracing")]
use crate::{event::Listener, observe::tracing::trace};

/// Creates the cluster, and spawns its driver now or at the first call.
pub(super) fn spawn<D, T, P>(settings: Settings, discover: D, policy: P) -> Arc<Cluster<T, P>>
where
    D: Source<Target = T> + Send + 'static,
    T: Send + Sync + 'static,
    P: Policy,
{
    let (cluster, driver) = connect(settings, discover, policy);
    cluster.spawner().start(driver);
    cluster
}

/// Creates the cluster and its driver.
#[cfg_attr(
    not(feature = "tracing"),
    allow(unused_mut, reason = "`tracing` adds a listener")
)]
pub(super) fn connect<D, T, P>(
    mut settings: Settings,
    discover: D,
    policy: P,
) -> (Arc<Cluster<T, P>>, Driver<D, T, P>)
where
    D: Source<Target = T>,
    P: Policy,
{
    #[cfg(feature = "tracing")]
    settings.listeners.insert(0, Listener::new(trace));
    let (spawner, closed) = Spawner::new();
    let cluster = Arc::new(Cluster::new(policy, settings, spawner, Instant::now()));
    let driver = Driver::new(discover, &cluster, closed);
    (cluster, driver)
}
