//! Slow start: how much of its weight counts of an endpoint that is new or just back.

use std::time::Duration;

use crate::{
    error::ConfigError,
    util::time::{SHORT, YEAR},
};

/// Lets endpoints that join or return take up their share little by little.
///
/// The part of the weight that counts, `t` after the endpoint joined or returned, is
/// *max(floor, (t / window)^(1 / aggression))*, and 1 from the end of the window on. Every policy
/// follows it, also those without weights; under a keyed policy the endpoint takes over its keys
/// one after the other, each once (see [`Keyed`](crate::policy::affinity::Keyed) for who has them until then). Of n
/// endpoints of equal weight one that counts for f gets a share of f / (n - 1 + f); by keys, f
/// times the share of keys that it owns. Before an ejected endpoint is back at `floor`, it has had
/// its one call, the trial.
///
/// Not for the initial set: endpoints that join an empty set, in one batch, start with their
/// whole weight, for nobody could carry the rest. A re-insert restarts nothing; remove and
/// insert does. Other endpoints' arrivals and departures change nothing.
///
/// | setting | default | accepted |
/// |---|---|---|
/// | window | | a millisecond to a year |
/// | `aggression` | 1, which is linear | above zero; above 1 rises sooner |
/// | `floor` | 0.1 | above 0 to 1 |
///
/// The share moves in steps of a 128th of the window, with the calls. Cost: a rebuild of
/// the policy's table for each step.
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
        Self { window, aggression: 1.0, floor: 0.1 }
    }

    /// Sets how the ramp bends: above 1 it rises sooner, below 1 later. Default: 1.
    pub const fn aggression(mut self, aggression: f64) -> Self {
        self.aggression = aggression;
        self
    }

    /// Sets the part of the weight that always counts. Default: 0.1.
    pub const fn floor(mut self, floor: f64) -> Self {
        self.floor = floor;
        self
    }

    pub(super) const fn window(&self) -> Duration {
        self.window
    }

    /// Returns the part of the weight that counts at an age.
    pub(super) fn factor(&self, age: Duration) -> f64 {
        if age >= self.window {
            return 1.0;
        }
        let part = age.as_secs_f64() / self.window.as_secs_f64();
        part.powf(1.0 / self.aggression).clamp(self.floor, 1.0)
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |problem| Err(ConfigError::new("slow_start", problem));
        match self {
            _ if !(SHORT..=YEAR).contains(&self.window) => {
                refuse("must last from a millisecond to a year")
            }
            _ if !(self.aggression > 0.0 && self.aggression.is_finite()) => {
                refuse("needs an aggression above zero")
            }
            _ if !(self.floor > 0.0 && self.floor <= 1.0) => {
                refuse("needs a floor above 0 and up to 1")
            }
            _ => Ok(()),
        }
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
