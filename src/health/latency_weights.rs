//! Settings of weights by latency.

use crate::error::ConfigError;

/// Lowers the weight of endpoints that stay slower than their peers, and gives it back.
///
/// At the end of each [interval](crate::Health::interval), the mean latency of an endpoint's
/// successes is compared with the median of its peers' means. Above `above` times that, for
/// `after` intervals in a row, each interval takes a fifth of the weight that counts, down to
/// `floor`; below `below` times, or with fewer than `min_calls` calls to tell by, each gives
/// that back. In between, everything stays as it is.
///
/// For policies that do not look at latency by themselves; beside [`PeakEwma`](crate::policy::PeakEwma)
/// it would count twice.
///
/// | setting | default | accepted |
/// |---|---|---|
/// | `above` | 1.5 | above `below` |
/// | `below` | 1.2 | 1 and more |
/// | `after` | 3 intervals | 1 and more |
/// | `floor` | 0.25 | above 0 to 1 |
/// | `min_calls` | 10 | 1 and more |
///
/// ```
/// use counterpoise::{health::LatencyWeights, Health};
///
/// let health = Health::new().latency_weights(LatencyWeights::new().floor(0.5));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[must_use]
pub struct LatencyWeights {
    pub(super) above: f64,
    pub(super) below: f64,
    pub(super) after: u32,
    pub(super) floor: f64,
    pub(super) min_calls: u64,
}

impl Default for LatencyWeights {
    fn default() -> Self {
        Self::new()
    }
}

impl LatencyWeights {
    /// Creates the default settings.
    pub const fn new() -> Self {
        Self { above: 1.5, below: 1.2, after: 3, floor: 0.25, min_calls: 10 }
    }

    /// Sets from how many times its peers' latency on an endpoint is too slow. Default: 1.5.
    pub const fn above(mut self, times: f64) -> Self {
        self.above = times;
        self
    }

    /// Sets below how many times its peers' latency it gets weight back. Default: 1.2.
    pub const fn below(mut self, times: f64) -> Self {
        self.below = times;
        self
    }

    /// Sets after how many slow intervals in a row the weight sinks. Default: 3.
    pub const fn after(mut self, intervals: u32) -> Self {
        self.after = intervals;
        self
    }

    /// Sets what part of the weight is left at least. Default: 0.25.
    pub const fn floor(mut self, floor: f64) -> Self {
        self.floor = floor;
        self
    }

    /// Sets how many successes of an interval tell the latency. Default: 10.
    pub const fn min_calls(mut self, calls: u64) -> Self {
        self.min_calls = calls;
        self
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |problem| Err(ConfigError::new("latency_weights", problem));
        match self {
            _ if !(1.0..f64::MAX).contains(&self.below) => refuse("needs below of at least 1"),
            _ if !(self.below..f64::MAX).contains(&self.above) || self.above == self.below => {
                refuse("needs above to be more than below")
            }
            _ if self.after == 0 => refuse("needs after of at least 1"),
            _ if !(self.floor > 0.0 && self.floor <= 1.0) => {
                refuse("needs a floor above 0 and up to 1")
            }
            _ if self.min_calls == 0 => refuse("needs min_calls of at least 1"),
            _ => Ok(()),
        }
    }
}
