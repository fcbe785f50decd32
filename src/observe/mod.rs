//! Statistics, metrics and log events of a balancer.

#[cfg(feature = "metrics")]
mod metrics;
pub(crate) mod stats;
mod table;
#[cfg(feature = "tracing")]
pub(crate) mod tracing;

pub use crate::cluster::discovery::Discovery;
#[cfg(feature = "metrics")]
pub(crate) use metrics::report;
#[cfg(feature = "metrics")]
pub use metrics::{Metrics, Reporter};
pub use stats::{EndpointState, EndpointStats};
