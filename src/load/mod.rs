//! What calls say about the load of their endpoints: moving latency, failures, windows.
//!
//! Kept only if a policy or a rule of health needs it. Time is an argument.

mod approx;
pub(crate) mod bounded;
mod decay;
mod latency;
mod window;

use std::time::Duration;

pub(crate) use latency::{Meter, Pace};
pub(crate) use window::Window;

use crate::util::time::{SHORT, YEAR};

/// What is measured of the calls that have ended.
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
    /// The moving latency, which fades to 1/e in the time `decay`; less than a millisecond counts
    /// as a millisecond, more than a year as a year.
    pub(crate) fn latency(decay: Duration) -> Self {
        Self { decay: within(decay), penalty: None, kind: Kind::Latency }
    }

    /// Failed calls that count as load, which fades to 1/e in the time `decay`.
    pub(crate) fn failures(decay: Duration) -> Self {
        Self { decay: within(decay), penalty: None, kind: Kind::Failures }
    }

    /// Sets what latency a failed or pushed-back call counts as, at least. Default: ten times
    /// the usual latency of the whole set, and at least twice the greatest.
    ///
    /// It never counts as less than the endpoint's present estimate, nor than the call took.
    pub(crate) const fn penalty(mut self, penalty: Duration) -> Self {
        self.penalty = Some(penalty);
        self
    }
}

fn within(decay: Duration) -> Duration {
    decay.clamp(SHORT, YEAR)
}
