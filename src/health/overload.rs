//! Push-back: an endpoint that wants less gets less for a while.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    error::ConfigError,
    util::time::{SHORT, YEAR},
};

/// What happens to an endpoint that pushes back: it gets less for a while, and is not ejected.
///
/// An [`Outcome::Overload`](crate::Outcome::Overload) lowers the part of the weight that counts
/// by `factor`, down to `floor`, for `hold` or for as long as the endpoint asked
/// ([`OverloadFor`](crate::Outcome::OverloadFor)), up to `max_hold`. Then it comes back in a
/// straight line, within `hold`. Only push-backs count of calls that began at least a sixteenth
/// of `hold` after the last that counted: one crowd of refusals is one message.
/// Under a keyed policy the endpoint hands over a part of its keys for the time being, always
/// the same ones. If all endpoints push back alike, nothing shifts.
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
        Self { factor: 0.5, floor: 0.1, hold, max_hold }
    }

    /// Has push-back counted in the statistics, and change nothing.
    pub const fn off() -> Self {
        Self { factor: 1.0, ..Self::new() }
    }

    /// Sets what is left of the capacity after a push-back. Default: 0.5.
    pub const fn factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// Sets what is left of it at least. Default: 0.1.
    pub const fn floor(mut self, floor: f64) -> Self {
        self.floor = floor;
        self
    }

    /// Sets for how long, if the endpoint does not say. Default: 10 s.
    pub const fn hold(mut self, hold: Duration) -> Self {
        self.hold = hold;
        self
    }

    /// Sets for how long at most, whatever the endpoint says. Default: 300 s.
    pub const fn max_hold(mut self, hold: Duration) -> Self {
        self.max_hold = hold;
        self
    }

    pub(crate) fn is_off(&self) -> bool {
        self.factor == 1.0
    }

    /// Returns for how long after a push-back further ones belong to the same crowd.
    pub(crate) fn crowd(&self) -> Duration {
        self.hold / 16
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |problem| Err(ConfigError::new("overload", problem));
        match self {
            _ if !(0.0..=1.0).contains(&self.factor) => refuse("needs a factor from 0 to 1"),
            _ if !(self.floor > 0.0 && self.floor <= 1.0) => {
                refuse("needs a floor above 0 and up to 1")
            }
            _ if !(SHORT..=YEAR).contains(&self.hold) => {
                refuse("must hold from a millisecond to a year")
            }
            _ if !(self.hold..=YEAR).contains(&self.max_hold) => {
                refuse("needs a max_hold from hold to a year")
            }
            _ => Ok(()),
        }
    }
}

/// An endpoint's capacity after it has pushed back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lowered {
    factor: f64,
    until: Instant,
    /// When everything has come back.
    gone: Instant,
}

impl Lowered {
    /// Lowers the capacity, after the former push-backs if there were any.
    pub(super) fn lower(
        former: Option<Self>,
        asked: Option<Duration>,
        now: Instant,
        settings: &Overload,
    ) -> Self {
        let asked = asked.filter(|asked| !asked.is_zero());
        let hold = asked.unwrap_or(settings.hold).min(settings.max_hold);
        let present = former.map_or(1.0, |former| former.factor(now));
        let until = former.map_or(now + hold, |former| former.until.max(now + hold));
        let factor = (present * settings.factor).max(settings.floor.min(present));
        Self { factor, until, gone: until + settings.hold }
    }

    /// Returns the part of the weight that counts.
    pub(super) fn factor(&self, now: Instant) -> f64 {
        if now <= self.until {
            return self.factor;
        }
        let rest = self.gone.saturating_duration_since(now);
        let whole = self.gone - self.until;
        let left = rest.as_secs_f64() / whole.as_secs_f64();
        1.0 - (1.0 - self.factor) * left
    }

    /// Returns when the factor moves next; none once it is gone.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        match now {
            _ if now >= self.gone => None,
            _ if now < self.until => Some(self.until),
            _ => Some(self.gone.min(now + (self.gone - self.until) / 64)),
        }
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
        assert_eq!([0, 9, 10, 15, 20, 99].map(|t| at(first, t)), [0.5, 0.5, 0.5, 0.75, 1.0, 1.0]);
        assert_eq!(first.next(start), Some(start + 10 * SECOND));
        assert_eq!(first.next(start + 20 * SECOND), None);
        let again = |former| Lowered::lower(Some(former), None, start, &settings);
        let [second, third, fourth] =
            [again(first), again(again(first)), again(again(again(first)))];
        assert_eq!([second, third, fourth].map(|l| at(l, 0)), [0.25, 0.125, 0.1]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_endpoint_asks_for_is_heeded_within_bounds() {
        let (start, settings) = (Instant::now(), Overload::new());
        let until = |former, asked| Lowered::lower(former, asked, start, &settings).until - start;
        assert_eq!(until(None, Some(2 * SECOND)), 2 * SECOND);
        assert_eq!(until(None, Some(9_999 * SECOND)), 300 * SECOND);
        assert_eq!(until(None, Some(Duration::ZERO)), 10 * SECOND);
        let long = Lowered::lower(None, Some(60 * SECOND), start, &settings);
        assert_eq!(until(Some(long), Some(SECOND)), 60 * SECOND, "never shortened");
    }
}
