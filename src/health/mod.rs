//! Settings of [`Health`](crate::Health): outlier detection, panic mode, and what lowers the weight of
//! an endpoint.

// The rules are pure: time, random numbers and settings are arguments.

pub(crate) mod capacity;
pub(crate) mod classify;
pub(crate) mod counters;
pub(crate) mod ejection;
pub(crate) mod evidence;
pub(crate) mod factors;
pub(crate) mod fisher;
pub(crate) mod latency_weights;
mod limits;
pub(crate) mod outcome;
pub(crate) mod outliers;
pub(crate) mod overload;
mod report;
pub(crate) mod settings;
pub(crate) mod slow_start;
pub(crate) mod slowness;
pub(crate) mod tally;

pub use capacity::CapacityChange;
pub use classify::ErrorsAreFailures;
pub use latency_weights::LatencyWeights;
pub use outliers::OutlierDetection;
pub use overload::Overload;
pub use settings::PanicMode;
pub use slow_start::SlowStart;
