//! Settings, and the ways to build with them.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;
use tower_layer::Layer;

use crate::balance::{layer::BalanceLayer, service::Balance};
use crate::{
    call::completion::{AtHead, Implied},
    cluster::{Cluster, settings::Settings, spawn::Spawner},
    discover::{Driver, Source},
    error::ConfigError,
    event::{Event, Listener},
    health::{classify::Classify, outcome::Outcome, settings::Health},
    policy::Policy,
};

/// Builds balancers with settings of your own.
///
/// | setting | default |
/// |---|---|
/// | [`health`](Self::health) | [`Health::new`] |
/// | [`classify`](Self::classify), [`judge`](Self::judge) | [`Implied`]: by the target |
/// | [`wait_for_endpoints`](Self::wait_for_endpoints) | 5 s |
/// | [`wait_when_empty`](Self::wait_when_empty) | false |
/// | [`wait_for_ready`](Self::wait_for_ready) | 30 s |
/// | [`max_waiting`](Self::max_waiting) | 10,000 calls |
/// | [`keep_last`](Self::keep_last) | false |
/// | [`seed`](Self::seed) | random |
/// | [`starting_at`](Self::starting_at) | random |
/// | [`on_event`](Self::on_event) | none |
///
/// ```
/// use counterpoise::{discover, policy::RoundRobin, Builder, Direct, Endpoint};
///
/// # fn main() -> Result<(), counterpoise::ConfigError> {
/// let endpoints = discover::list([("a", Endpoint::new(Direct("a service")))]);
/// let layer = Builder::new().wait_when_empty(true).layer(endpoints, RoundRobin::new())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Builder<J = Implied> {
    settings: Settings,
    judge: J,
}

impl Builder {
    /// Creates a builder with the defaults.
    pub fn new() -> Self {
        Self { settings: Settings::default(), judge: Implied }
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl<J> Builder<J> {
    /// Sets when endpoints are ejected and how they come back. Default: [`Health::new`].
    pub fn health(mut self, health: Health) -> Self {
        self.settings.health = health;
        self
    }

    /// Sets what the result of a call says about its endpoint; calls are over at their heads, as by
    /// [`AtHead`]. Default: what the target implies, see [`Implied`].
    ///
    /// For a classifier that sees the end of the body: [`judge`](Self::judge).
    pub fn classify<K>(self, classify: K) -> Builder<AtHead<K>> {
        self.judge(AtHead::new(classify))
    }

    /// Sets a closure as [`classify`](Self::classify) does. The types of its argument must be
    /// written out: `|result: Result<&Response, &Error>| …`.
    pub fn classify_fn<Res, Err, F>(self, classify: F) -> Builder<AtHead<F>>
    where
        F: Fn(Result<&Res, &Err>) -> Outcome + Classify<Res, Err>,
    {
        self.classify(classify)
    }

    /// Sets when a call is over and what it says about its endpoint. Default: [`Implied`].
    ///
    /// When a call is over, it leaves the number of calls in flight, and its outcome and latency
    /// are counted. For `http::Response` that may be with the first data or at the end of the
    /// body, by `http::AtFirstData` or `http::AtBodyEnd`: the response then has another type of
    /// body.
    ///
    /// ```
    /// # #[cfg(feature = "http")]
    /// # fn builder() {
    /// use counterpoise::{http::{AtBodyEnd, Grpc}, Builder};
    ///
    /// let builder = Builder::new().judge(AtBodyEnd::new(Grpc::new()));
    /// # }
    /// ```
    pub fn judge<K>(self, judge: K) -> Builder<K> {
        Builder { settings: self.settings, judge }
    }

    /// Sets how long calls wait for the first endpoints, and for others if the set is empty
    /// and [`wait_when_empty`](Self::wait_when_empty) is on. Default: 5 s.
    pub fn wait_for_endpoints(mut self, patience: Duration) -> Self {
        self.settings.wait_for_endpoints = patience;
        self
    }

    /// Sets whether calls wait when the set has become empty, instead of failing at once.
    /// Default: false.
    pub fn wait_when_empty(mut self, wait: bool) -> Self {
        self.settings.wait_when_empty = wait;
        self
    }

    /// Sets how long calls wait while no endpoint is ready. Default: 30 s.
    pub fn wait_for_ready(mut self, patience: Duration) -> Self {
        self.settings.wait_for_ready = patience;
        self
    }

    /// Sets how many calls may wait at once; more fail at once, and with 0 none waits.
    /// Default: 10,000.
    pub fn max_waiting(mut self, calls: usize) -> Self {
        self.settings.max_waiting = calls;
        self
    }

    /// Sets whether the last endpoints stay in use when discovery removes them all. The
    /// next one that is inserted replaces them. Default: false.
    pub fn keep_last(mut self, keep: bool) -> Self {
        self.settings.keep_last = keep;
        self
    }

    /// Fixes everything that is otherwise left to chance. Default: random.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = Some(seed);
        self
    }

    /// Fixes the first ticket: 0 makes a round robin start at the first endpoint, and any
    /// makes smooth weighted round robin start without credit. Default: random, so that many
    /// clients do not start at the same endpoint.
    pub fn starting_at(mut self, ticket: u64) -> Self {
        self.settings.starting_at = Some(ticket);
        self
    }

    /// Adds a listener for what happens to endpoints. Default: none.
    ///
    /// The listener gets each event once, in order. It runs in the call or task that caused the
    /// event, or in one that delivers others at that moment, so it should be quick. It may read
    /// the balancer and change it. A panic of the listener goes no further than the panic hook.
    ///
    /// ```
    /// use counterpoise::{Builder, Event};
    ///
    /// let builder = Builder::new().on_event(|event| match event {
    ///     Event::Ejected { endpoint, cause, .. } => eprintln!("{endpoint} is out: {cause:?}"),
    ///     event => eprintln!("{event:?}"),
    /// });
    /// ```
    pub fn on_event(mut self, listener: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.settings.listeners.push(Listener::new(listener));
        self
    }

    /// Builds a layer and has discovery followed, as [`BalanceLayer::new`] does.
    ///
    /// # Errors
    ///
    /// Refuses settings that make no sense, naming the setting.
    pub fn layer<D, T, P>(
        self,
        discover: D,
        policy: P,
    ) -> Result<BalanceLayer<T, P, J>, ConfigError>
    where
        D: Source<Target = T> + Send + 'static,
        T: Send + Sync + 'static,
        P: Policy,
    {
        self.settings.validate()?;
        Ok(self.spawn(discover, policy))
    }

    /// Builds a balancer over endpoints that bring their own service, as [`Balance::new`]
    /// does.
    ///
    /// # Errors
    ///
    /// Refuses settings that make no sense, naming the setting.
    pub fn balance<D, T, P>(
        self,
        discover: D,
        policy: P,
    ) -> Result<Balance<T, P, (), J>, ConfigError>
    where
        D: Source<Target = T> + Send + 'static,
        T: Send + Sync + 'static,
        P: Policy,
        J: Clone,
    {
        Ok(self.layer(discover, policy)?.layer(()))
    }

    /// Builds a layer and returns the driver instead of spawning it, as
    /// [`BalanceLayer::pair`] does.
    ///
    /// # Errors
    ///
    /// Refuses settings that make no sense, naming the setting.
    #[expect(clippy::type_complexity, reason = "a pair of two plain types")]
    pub fn pair<D, T, P>(
        self,
        discover: D,
        policy: P,
    ) -> Result<(BalanceLayer<T, P, J>, Driver<D, T, P>), ConfigError>
    where
        D: Source<Target = T>,
        T: Send + Sync + 'static,
        P: Policy,
    {
        self.settings.validate()?;
        Ok(self.connect(discover, policy))
    }

    pub(super) fn spawn<D, T, P>(self, discover: D, policy: P) -> BalanceLayer<T, P, J>
    where
        D: Source<Target = T> + Send + 'static,
        T: Send + Sync + 'static,
        P: Policy,
    {
        let (layer, driver) = self.connect(discover, policy);
        layer.cluster.spawner().start(driver);
        layer
    }

    pub(super) fn connect<D, T, P>(
        self,
        discover: D,
        policy: P,
    ) -> (BalanceLayer<T, P, J>, Driver<D, T, P>)
    where
        D: Source<Target = T>,
        P: Policy,
    {
        let (spawner, closed) = Spawner::new();
        let cluster = Arc::new(Cluster::new(policy, self.settings, spawner, Instant::now()));
        let driver = Driver::new(discover, &cluster, closed);
        (BalanceLayer { cluster, judge: self.judge }, driver)
    }
}

impl<J> fmt::Debug for Builder<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("settings", &self.settings).finish_non_exhaustive()
    }
}
