//! The builder: settings, and what is built from them.

use std::{fmt, time::Duration};

use tower_layer::Layer;

use super::{connect, layer::BalanceLayer, service::Balance};
use crate::{
    call::judge::{AtHead, Implied},
    cluster::settings::Settings,
    discover::{Driver, Source},
    error::ConfigError,
    event::{Event, Listener},
    health::{classify::Classify, outcome::Outcome, settings::Health},
    policy::Policy,
};

/// Builds balancers with other settings than the defaults.
///
/// | setting | default |
/// |---|---|
/// | [`health`](Self::health) | [`Health::new`] |
/// | [`classify`](Self::classify), [`judge`](Self::judge) | [`Implied`]: the judge of the target |
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
        Self {
            settings: Settings::default(),
            judge: Implied,
        }
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl<J> Builder<J> {
    /// Sets when endpoints are ejected and how they recover. Default: [`Health::new`].
    pub fn health(mut self, health: Health) -> Self {
        self.settings.health = health;
        self
    }

    /// Sets the classifier of results, as the judge [`AtHead`].
    ///
    /// It classifies the head of the response; [`judge`](Self::judge) takes judges that follow the
    /// body. Default: the judge of the target, see [`Implied`].
    pub fn classify<K>(self, classify: K) -> Builder<AtHead<K>> {
        self.judge(AtHead::new(classify))
    }

    /// Sets a closure as the classifier of results, as [`classify`](Self::classify) does.
    ///
    /// Write the types of its argument out, `|result: Result<&Response, &Error>| …`: closures that
    /// look into the response need them. The closure must be `Clone`. To name the type of the
    /// balancer, in a struct say, give a function pointer: `J` is then
    /// `AtHead<fn(Result<&Response, &Error>) -> Outcome>`. Default: the judge of the target, see
    /// [`Implied`].
    pub fn classify_fn<Res, Err, F>(self, classify: F) -> Builder<AtHead<F>>
    where
        F: Fn(Result<&Res, &Err>) -> Outcome + Classify<Res, Err>,
    {
        self.classify(classify)
    }

    /// Sets the judge: when a call is over, and its outcome. Default: [`Implied`].
    ///
    /// A call that is over is no longer in flight, and its outcome and latency are counted. For
    /// `http::Response` the judges `http::AtFirstData` and `http::AtBodyEnd` wait for the first data
    /// or the end of the body; the response then has another type of body.
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
        Builder {
            settings: self.settings,
            judge,
        }
    }

    /// Sets how long calls wait for the first endpoints. Default: 5 s.
    ///
    /// Also how long they wait while the set is empty, if [`wait_when_empty`](Self::wait_when_empty)
    /// is on. At most a year. Outside a tokio runtime, or in one without a time driver, the wait has no
    /// timeout.
    pub fn wait_for_endpoints(mut self, timeout: Duration) -> Self {
        self.settings.wait_for_endpoints = timeout;
        self
    }

    /// Sets whether calls wait while the set is empty, instead of failing at once. Default: false.
    pub fn wait_when_empty(mut self, wait: bool) -> Self {
        self.settings.wait_when_empty = wait;
        self
    }

    /// Sets how long calls wait while no endpoint is ready. Default: 30 s; at most a year.
    ///
    /// Outside a tokio runtime, or in one without a time driver, the wait has no timeout.
    pub fn wait_for_ready(mut self, timeout: Duration) -> Self {
        self.settings.wait_for_ready = timeout;
        self
    }

    /// Sets how many calls may wait at the same time. Default: 10,000.
    ///
    /// Further calls fail immediately instead of waiting; with 0 no call waits.
    pub fn max_waiting(mut self, calls: usize) -> Self {
        self.settings.max_waiting = calls;
        self
    }

    /// Sets whether the last endpoints stay in use when discovery removes all. Default: false.
    ///
    /// The next endpoint that is inserted replaces them.
    pub fn keep_last(mut self, keep: bool) -> Self {
        self.settings.keep_last = keep;
        self
    }

    /// Sets the seed of all random choices. Default: random.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = Some(seed);
        self
    }

    /// Sets the first ticket. Default: random, so that clients start at different endpoints.
    ///
    /// With 0 a round robin starts at the first endpoint. With any value smooth weighted round robin
    /// starts without credit.
    pub fn starting_at(mut self, ticket: u64) -> Self {
        self.settings.starting_at = Some(ticket);
        self
    }

    /// Adds a listener for events. Default: none.
    ///
    /// The listener gets each event once, in order. It runs in the call or task that caused the
    /// event, or in one that delivers other events at that time, so it should be quick. It may read
    /// and change the balancer. A panic of the listener is caught after the panic hook has run.
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

    /// Builds a layer and spawns its driver, as [`BalanceLayer::new`] does.
    ///
    /// # Errors
    ///
    /// Fails if a setting is invalid; the error names the setting.
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
        let cluster = connect::spawn(self.settings, discover, policy);
        Ok(BalanceLayer {
            cluster,
            judge: self.judge,
        })
    }

    /// Builds a balancer over endpoints with services of their own, as [`Balance::new`] does.
    ///
    /// # Errors
    ///
    /// Fails if a setting is invalid; the error names the setting.
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

    /// Builds a layer and its driver without spawning it, as [`BalanceLayer::pair`] does.
    ///
    /// # Errors
    ///
    /// Fails if a setting is invalid; the error names the setting.
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
        let (cluster, driver) = connect::connect(self.settings, discover, policy);
        Ok((
            BalanceLayer {
                cluster,
                judge: self.judge,
            },
            driver,
        ))
    }
}

impl<J> fmt::Debug for Builder<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
