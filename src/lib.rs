//! Client-side load balancing for [tower](https://docs.rs/tower): one layer over a client spreads
//! its calls over a live set of endpoints, fairly and past endpoints that fail.
//!
//! ```
//! # #[cfg(feature = "reqwest")]
//! # fn client() -> Result<(), Box<dyn std::error::Error>> {
//! use counterpoise::{discover, http::Origin, policy::RoundRobin, BalanceLayer, Endpoint};
//! use std::time::Duration;
//! use tower::ServiceBuilder;
//!
//! let endpoints = discover::list([
//!     ("a", Endpoint::new(Origin::try_from("http://10.0.0.1:8080")?)),
//!     ("b", Endpoint::new(Origin::try_from("http://10.0.0.2:8080")?)),
//! ]);
//! let client = ServiceBuilder::new()
//!     .timeout(Duration::from_secs(2))
//!     .layer(BalanceLayer::new(endpoints, RoundRobin::new()))
//!     .service(reqwest::Client::new());
//! # Ok(())
//! # }
//! ```
//!
//! The [`guide`] begins with [reqwest, hyper and tonic](guide::start), and has the table of
//! [policies](guide::policies), the [states of an endpoint](guide::health), a policy of
//! [your own](guide::your_own) and [troubleshooting](guide::troubleshooting).
//!
//! # The modules, in reading order
//!
//! - The root: [`Balance`] is the service, [`BalanceLayer`] and [`Builder`] make it. An [`Endpoint`]
//!   is a [`Target`] with a weight; [`Direct`] brings its own service, `http::Origin` points a shared
//!   client at a server. [`Health`] has the settings of ejection, [`Classify`] turns a result into an
//!   [`Outcome`], [`Attempts`] keep retries away from endpoints that were tried, [`Stats`] and
//!   [`Event`] show what happens, and an [`Error`] names its endpoint.
//! - [`discover`]: where endpoints come from.
//! - [`policy`]: how an endpoint is picked; [`policy::affinity`]: by the key of a request.
//! - [`health`]: outlier detection, slow start, push-back, panic mode.
//! - [`checks`]: probes beside the calls.
//! - `http`: targets, classifiers and affinity keys for HTTP and gRPC.
//! - [`call`]: when a call is over, and its future.
//! - [`observe`]: statistics and metrics. [`event`], [`error`]: what they consist of.
//!
//! # Features
//!
//! None is on by default, and none changes what the others do.
//!
//! - `http`: `http::Origin` for clients of `http::Request`, such as hyper-util's;
//!   `http::GrpcChannel`; classifiers of statuses; calls that are over at the end of their bodies;
//!   `checks::http_get`.
//! - `reqwest`: `http::Origin` for `reqwest::Client`; `checks::reqwest_get`. Its calls are over at
//!   the head, because its response cannot be wrapped.
//! - `tonic`: `http`, and errors of requests that were not sent reach a tonic client as
//!   `Unavailable`.
//! - `tcp`: `checks::tcp`. `grpc-health`: `checks::grpc_health`.
//! - `tower-http`: `http::ByTowerHttp`, for the classifiers of tower-http 0.7.
//! - `tracing`: each [`Event`] is a log event of target `counterpoise`: at `warn` for ejections and
//!   for what concerns the whole set, at `debug` for trials and weights, else at `info`.
//!   `metrics`: counters and gauges through the `metrics` facade, see `observe::Metrics`.
//!
//! # Runtime and platforms
//!
//! Discovery is followed by a task on tokio, or by a [`Driver`](discover::Driver) future that the
//! program runs. Calls that wait use tokio's timers: the runtime needs its time driver enabled.
//! Linux, macOS, Windows and any other target with the standard library and 64-bit atomics.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_has_atomic = "64"))]
compile_error!("counterpoise needs a target with atomic operations on 64-bit integers");

mod balance;
pub mod call;
pub mod checks;
mod cluster;
pub mod discover;
mod endpoint;
pub mod error;
pub mod event;
pub mod guide;
pub mod health;
#[cfg(feature = "http")]
pub mod http;
mod load;
pub mod observe;
pub mod policy;
mod util;

pub use balance::{Balance, BalanceLayer, Builder};
pub use call::attempts::{Attempts, AttemptsLayer};
pub use endpoint::{Direct, Endpoint, Target};
pub use error::{BoxError, ConfigError, Error};
pub use event::Event;
pub use health::{classify::Classify, outcome::Outcome, settings::Health};
pub use observe::stats::Stats;

/// The README's examples compile.
#[cfg(all(doctest, feature = "reqwest", feature = "tonic"))]
#[doc = include_str!("../README.md")]
struct Readme;
