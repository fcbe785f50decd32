//! Client-side load balancing for [tower](https://docs.rs/tower): one layer over a client,
//! and its calls are spread over a live set of endpoints, fairly and past broken ones.
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
//! # The pieces
//!
//! - **Endpoints** come from a [`discover`] stream, by key: an [`Endpoint`] is a [`Target`]
//!   with a weight. [`Direct`] brings its own service, such as a tonic `Channel`;
//!   `http::Origin` points a shared HTTP client somewhere.
//! - A **policy** chooses, see [below](#which-policy).
//! - **Health** is judged by the outcomes of calls, see [below](#health).
//! - [`Balance`] is the service, made by [`BalanceLayer`] or [`Balance::new`]; [`Builder`]
//!   has the settings; [`Stats`] shows what goes on; an [`Error`] names its endpoint.
//!
//! # Which policy
//!
//! | policy | when | why |
//! |---|---|---|
//! | [`RoundRobin`] | endpoints and requests are much alike | exactly even, the cheapest |
//! | [`SmoothWeighted`] | endpoints differ in capacity | exactly by weight, spread evenly in time |
//! | [`LeastRequest`] | requests take different times | of two at random, the one that holds fewer calls for its weight |
//! | [`PeakEwma`] | endpoints are differently fast, or sometimes slow | of two at random, the one whose calls are expected to take less time |
//! | [`Random`], [`WeightedRandom`] | very many clients with few calls each | no order that clients could share; even only in the long run |
//! | [`RingHash`] | a key should stay with one endpoint | a change moves only the keys it must |
//! | [`Maglev`] | the same, with nearly exact shares | a table of fixed size; a change moves a few more |
//! | [`Rendezvous`] | the same, for small sets | every pick asks every endpoint |
//! | [`HashMod`] | the same, for sets that never change | the simplest; a change moves nearly all |
//! | [`BoxPolicy`] | chosen while the program runs | one type for all |
//! | your own ([`Policy`], [`Pick`]) | the request matters, or you know more | |
//!
//! [`ModuloRoundRobin`] picks what [`RoundRobin`] does, without its mask. Cost per pick and
//! per rebuild: see each policy. Weights are ignored by the unweighted policies, but for
//! zero, which drains under every policy.
//!
//! # Health
//!
//! [`Health`] says what happens, [`Classify`] what an answer means, [`Builder::ends`] when a call
//! is over.
//!
//! | what goes wrong | what to use |
//! |---|---|
//! | an endpoint fails, hangs or refuses connections | on by default: ejected after failures in a row, then tried by one call at a time |
//! | it answers 5xx, or a gRPC status | `http::Status`, `http::Grpc`; closures; `http::ByTowerHttp` |
//! | the status is in the trailers | `http::AtBodyEnd` |
//! | it fails now and then, or is slow now and then | [`OutlierDetection`]: compared with its peers |
//! | it pushes back (429, `RESOURCE_EXHAUSTED`) | on by default with those classifiers: gets less for a while, see [`Overload`] |
//! | it is new, or just back | [`SlowStart`]: takes up its share little by little |
//! | it is slower than its peers | [`PeakEwma`]; or [`LatencyWeights`], under the weighted policies |
//! | nobody calls it, and it is broken | [`checks`] ask it |
//!
//! What happens is told to [`Builder::on_event`], to `tracing` and `metrics` (features), and
//! shown by [`Stats`].
//!
//! # Layers above
//!
//! `Balance` is `Clone`, `Send` and `Sync` and needs no `Buffer`. A **retry** layer above it
//! chooses afresh for each attempt; with [`AttemptsLayer`] above the retry, each attempt
//! prefers endpoints that the request has not tried. A **timeout** above it covers waiting,
//! too. It reaches the balancer as a dropped call, which counts as a failure of the endpoint
//! if it was older than [`drop_counts_after`](Health::drop_counts_after): set that to no more
//! than the timeout, or an endpoint that hangs is never ejected. From the top:
//!
//! ```text
//! timeout (whole request)  →  AttemptsLayer  →  retry  →  timeout (attempt)  →  BalanceLayer
//! ```
//!
//! A tonic client should set its deadline with tonic's own `Request::set_timeout`, which
//! reaches the endpoint's channel: it counts as a failure there, names the endpoint, needs
//! no `drop_counts_after`, and comes out as `Cancelled`. A tower timeout above a generated client comes out as
//! `Unknown`, as it does above a bare channel.
//!
//! # Features
//!
//! None is on by default, and none changes what the others do.
//!
//! - `http`: `http::Origin` for clients of `http::Request`, such as hyper-util's; classifiers of
//!   statuses; calls that are over at the end of their bodies; `checks::http_get`.
//! - `reqwest`: `http::Origin` for `reqwest::Client`; `checks::reqwest_get`. Its calls are over
//!   at the head: its response cannot be wrapped.
//! - `tonic`: errors of calls that were never sent reach a tonic client as `Unavailable`.
//! - `tcp`: `checks::tcp`. `grpc-health`: `checks::grpc_health`.
//! - `tower-http`: `http::ByTowerHttp`, for the classifiers of tower-http 0.7.
//! - `tracing`: each [`Event`] is a log event too, of target `counterpoise`: at `warn` for
//!   ejections and what concerns the whole set, `debug` for trials and weights, else `info`.
//!   `metrics`: counters and gauges through the `metrics` facade, see [`Metrics`].
//!
//! # Runtime
//!
//! Discovery is followed by a task on tokio, or by a [`Driver`] future that you run. Waiting
//! calls use tokio's timers: the runtime needs its time driver enabled.

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
