//! Events, statistics and metrics.

pub(crate) mod event_attacks;
mod events;
mod purity;
mod telemetry;
