//! What calls tell of the pace of their endpoints: moving latency, failures, windows.
//!
//! Kept only if somebody asked for it: a policy, or a rule of health. Time is an argument.

mod approx;
pub(crate) mod bounded;
mod decay;
mod latency;
mod window;

use std::time::Duration;

pub(crate) use latency::{Meter, Pace};
pub(crate) use window::Window;

use crate::util::time::{SHORT, YEAR};

/// What a policy wants to know of the calls that have ended.
///
/// Returned by [`Policy::signals`](crate::policy::Policy::signals); read by
/// [`Turn::latency`](crate::policy::Turn::latency). Timing that nobody asks for is not taken.
///
/// ```
/// use counterpoise::policy::Signals;
/// use std::time::Duration;
///
/// let signals = Signals::latency(Duration::from_secs(10)).penalty(Duration::from_secs(5));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[must_use]
pub struct Signals {
    pub(crate) decay: Duration,
    penalty: Option<Duration>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Latency,
    Failures,
}

impl Signals {
    /// Asks for the moving latency, which forgets to 1/e in the time `decay`; of less than a
    /// millisecond counts as a millisecond, and of more than a year as a year.
    pub fn latency(decay: Duration) -> Self {
        Self { decay: within(decay), penalty: None, kind: Kind::Latency }
    }

    /// Asks for failed calls to count as load, which fades to 1/e in the time `decay`.
    pub(crate) fn failures(decay: Duration) -> Self {
        Self { decay: within(decay), penalty: None, kind: Kind::Failures }
    }

    pub(crate) fn decaying(self, decay: Duration) -> Self {
        Self { decay: within(decay), ..self }
    }

    /// Sets what latency a failed or pushed-back call counts as, at least. Default: ten times
    /// the usual latency of the whole set, and at least twice the greatest.
    ///
    /// It never counts as less than the endpoint's present estimate, nor than the call took.
    pub const fn penalty(mut self, penalty: Duration) -> Self {
        self.penalty = Some(penalty);
        self
    }
}

fn within(decay: Duration) -> Duration {
    decay.clamp(SHORT, YEAR)
}
