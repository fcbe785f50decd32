//! Push-back: the capacity of an endpoint that limits its load.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    error::ConfigError,
    util::time::{SHORT, YEAR},
};

/// Lowers the capacity of endpoints that push back, for a while.
///
/// An [`Outcome::Overload`](crate::Outcome::Overload) multiplies the capacity by `factor`, down to
/// `floor`. It stays there for `hold`, or for the time that the endpoint requested
/// ([`OverloadFor`](crate::Outcome::OverloadFor)), up to `max_hold`. Then it rises in a straight line
/// within `hold`. The endpoint is not ejected.
///
/// A push-back only counts if its call began at least a sixteenth of `hold` after the last one that
/// counted, because calls that overlap are refused for the same reason. Under a policy by key the
/// endpoint hands over a part of its keys for this time, always the same ones. If all endpoints push
/// back alike, the shares do not change.
///
/// | setting | default | accepted |
/// |---|---|---|
/// | `factor` | 0.5 | 0 to 1; 1 lowers nothing |
/// | `floor` | 0.1 | above 0 to 1 |
/// | `hold` | 10 s | a millisecond to a year |
/// | `max_hold` | 300 s | `hold` to a year |
///
/// ```
/// use counterpoise::{health::Overload, Health};
/// use std::time::Duration;
///
/// let health = Health::new().overload(Overload::new().hold(Duration::from_secs(2)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[must_use]
pub struct Overload {
    factor: f64,
    floor: f64,
    hold: Duration,
    max_hold: Duration,
}

impl Default for Overload {
    fn default() -> Self {
        Self::new()
    }
}

impl Overload {
    /// Creates the default settings.
    pub const fn new() -> Self {
        let (hold, max_hold) = (Duration::from_secs(10), Duration::from_secs(300));
        Self {
            factor: 0.5,
            floor: 0.1,
            hold,
            max_hold,
        }
    }

    /// Creates settings that ignore push-back, except in the statistics.
    pub const fn off() -> Self {
        Self {
            factor: 1.0,
            ..Self::new()
        }
    }

    /// Sets the factor by which a push-back lowers the capacity. Default: 0.5.
    pub const fn factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// Sets the least capacity after push-backs. Default: 0.1.
    pub const fn floor(mut self, floor: f64) -> Self {
        self.floor = floor;
        self
    }

    /// Sets how long the capacity stays lowered if the endpoint requests no time. Default: 10 s.
    pub const fn hold(mut self, hold: Duration) -> Self {
        self.hold = hold;
        self
    }

    /// Sets the longest time that an endpoint may request. Default: 300 s.
    pub const fn max_hold(mut self, hold: Duration) -> Self {
        self.max_hold = hold;
        self
    }

    pub(crate) fn is_off(&self) -> bool {
        self.factor == 1.0
    }

    /// Returns the time after a push-back in which further ones have the same reason.
    pub(crate) fn merge_time(&self) -> Duration {
        self.hold / SAME_REASON
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let require = |ok, problem| ConfigError::require(ok, "overload", problem);
        require(
            (0.0..=1.0).contains(&self.factor),
            "needs a factor from 0 to 1",
        )?;
        require(
            self.floor > 0.0 && self.floor <= 1.0,
            "needs a floor above 0 and up to 1",
        )?;
        let hold = (SHORT..=YEAR).contains(&self.hold);
        require(hold, "must hold from a millisecond to a year")?;
        let max_hold = (self.hold..=YEAR).contains(&self.max_hold);
        require(max_hold, "needs a max_hold from hold to a year")
    }
}

/// The part of `hold` in which further push-backs have the same reason: long enough for calls that
/// overlap, and short beside the time in which the capacity is lowered.
const SAME_REASON: u32 = 16;

/// The number of steps in which the capacity rises: each moves it by less than 2 %.
const RISE_STEPS: u32 = 64;

/// An endpoint's capacity after it has pushed back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lowered {
    factor: f64,
    /// When the capacity begins to rise.
    until: Instant,
    /// When the capacity is whole again.
    end: Instant,
}

impl Lowered {
    /// Lowers the capacity, on top of `former` push-backs.
    pub(super) fn lower(
        former: Option<Self>,
        requested: Option<Duration>,
        now: Instant,
        settings: &Overload,
    ) -> Self {
        let requested = requested.unwrap_or_default();
        let hold = if requested.is_zero() {
            settings.hold
        } else {
            requested
        };
        let hold_end = now + hold.min(settings.max_hold);
        let present = former.map_or(1.0, |former| former.factor(now));
        let until = former.map_or(hold_end, |former| former.until.max(hold_end));
        let factor = (present * settings.factor).max(settings.floor.min(present));
        Self {
            factor,
            until,
            end: until + settings.hold,
        }
    }

    /// Returns the capacity at an instant.
    pub(super) fn factor(&self, now: Instant) -> f64 {
        if now <= self.until {
            return self.factor;
        }
        let rest = self.end.saturating_duration_since(now);
        let whole = self.end - self.until;
        let left = rest.as_secs_f64() / whole.as_secs_f64();
        1.0 - (1.0 - self.factor) * left
    }

    /// Returns when the capacity changes next; none once it is whole.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        if now >= self.end {
            return None;
        }
        if now < self.until {
            return Some(self.until);
        }
        Some(self.end.min(now + (self.end - self.until) / RISE_STEPS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn lowered_held_and_given_back() {
        let (start, settings) = (Instant::now(), Overload::new());
        let first = Lowered::lower(None, None, start, &settings);
        let at = |lowered: Lowered, seconds: u32| lowered.factor(start + seconds * SECOND);
        assert_eq!(
            [0, 9, 10, 15, 20, 99].map(|t| at(first, t)),
            [0.5, 0.5, 0.5, 0.75, 1.0, 1.0]
        );
        assert_eq!(first.next(start), Some(start + 10 * SECOND));
        assert_eq!(first.next(start + 20 * SECOND), None);
        let again = |former| Lowered::lower(Some(former), None, start, &settings);
        let [second, third, fourth] = [
            again(first),
            again(again(first)),
            again(again(again(first))),
        ];
        assert_eq!(
            [second, third, fourth].map(|l| at(l, 0)),
            [0.25, 0.125, 0.1]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_requested_time_counts_within_bounds() {
        let (start, settings) = (Instant::now(), Overload::new());
        let until =
            |former, requested| Lowered::lower(former, requested, start, &settings).until - start;
        assert_eq!(until(None, Some(2 * SECOND)), 2 * SECOND);
        assert_eq!(until(None, Some(9_999 * SECOND)), 300 * SECOND);
        assert_eq!(until(None, Some(Duration::ZERO)), 10 * SECOND);
        let long = Lowered::lower(None, Some(60 * SECOND), start, &settings);
        assert_eq!(
            until(Some(long), Some(SECOND)),
            60 * SECOND,
            "never shortened"
        );
    }
}
