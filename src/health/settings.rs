//! What the user decides about health.

use std::time::Duration;

use crate::health::{
    LatencyWeights, OutlierDetection, Overload, SlowStart,
    evidence::{Limits, MAX_FAILURES},
};
use crate::{
    error::ConfigError,
    util::time::{SHORT, YEAR},
};

/// When endpoints are ejected and how they come back.
///
/// An endpoint that fails [`consecutive_failures`](Self::consecutive_failures) times in a
/// row is *ejected*: no call is sent to it for a period. When that is over, one call at a
/// time *tries* it; a success brings it back, a failure begins a longer period.
///
/// | the call that tries it | what follows |
/// |---|---|
/// | succeeds | it is back, or tried again if more [`trial_successes`](Self::trial_successes) are needed |
/// | fails, or is dropped at [`drop_counts_after`](Self::drop_counts_after) or later | a longer period |
/// | is pushed back | tried again after `base_ejection`, or when it said |
/// | is neutral, or dropped earlier | tried again after a pause, from a hundredth of `base_ejection` on and doubling up to it |
/// | could not be sent | tried again by the next call |
///
/// | setting | default | accepted |
/// |---|---|---|
/// | `consecutive_failures` | 5 | 1 to 2^29 - 1 |
/// | `base_ejection` | 10 s | above zero |
/// | `max_ejection` | 300 s | `base_ejection` to a year |
/// | `growth` | 2 | 1 to 1,000,000 |
/// | `jitter` | 0.2 | 0 to 1 |
/// | `trial_successes` | 1 | 1 and more |
/// | `max_ejected` | 1.0 | 0 to 1; 0 ejects nobody |
/// | `panic_below` | 0.0 | 0 to 1 |
/// | `panic_mode` | [`PanicMode::UseAll`] | |
/// | `drop_counts_after` | 1 s | any; 0 counts every drop |
/// | `overload` | [`Overload::new`] | |
/// | `slow_start` | off | [`SlowStart`] |
/// | `outlier_detection` | off | [`OutlierDetection`] |
/// | `latency_weights` | off | [`LatencyWeights`] |
/// | `interval` | 10 s | a millisecond to a year |
///
/// By default a call ends when its response begins; what comes later, in a streamed body, is
/// judged with `http::AtBodyEnd`, see [`Builder::judge`](crate::Builder::judge).
/// Nonsense is refused when the balancer is built, with an error that names the setting.
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
    trial_successes: u32,
    max_ejected: f64,
    panic_below: f64,
    panic: PanicMode,
    drop_counts_after: Duration,
    ejects: bool,
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
    /// Health is ignored: calls are spread over all endpoints with a weight. A success
    /// brings its endpoint back at once.
    UseAll,
    /// Calls fail at once, until an endpoint is back. The trials still go out.
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

    /// Ejects nobody, and push-back changes nothing. Outcomes are still counted in the
    /// statistics.
    pub fn off() -> Self {
        Self { ejects: false, overload: Overload::off(), ..Self::default() }
    }

    /// Sets how many failures in a row eject an endpoint. Default: 5.
    ///
    /// Any success between them starts the count anew; time does not.
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

    /// Sets by what factor each ejection is longer than the one before. Default: 2.
    ///
    /// The n-th period is `base_ejection × growth^(n-1)`, up to `max_ejection`. A past
    /// period is forgotten once the endpoint has been back in service for as long.
    pub fn growth(mut self, factor: f64) -> Self {
        self.growth = factor;
        self
    }

    /// Sets up to what share of itself each period is lengthened by chance, so that many
    /// clients do not return in the same instant. Default: 0.2; 0 switches it off.
    pub fn jitter(mut self, share: f64) -> Self {
        self.jitter = share;
        self
    }

    /// Sets how many trials in a row must succeed before an endpoint is back. Default: 1.
    pub fn trial_successes(mut self, successes: u32) -> Self {
        self.trial_successes = successes;
        self
    }

    /// Sets what share of the endpoints that have a weight may be ejected at once.
    /// Default: 1.0.
    ///
    /// The number is rounded down, but is at least one while the share is not zero. The
    /// only endpoint is never ejected. When the set shrinks, those that would be back
    /// soonest come back now.
    pub fn max_ejected(mut self, share: f64) -> Self {
        self.max_ejected = share;
        self
    }

    /// Sets below what share of healthy endpoints [`panic_mode`](Self::panic_mode) applies. With no
    /// healthy endpoint at all it always does. Default: 0.0.
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

    /// Sets from which age on a call that was dropped unfinished counts as a failure.
    /// Default: 1 s.
    ///
    /// A timeout above the balancer reaches it as a drop, so this should be no more than
    /// that timeout, or endpoints that hang are never ejected. Younger drops neither raise
    /// nor clear the count: callers may change their minds.
    pub fn drop_counts_after(mut self, age: Duration) -> Self {
        self.drop_counts_after = age;
        self
    }

    /// Sets what happens to an endpoint that pushes back. Default: [`Overload::new`].
    pub fn overload(mut self, overload: Overload) -> Self {
        self.overload = overload;
        self
    }

    /// Lets endpoints that join or return take up their share little by little. Default: off.
    pub fn slow_start(mut self, slow_start: SlowStart) -> Self {
        self.slow_start = Some(slow_start);
        self
    }

    /// Ejects endpoints that do worse than their peers, too. Default: off.
    pub fn outlier_detection(mut self, detection: OutlierDetection) -> Self {
        self.outlier_detection = Some(detection);
        self
    }

    /// Lowers the weights of endpoints that stay slower than their peers. Default: off.
    pub fn latency_weights(mut self, weights: LatencyWeights) -> Self {
        self.latency_weights = Some(weights);
        self
    }

    /// Sets how often endpoints are compared with their peers, for [`outlier_detection`](Self::outlier_detection)
    /// and [`latency_weights`](Self::latency_weights). Default: 10 s.
    ///
    /// The first call at or after the end of an interval has it judged: without calls there
    /// is nothing to judge.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Returns the settings for push-back, if it changes anything.
    pub(crate) fn heeded_overload(&self) -> Option<&Overload> {
        Some(&self.overload).filter(|overload| !overload.is_off())
    }

    /// Returns whether endpoints are compared with their peers.
    pub(crate) const fn compares(&self) -> bool {
        (self.outlier_detection.is_some() && self.ejects) || self.latency_weights.is_some()
    }

    /// Returns whether anybody is ejected at all.
    pub(crate) const fn ejects(&self) -> bool {
        self.ejects
    }

    /// Returns the settings that decide about the ends of calls.
    pub(crate) const fn limits(&self) -> Limits {
        Limits { threshold: self.threshold(), drop_age: self.drop_counts_after }
    }

    /// Returns the number of failures that ejects; never reached if health is off.
    pub(crate) const fn threshold(&self) -> u32 {
        if self.ejects { self.consecutive_failures } else { u32::MAX }
    }

    pub(crate) const fn trials_needed(&self) -> u32 {
        self.trial_successes
    }

    pub(crate) const fn fails_in_panic(&self) -> bool {
        matches!(self.panic, PanicMode::Fail)
    }

    /// Returns how many of `candidates` may be out at once.
    pub(crate) fn ejection_limit(&self, candidates: usize) -> usize {
        if candidates < 2 || self.max_ejected == 0.0 {
            return 0;
        }
        // The tiny addition keeps shares like 0.7 of 10 from falling below a whole number.
        let share = (self.max_ejected * candidates as f64 + 1e-9).floor() as usize;
        share.clamp(1, candidates)
    }

    /// Returns whether `healthy` of `candidates` are too few.
    pub(crate) fn is_panic(&self, healthy: usize, candidates: usize) -> bool {
        let least = self.panic_below * candidates as f64;
        candidates > 0 && (healthy == 0 || (healthy as f64) < least - 1e-9)
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |bad: bool, field, problem| match bad {
            true => Err(ConfigError::new(field, problem)),
            false => Ok(()),
        };
        let outside = |share: f64| !(0.0..=1.0).contains(&share);
        let failures = self.consecutive_failures;
        refuse(failures == 0, "consecutive_failures", "must be at least 1")?;
        refuse(failures > MAX_FAILURES, "consecutive_failures", "must be below 2^29")?;
        refuse(self.base_ejection.is_zero(), "base_ejection", "must be longer than zero")?;
        let longest = self.max_ejection;
        refuse(longest < self.base_ejection, "max_ejection", "must not be below base_ejection")?;
        refuse(longest > YEAR, "max_ejection", "must be at most a year")?;
        let growth = self.growth;
        refuse(!(1.0..=1e6).contains(&growth), "growth", "must be between 1 and 1,000,000")?;
        refuse(outside(self.jitter), "jitter", "must be between 0 and 1")?;
        refuse(self.trial_successes == 0, "trial_successes", "must be at least 1")?;
        refuse(outside(self.max_ejected), "max_ejected", "must be between 0 and 1")?;
        refuse(outside(self.panic_below), "panic_below", "must be between 0 and 1")?;
        let interval = !(SHORT..=YEAR).contains(&self.interval);
        refuse(interval, "interval", "must be from a millisecond to a year")?;
        self.overload.validate()?;
        self.slow_start.as_ref().map_or(Ok(()), SlowStart::validate)?;
        self.outlier_detection.as_ref().map_or(Ok(()), OutlierDetection::validate)?;
        self.latency_weights.as_ref().map_or(Ok(()), LatencyWeights::validate)
    }
}
