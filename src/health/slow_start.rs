//! Slow start: a ramp of the effective weight.

use std::time::Duration;

use crate::{
    error::ConfigError,
    util::time::{SHORT, YEAR},
};

/// Raises the effective weight of endpoints that join or recover along a ramp.
///
/// At the time `t` after the endpoint joined or recovered, the capacity is
/// *max(floor, (t / window)^(1 / aggression))*; it is 1 from the end of the window on. Of n endpoints
/// of equal weight one with the capacity f gets a share of f / (n - 1 + f) of the calls. All policies
/// follow the ramp, also those without weights. Under a policy by key the endpoint takes over its
/// keys one after the other, each once, and in total f times its share of the keys;
/// [`Keyed`](crate::policy::affinity::Keyed) says which endpoint has them until then. A recovered
/// endpoint has already had one call, the trial.
///
/// There is no ramp for endpoints that join an empty set in one batch, because no others could carry
/// the rest of the load. An insert of a key that is a member does not restart the ramp; a remove and
/// an insert do. Changes of other endpoints do not affect it.
///
/// | setting | default | accepted |
/// |---|---|---|
/// | window | | a millisecond to a year |
/// | `aggression` | 1, which is linear | above zero; above 1 rises sooner |
/// | `floor` | 0.1 | above 0 to 1 |
///
/// The capacity rises in steps of a 128th of the window; a call makes each step.
/// Cost: one build of the picker for each step.
///
/// ```
/// use counterpoise::{health::SlowStart, Health};
/// use std::time::Duration;
///
/// let health = Health::new().slow_start(SlowStart::new(Duration::from_secs(30)).floor(0.05));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[must_use]
pub struct SlowStart {
    window: Duration,
    aggression: f64,
    floor: f64,
}

impl SlowStart {
    /// Creates a linear ramp that lasts for `window`.
    pub const fn new(window: Duration) -> Self {
        Self {
            window,
            aggression: 1.0,
            floor: 0.1,
        }
    }

    /// Sets the curve of the ramp: above 1 it rises sooner, below 1 later. Default: 1.
    pub const fn aggression(mut self, aggression: f64) -> Self {
        self.aggression = aggression;
        self
    }

    /// Sets the capacity at which the ramp begins. Default: 0.1.
    pub const fn floor(mut self, floor: f64) -> Self {
        self.floor = floor;
        self
    }

    pub(super) const fn window(&self) -> Duration {
        self.window
    }

    /// Returns the capacity at a time after the ramp began.
    pub(super) fn factor(&self, age: Duration) -> f64 {
        if age >= self.window {
            return 1.0;
        }
        let part = age.as_secs_f64() / self.window.as_secs_f64();
        part.powf(1.0 / self.aggression).clamp(self.floor, 1.0)
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let require = |ok, problem| ConfigError::require(ok, "slow_start", problem);
        let window = (SHORT..=YEAR).contains(&self.window);
        require(window, "must last from a millisecond to a year")?;
        let aggression = self.aggression > 0.0 && self.aggression.is_finite();
        require(aggression, "needs an aggression above zero")?;
        require(
            self.floor > 0.0 && self.floor <= 1.0,
            "needs a floor above 0 and up to 1",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_is_the_documented_one() {
        let ramp = SlowStart::new(Duration::from_secs(10));
        let at = |ramp: SlowStart, seconds| ramp.factor(Duration::from_secs_f64(seconds));
        for (seconds, want) in [(0.0, 0.1), (1.0, 0.1), (2.0, 0.2), (5.0, 0.5), (10.0, 1.0)] {
            assert!((at(ramp, seconds) - want).abs() < 1e-12, "{seconds}");
        }
        assert!((at(ramp.aggression(2.0), 2.5) - 0.5).abs() < 1e-12);
        assert!((at(ramp.aggression(0.5), 5.0) - 0.25).abs() < 1e-12);
        assert_eq!(at(ramp.floor(0.3), 2.0), 0.3);
    }
}
