//! The load of endpoints, measured by their calls: moving latency, failures, windows, bounds.
//!
//! It is measured only if a policy or a rule of health needs it. Time is an argument.

mod approx;
pub(crate) mod bounded;
mod decay;
mod measurement;
mod meter;
mod usual;
mod window;

use std::time::Duration;

pub(crate) use measurement::Measurement;
pub(crate) use meter::Meter;
pub(crate) use window::Window;

use crate::util::time::{SHORT, YEAR};

/// The load that a policy needs measured.
#[derive(Debug, Clone, Copy, PartialEq)]
#[must_use]
pub(crate) struct Signals {
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
    /// Measures the moving latency, which fades to 1/e in the time `decay`, from a millisecond to a
    /// year.
    pub(crate) fn latency(decay: Duration) -> Self {
        Self {
            decay: within(decay),
            penalty: None,
            kind: Kind::Latency,
        }
    }

    /// Counts failed calls as load, which fades to 1/e in the time `decay`.
    pub(crate) fn failures(decay: Duration) -> Self {
        Self {
            decay: within(decay),
            penalty: None,
            kind: Kind::Failures,
        }
    }

    /// Sets the latency that a failed or pushed-back call counts as, at least. Default: ten times
    /// the usual latency of the set, and at least twice the greatest.
    ///
    /// The call also counts as at least its own latency and the endpoint's present estimate.
    pub(crate) const fn penalty(mut self, penalty: Duration) -> Self {
        self.penalty = Some(penalty);
        self
    }
}

fn within(decay: Duration) -> Duration {
    decay.clamp(SHORT, YEAR)
}
