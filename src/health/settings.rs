//! The settings of health.

use std::time::Duration;

use super::{LatencyWeights, OutlierDetection, Overload, SlowStart, evidence::MAX_FAILURES};
use crate::{
    error::ConfigError,
    util::time::{SHORT, YEAR},
};

/// When endpoints are ejected, and how they recover.
///
/// An endpoint whose calls fail [`consecutive_failures`](Self::consecutive_failures) times in a row
/// is *ejected*: it gets no calls for a period. After the period one call at a time is the *trial*.
/// A success ends the ejection; a failure begins a longer period.
///
/// | trial | what follows |
/// |---|---|
/// | succeeds | the endpoint recovers, or the next trial follows if more [`trial_successes`](Self::trial_successes) are needed |
/// | fails, or is dropped at the age of [`drop_counts_after`](Self::drop_counts_after) or later | a longer period |
/// | is pushed back | the next trial after `base_ejection`, or after the time that the endpoint requested, at most `max_ejection`, if that is longer |
/// | is neutral, or is dropped earlier | the next trial after a pause: as long as the trial took, and a hundredth of `base_ejection` more; that addition doubles each time, up to `base_ejection`; at most `max_ejection` |
/// | could not be sent | the next call is the trial |
///
/// | setting | default | accepted |
/// |---|---|---|
/// | `consecutive_failures` | 5 | 1 to 2^29 - 1 |
/// | `base_ejection` | 10 s | above zero |
/// | `max_ejection` | 300 s | `base_ejection` to a year |
/// | `growth` | 2 | 1 to 1,000,000 |
/// | `jitter` | 0.2 | 0 to 1 |
/// | `trial_successes` | 1 | 1 and more |
/// | `max_ejected` | 1.0 | 0 to 1; 0 ejects no endpoint |
/// | `panic_below` | 0.0 | 0 to 1 |
/// | `panic_mode` | [`PanicMode::UseAll`] | |
/// | `drop_counts_after` | 1 s | any; 0 counts every drop |
/// | `overload` | [`Overload::new`] | |
/// | `slow_start` | off | [`SlowStart`] |
/// | `outlier_detection` | off | [`OutlierDetection`] |
/// | `latency_weights` | off | [`LatencyWeights`] |
/// | `interval` | 10 s | a millisecond to a year |
///
/// When a call ends depends on the target: over `Direct` and `http::Origin` at the head of its
/// response, over `http::GrpcChannel` at the end of the body.
/// [`Builder::judge`](crate::Builder::judge) sets another rule.
///
/// # Errors
///
/// The builder returns a [`ConfigError`] that names the first setting with a value that is not
/// accepted.
///
/// ```
/// use counterpoise::{discover, policy::RoundRobin, Builder, Health};
/// use std::time::Duration;
///
/// let health = Health::new().consecutive_failures(3).base_ejection(Duration::from_secs(2));
/// let endpoints = discover::list([("a", counterpoise::Endpoint::new(counterpoise::Direct(())))]);
/// let layer = Builder::new().health(health).layer(endpoints, RoundRobin::new());
/// assert!(layer.is_ok());
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Health {
    pub(super) consecutive_failures: u32,
    pub(super) base_ejection: Duration,
    pub(super) max_ejection: Duration,
    pub(super) growth: f64,
    pub(super) jitter: f64,
    pub(super) trial_successes: u32,
    pub(super) max_ejected: f64,
    pub(super) panic_below: f64,
    pub(super) panic: PanicMode,
    pub(super) drop_counts_after: Duration,
    pub(super) ejects: bool,
    pub(super) overload: Overload,
    pub(super) slow_start: Option<SlowStart>,
    pub(crate) outlier_detection: Option<OutlierDetection>,
    pub(super) latency_weights: Option<LatencyWeights>,
    pub(crate) interval: Duration,
}

/// What happens to calls when too few endpoints are healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PanicMode {
    /// Calls go to all endpoints with a weight, also to ejected ones. A success ends the ejection
    /// of its endpoint at once, unless active checks keep the endpoint out.
    UseAll,
    /// Calls fail at once until an endpoint recovers, except for the trials.
    Fail,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            consecutive_failures: 5,
            base_ejection: Duration::from_secs(10),
            max_ejection: Duration::from_secs(300),
            growth: 2.0,
            jitter: 0.2,
            trial_successes: 1,
            max_ejected: 1.0,
            panic_below: 0.0,
            panic: PanicMode::UseAll,
            drop_counts_after: Duration::from_secs(1),
            ejects: true,
            overload: Overload::new(),
            slow_start: None,
            outlier_detection: None,
            latency_weights: None,
            interval: Duration::from_secs(10),
        }
    }
}

impl Health {
    /// Creates the default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates settings that eject no endpoint because of its calls, and ignore push-back.
    ///
    /// Active checks still eject, and the statistics still count outcomes.
    pub fn off() -> Self {
        Self {
            ejects: false,
            overload: Overload::off(),
            ..Self::default()
        }
    }

    /// Sets how many failures in a row eject an endpoint. Default: 5.
    ///
    /// A success in between resets the count. The time between failures does not matter.
    pub fn consecutive_failures(mut self, failures: u32) -> Self {
        self.consecutive_failures = failures;
        self
    }

    /// Sets how long the first ejection lasts. Default: 10 s.
    pub fn base_ejection(mut self, period: Duration) -> Self {
        self.base_ejection = period;
        self
    }

    /// Sets the longest ejection, before jitter. Default: 300 s.
    pub fn max_ejection(mut self, period: Duration) -> Self {
        self.max_ejection = period;
        self
    }

    /// Sets the factor by which each ejection is longer than the one before. Default: 2.
    ///
    /// The n-th period is `base_ejection × growth^(n-1)`, up to `max_ejection`. A past period no
    /// longer counts after the endpoint has been in service for as long.
    pub fn growth(mut self, factor: f64) -> Self {
        self.growth = factor;
        self
    }

    /// Sets the greatest random extension of a period, as a share of the period. Default: 0.2.
    ///
    /// It keeps many clients from returning in the same instant. 0 switches it off.
    pub fn jitter(mut self, share: f64) -> Self {
        self.jitter = share;
        self
    }

    /// Sets how many trials in a row must succeed before an endpoint recovers. Default: 1.
    pub fn trial_successes(mut self, successes: u32) -> Self {
        self.trial_successes = successes;
        self
    }

    /// Sets the greatest share of the endpoints with a weight that may be ejected at once.
    /// Default: 1.0.
    ///
    /// The number is rounded down, but is at least one unless the share is zero. The only endpoint
    /// is never ejected. If the set shrinks, the endpoints whose periods end first recover.
    pub fn max_ejected(mut self, share: f64) -> Self {
        self.max_ejected = share;
        self
    }

    /// Sets the share of healthy endpoints below which [`panic_mode`](Self::panic_mode) applies.
    /// Default: 0.0.
    ///
    /// Without a healthy endpoint it always applies.
    pub fn panic_below(mut self, share: f64) -> Self {
        self.panic_below = share;
        self
    }

    /// Sets what happens to calls when too few endpoints are healthy. Default:
    /// [`PanicMode::UseAll`].
    pub fn panic_mode(mut self, panic: PanicMode) -> Self {
        self.panic = panic;
        self
    }

    /// Sets the age from which on a dropped, unfinished call counts as a failure. Default: 1 s.
    ///
    /// A timeout above the balancer drops the call, so this should not exceed that timeout;
    /// otherwise endpoints that hang are never ejected. Earlier drops do not change the count.
    pub fn drop_counts_after(mut self, age: Duration) -> Self {
        self.drop_counts_after = age;
        self
    }

    /// Sets what happens to an endpoint that pushes back. Default: [`Overload::new`].
    pub fn overload(mut self, overload: Overload) -> Self {
        self.overload = overload;
        self
    }

    /// Sets the ramp of endpoints that join or recover. Default: off.
    pub fn slow_start(mut self, slow_start: SlowStart) -> Self {
        self.slow_start = Some(slow_start);
        self
    }

    /// Also ejects endpoints that fail more often than their peers. Default: off.
    pub fn outlier_detection(mut self, detection: OutlierDetection) -> Self {
        self.outlier_detection = Some(detection);
        self
    }

    /// Lowers the weights of endpoints that stay slower than their peers. Default: off.
    pub fn latency_weights(mut self, weights: LatencyWeights) -> Self {
        self.latency_weights = Some(weights);
        self
    }

    /// Sets how often endpoints are compared with their peers. Default: 10 s.
    ///
    /// [`outlier_detection`](Self::outlier_detection) and [`latency_weights`](Self::latency_weights)
    /// use it. The first call at or after the end of an interval makes the comparison.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let require = ConfigError::require;
        let is_share = |share: f64| (0.0..=1.0).contains(&share);
        self.validate_ejection()?;
        require(
            is_share(self.max_ejected),
            "max_ejected",
            "must be between 0 and 1",
        )?;
        require(
            is_share(self.panic_below),
            "panic_below",
            "must be between 0 and 1",
        )?;
        let interval = (SHORT..=YEAR).contains(&self.interval);
        require(interval, "interval", "must be from a millisecond to a year")?;
        self.overload.validate()?;
        self.slow_start
            .as_ref()
            .map_or(Ok(()), SlowStart::validate)?;
        self.outlier_detection
            .as_ref()
            .map_or(Ok(()), OutlierDetection::validate)?;
        self.latency_weights
            .as_ref()
            .map_or(Ok(()), LatencyWeights::validate)
    }

    fn validate_ejection(&self) -> Result<(), ConfigError> {
        let require = ConfigError::require;
        let (failures, base, max) = (
            self.consecutive_failures,
            self.base_ejection,
            self.max_ejection,
        );
        require(failures > 0, "consecutive_failures", "must be at least 1")?;
        require(
            failures <= MAX_FAILURES,
            "consecutive_failures",
            "must be below 2^29",
        )?;
        require(!base.is_zero(), "base_ejection", "must be longer than zero")?;
        require(
            max >= base,
            "max_ejection",
            "must not be below base_ejection",
        )?;
        require(max <= YEAR, "max_ejection", "must be at most a year")?;
        let growth = (1.0..=1e6).contains(&self.growth);
        require(growth, "growth", "must be between 1 and 1,000,000")?;
        require(
            (0.0..=1.0).contains(&self.jitter),
            "jitter",
            "must be between 0 and 1",
        )?;
        require(
            self.trial_successes > 0,
            "trial_successes",
            "must be at least 1",
        )
    }
}
