//! One endpoint's health: what counts, when it is ejected, how it comes back.
//!
//! Rules here are pure: time, chance and settings are arguments.

pub(crate) mod ejection;
pub(crate) mod factors;
mod fisher;
mod outcome;
pub(crate) mod outliers;
mod overload;
pub(crate) mod pace;
mod settings;
mod slow_start;
pub(crate) mod standing;

pub use outcome::Outcome;
pub use outliers::Outliers;
pub use overload::Overload;
pub use pace::LatencyWeights;
pub use settings::{Health, Panic};
pub use slow_start::SlowStart;
