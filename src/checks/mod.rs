//! Active checks: probes that ask endpoints how they are, beside the calls.
//!
//! A [`Probe`] says whether an endpoint is well: a closure, or one that is ready-made
//! (`checks::tcp`, `checks::http_get`, `checks::reqwest_get`, `checks::grpc_health`, each behind a
//! feature). [`Balance::check`](crate::Balance::check) makes a [`Checker`] of it, a future to
//! spawn.
//!
//! # Beside passive health
//!
//! Both have to agree that an endpoint is well:
//!
//! - An endpoint whose checks fail [`fall`](Checks::fall) times in a row is ejected, and no call
//!   tries it, until they pass [`rise`](Checks::rise) times in a row.
//! - Checks that pass do not shorten an ejection for failed calls: a probe that is answered
//!   does not prove that calls are. Its trial still decides.
//! - Endpoints are well until checks say otherwise, also new ones.
//! - [`max_ejected`](crate::Health::max_ejected), the rule that the only endpoint stays, and
//!   [`panic_mode`](crate::Health::panic_mode) hold for both together. While health is ignored, calls go
//!   also to endpoints that checks keep out; only checks bring those back.
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
//!     async move { if name == "a" { Ok(()) } else { Err("who is that?".into()) } }
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

/// Asks one endpoint how it is.
///
/// Implemented for closures over the endpoint's name and target. The types of both must be
/// written out: `|name: &str, target: &Origin| …`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not probe targets of type `{T}`",
    note = "give a closure `|name: &str, target: &{T}| async move {{ … }}`, with both types written out and a future that is `Send + 'static` and yields `Result<(), BoxError>`"
)]
pub trait Probe<T>: Send + Sync + 'static {
    /// The answer: an error if the endpoint is not well.
    type Future: Future<Output = Result<(), BoxError>> + Send + 'static;

    /// Begins to ask. A panic, here or in the future, counts as an error.
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

/// How often endpoints are asked, and what follows.
///
/// | setting | default | accepted |
/// |---|---|---|
/// | `interval` | 5 s | a millisecond to a year |
/// | `jitter` | 0.2 | 0 to 1 |
/// | `timeout` | 1 s | a millisecond to a year |
/// | `rise` | 2 | 1 and more |
/// | `fall` | 3 | 1 and more |
/// | `concurrency` | 32 | 1 and more |
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
        Self { probe, interval, jitter: 0.2, timeout, rise: 2, fall: 3, concurrency: 32 }
    }

    /// Sets the time from the end of one check to the next of the same endpoint. Default: 5 s.
    ///
    /// The first comes at a random moment of the first interval.
    pub const fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Sets up to what share of itself each interval is lengthened by chance. Default: 0.2.
    pub const fn jitter(mut self, share: f64) -> Self {
        self.jitter = share;
        self
    }

    /// Sets after what time a check has failed. Default: 1 s.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how many checks in a row must pass before an endpoint is back. Default: 2.
    pub const fn rise(mut self, checks: u32) -> Self {
        self.rise = checks;
        self
    }

    /// Sets how many checks in a row must fail before an endpoint is ejected. Default: 3.
    pub const fn fall(mut self, checks: u32) -> Self {
        self.fall = checks;
        self
    }

    /// Sets how many checks run at once, at most; others that are due wait. Default: 32.
    pub const fn concurrency(mut self, checks: usize) -> Self {
        self.concurrency = checks;
        self
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |bad: bool, field, problem| match bad {
            true => Err(ConfigError::new(field, problem)),
            false => Ok(()),
        };
        let outside = |time| !(SHORT..=YEAR).contains(&time);
        refuse(outside(self.interval), "interval", "must be from a millisecond to a year")?;
        refuse(outside(self.timeout), "timeout", "must be from a millisecond to a year")?;
        refuse(!(0.0..=1.0).contains(&self.jitter), "jitter", "must be between 0 and 1")?;
        refuse(self.rise == 0, "rise", "must be at least 1")?;
        refuse(self.fall == 0, "fall", "must be at least 1")?;
        refuse(self.concurrency == 0, "concurrency", "must be at least 1")
    }
}
