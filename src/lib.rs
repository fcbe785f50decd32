//! Client-side load balancing for tower.

mod balance;
mod classify;
pub mod discover;
mod endpoint;
mod error;
mod grpc;
mod health;
#[cfg(feature = "http")]
pub mod http;
mod hub;
mod node;
mod policy;
mod settings;
mod snapshot;
mod stats;
mod util;

pub use balance::{
    Attempts, AttemptsLayer, AttemptsService, Balance, BalanceLayer, Builder, ResponseFuture,
};
pub use classify::{Classify, ErrorsAreFailures};
pub use discover::{driver::Driver, progress::Discovery};
pub use endpoint::{Direct, Endpoint, Target};
pub use error::{BoxError, ConfigError, Counts, Error, ErrorKind};
pub use health::{Health, Outcome, Panic};
pub use policy::{
    BoxPolicy, BoxTable, Choice, MaskRoundRobin, Member, ModuloRoundRobin, Pick, Policy,
    RoundRobin, Turn, View,
};
pub use stats::{EndpointState, EndpointStats, Stats};
