//! Active checks: probes of the endpoints, beside the calls.
//!
//! A [`Probe`] shows whether an endpoint is healthy. It is a closure, or one of `checks::tcp`,
//! `checks::http_get`, `checks::reqwest_get` and `checks::grpc_health`, each behind a feature.
//! [`Balance::check`](crate::Balance::check) makes a [`Checker`] of it, a future to spawn.
//!
//! # Checks and passive health
//!
//! An endpoint is in service only if both its checks and its calls allow it:
//!
//! - An endpoint whose checks fail [`fall`](Checks::fall) times in a row is ejected, without trials,
//!   until they pass [`rise`](Checks::rise) times in a row.
//! - Passing checks do not shorten an ejection for failed calls, which only a trial ends: a probe
//!   that succeeds does not prove that calls do.
//! - An endpoint counts as healthy until its checks have failed, also a new one.
//! - [`max_ejected`](crate::Health::max_ejected), [`panic_mode`](crate::Health::panic_mode) and the
//!   rule that the only endpoint is never ejected hold for both together. In panic mode calls also go
//!   to endpoints that were ejected by checks, but a success does not end those ejections. Checks end
//!   them, and so does a change of the set or of a weight after which more endpoints are ejected than
//!   `max_ejected` allows.
//!
//! ```
//! use counterpoise::{checks::Checks, discover, policy::RoundRobin, Balance, Direct, Endpoint};
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), counterpoise::ConfigError> {
//! let endpoints = discover::list([("a", Endpoint::new(Direct("a service")))]);
//! let balance = Balance::new(endpoints, RoundRobin::new());
//! let probe = |name: &str, _target: &Direct<&str>| {
//!     let name = name.to_owned();
//!     async move { if name == "a" { Ok(()) } else { Err("unknown endpoint".into()) } }
//! };
//! tokio::spawn(balance.check(Checks::new(probe).interval(Duration::from_secs(2)))?);
//! # Ok(())
//! # }
//! ```

mod checker;
#[cfg(feature = "grpc-health")]
mod grpc;
#[cfg(feature = "http")]
mod http;
mod rounds;
#[cfg(feature = "tcp")]
mod tcp;

use std::{future::Future, time::Duration};

pub use checker::Checker;
pub(crate) use checker::check;
#[cfg(feature = "grpc-health")]
pub use grpc::{GrpcHealth, grpc_health};
#[cfg(feature = "http")]
pub use http::{HttpGet, http_get};
#[cfg(feature = "reqwest")]
pub use http::{ReqwestGet, reqwest_get};
#[cfg(feature = "tcp")]
pub use tcp::{Tcp, tcp};

use crate::{
    error::{BoxError, ConfigError},
    util::time::{SHORT, YEAR},
};

/// Checks one endpoint.
///
/// Closures over the endpoint's name and target implement it. The types of both must be written out:
/// `|name: &str, target: &Origin| …`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not probe targets of type `{T}`",
    note = "give a closure `|name: &str, target: &{T}| async move {{ … }}`, with both types written out and a future that is `Send + 'static` and yields `Result<(), BoxError>`"
)]
pub trait Probe<T>: Send + Sync + 'static {
    /// Yields an error if the endpoint is not healthy.
    type Future: Future<Output = Result<(), BoxError>> + Send + 'static;

    /// Starts the check of one endpoint.
    ///
    /// # Panics
    ///
    /// A panic, here or in the future, counts as an error.
    fn probe(&self, name: &str, target: &T) -> Self::Future;
}

#[diagnostic::do_not_recommend]
impl<F, T, A> Probe<T> for F
where
    F: Fn(&str, &T) -> A + Send + Sync + 'static,
    A: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    type Future = A;

    fn probe(&self, name: &str, target: &T) -> A {
        self(name, target)
    }
}

/// The settings of active checks.
///
/// | setting | default | accepted |
/// |---|---|---|
/// | `interval` | 5 s | a millisecond to a year |
/// | `jitter` | 0.2 | 0 to 1 |
/// | `timeout` | 1 s | a millisecond to a year |
/// | `rise` | 2 | 1 and more |
/// | `fall` | 3 | 1 and more |
/// | `concurrency` | 32 | 1 and more |
///
/// # Errors
///
/// [`Balance::check`](crate::Balance::check) returns a [`ConfigError`] that names the first setting
/// with a value that is not accepted.
#[derive(Debug, Clone)]
#[must_use]
pub struct Checks<R> {
    probe: R,
    interval: Duration,
    jitter: f64,
    timeout: Duration,
    rise: u32,
    fall: u32,
    concurrency: usize,
}

impl<R> Checks<R> {
    /// Creates the default settings for a probe.
    pub const fn new(probe: R) -> Self {
        let (interval, timeout) = (Duration::from_secs(5), Duration::from_secs(1));
        Self {
            probe,
            interval,
            jitter: 0.2,
            timeout,
            rise: 2,
            fall: 3,
            concurrency: 32,
        }
    }

    /// Sets the time from the end of a check to the endpoint's next one. Default: 5 s.
    ///
    /// The first check comes at a random moment of the first interval.
    pub const fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Sets the greatest random extension of an interval, as a share of it. Default: 0.2.
    pub const fn jitter(mut self, share: f64) -> Self {
        self.jitter = share;
        self
    }

    /// Sets the time after which a running check fails. Default: 1 s.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how many checks in a row must pass to end an ejection by checks. Default: 2.
    pub const fn rise(mut self, checks: u32) -> Self {
        self.rise = checks;
        self
    }

    /// Sets how many checks in a row must fail to eject an endpoint. Default: 3.
    pub const fn fall(mut self, checks: u32) -> Self {
        self.fall = checks;
        self
    }

    /// Sets how many checks may run at once; further ones wait. Default: 32.
    pub const fn concurrency(mut self, checks: usize) -> Self {
        self.concurrency = checks;
        self
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let require = ConfigError::require;
        let (interval, timeout) = (is_in_range(self.interval), is_in_range(self.timeout));
        require(interval, "interval", "must be from a millisecond to a year")?;
        require(timeout, "timeout", "must be from a millisecond to a year")?;
        require(
            (0.0..=1.0).contains(&self.jitter),
            "jitter",
            "must be between 0 and 1",
        )?;
        require(self.rise > 0, "rise", "must be at least 1")?;
        require(self.fall > 0, "fall", "must be at least 1")?;
        require(self.concurrency > 0, "concurrency", "must be at least 1")
    }
}

fn is_in_range(time: Duration) -> bool {
    (SHORT..=YEAR).contains(&time)
}
