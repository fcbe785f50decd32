//! Events, statistics and metrics.

mod attempts;
pub(crate) mod event_attacks;
mod events;
mod purity;
mod telemetry;
