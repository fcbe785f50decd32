//! Settings of weights by latency.

use crate::error::ConfigError;

/// Lowers the effective weight of endpoints that stay slower than their peers.
///
/// At the end of each [interval](crate::Health::interval), the mean latency of an endpoint's
/// successes is compared with the median of its peers' means. After `after` intervals in a row above
/// `above` times the median, each interval lowers the effective weight by a fifth, down to `floor`.
/// Each interval below `below` times the median raises it by one such step, and so does each interval
/// with fewer than `min_calls` successes. In between, the weight does not change.
///
/// It is for policies that do not use latency. [`PeakEwma`](crate::policy::PeakEwma) does; there the
/// latency would count twice.
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
        Self {
            above: 1.5,
            below: 1.2,
            after: 3,
            floor: 0.25,
            min_calls: 10,
        }
    }

    /// Sets the multiple of the peers' latency above which an endpoint is too slow. Default: 1.5.
    pub const fn above(mut self, times: f64) -> Self {
        self.above = times;
        self
    }

    /// Sets the multiple of the peers' latency below which the weight rises. Default: 1.2.
    pub const fn below(mut self, times: f64) -> Self {
        self.below = times;
        self
    }

    /// Sets how many slow intervals in a row lower the weight. Default: 3.
    pub const fn after(mut self, intervals: u32) -> Self {
        self.after = intervals;
        self
    }

    /// Sets the least part of the weight that remains. Default: 0.25.
    pub const fn floor(mut self, floor: f64) -> Self {
        self.floor = floor;
        self
    }

    /// Sets how many successes of an interval the comparison needs. Default: 10.
    pub const fn min_calls(mut self, calls: u64) -> Self {
        self.min_calls = calls;
        self
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let require = |ok, problem| ConfigError::require(ok, "latency_weights", problem);
        require(
            (1.0..f64::MAX).contains(&self.below),
            "needs below of at least 1",
        )?;
        let above = self.above > self.below && self.above < f64::MAX;
        require(above, "needs above to be more than below")?;
        require(self.after > 0, "needs after of at least 1")?;
        require(
            self.floor > 0.0 && self.floor <= 1.0,
            "needs a floor above 0 and up to 1",
        )?;
        require(self.min_calls > 0, "needs min_calls of at least 1")
    }
}
