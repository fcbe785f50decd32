//! The measurements and bounds that a policy needs.

use std::time::Duration;

use crate::load::Signals;

/// The measurements and bounds that a policy needs; the result of
/// [`Policy::needs`](super::Policy::needs).
///
/// Without a need for latency, calls take no clock reading at their end; without a bound, no lock.
///
/// ```
/// use counterpoise::policy::Needs;
/// use std::time::Duration;
///
/// let needs = Needs::latency(Duration::from_secs(10)).penalty(Duration::from_secs(5));
/// let bounded = Needs::none().bound(1.25);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[must_use]
pub struct Needs {
    pub(crate) signals: Option<Signals>,
    pub(crate) bound: Option<f64>,
    /// The sum of changed weights from which on a build takes milliseconds.
    slow_from: u64,
    /// Whether a build takes no longer than a copy of the list of members.
    quick: bool,
}

impl Needs {
    /// Needs nothing.
    pub const fn none() -> Self {
        Self {
            signals: None,
            bound: None,
            slow_from: u64::MAX,
            quick: false,
        }
    }

    /// Needs the moving latency of each endpoint, for
    /// [`PickContext::latency`](super::PickContext::latency).
    ///
    /// The latency decays to 1/e in the time `decay`; less than a millisecond counts as a
    /// millisecond, more than a year as a year. Cost: a clock reading at the end of each call.
    pub fn latency(decay: Duration) -> Self {
        Self {
            signals: Some(Signals::latency(decay)),
            ..Self::none()
        }
    }

    /// Needs failed calls to count as load, which decays to 1/e in the time `decay`.
    pub(crate) fn failures(decay: Duration) -> Self {
        Self {
            signals: Some(Signals::failures(decay)),
            ..Self::none()
        }
    }

    /// Sets the least latency as which a failed or overloaded call counts.
    ///
    /// Default: ten times the usual latency of the set, and at least twice the greatest. A call counts
    /// as no less than the endpoint's present estimate and the time that it took. Without
    /// [`latency`](Self::latency) it has no effect.
    pub fn penalty(mut self, penalty: Duration) -> Self {
        self.signals = self.signals.map(|signals| signals.penalty(penalty));
        self
    }

    /// Bounds the load of each endpoint to a factor of its share of all running calls.
    ///
    /// Default: no bound. Less than 1, or NaN, counts as 1.
    /// [`Keyed::bounded`](super::affinity::Keyed::bounded) has the rule. Cost: a short lock for each
    /// call and its end.
    pub const fn bound(mut self, factor: f64) -> Self {
        self.bound = Some(factor.max(1.0));
        self
    }

    /// Has every picker built outside the lock, for builds that take milliseconds or longer.
    ///
    /// The build then runs on a thread for blocking work where a tokio runtime has one. Default:
    /// only from 1,024 members on.
    pub const fn slow_build(self) -> Self {
        self.slow_build_from(0)
    }

    /// As [`slow_build`](Self::slow_build), for changes of endpoints whose weights sum to this or more.
    pub(crate) const fn slow_build_from(mut self, weight: u64) -> Self {
        self.slow_from = weight;
        self
    }

    /// Has pickers built under the lock also for large sets: a build takes no longer than a copy of
    /// the list of members.
    pub(crate) const fn quick_build(mut self) -> Self {
        self.quick = true;
        self
    }

    pub(crate) const fn builds_quickly(&self) -> bool {
        self.quick
    }

    /// Returns whether a build takes long after changes of endpoints whose weights sum to this.
    pub(crate) const fn builds_slowly(&self, weight: u64) -> bool {
        self.slow_from <= weight && self.slow_from < u64::MAX
    }
}
