//! One endpoint's health: what counts, when it is ejected, how it comes back.
//!
//! Rules here are pure: time, chance and settings are arguments.

pub(crate) mod capacity;
pub(crate) mod classify;
pub(crate) mod counters;
pub(crate) mod ejection;
pub(crate) mod evidence;
pub(crate) mod factors;
pub(crate) mod fisher;
pub(crate) mod outcome;
pub(crate) mod outliers;
pub(crate) mod overload;
pub(crate) mod pace;
pub(crate) mod settings;
pub(crate) mod slow_start;
pub(crate) mod tally;

pub use capacity::CapacityChange;
pub use classify::ErrorsAreFailures;
pub use outliers::OutlierDetection;
pub use overload::Overload;
pub use pace::LatencyWeights;
pub use settings::PanicMode;
pub use slow_start::SlowStart;
