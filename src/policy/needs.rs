//! What a policy needs beside the members.

use std::time::Duration;

use crate::load::Signals;

/// What a policy needs beside the members; returned by [`Policy::needs`](super::Policy::needs).
///
/// What is not needed is not measured: without a latency a call takes no clock reading at its
/// end, and without a bound no lock.
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
        Self { signals: None, bound: None, slow_from: u64::MAX, quick: false }
    }

    /// Needs the moving latency of each endpoint, for
    /// [`PickContext::latency`](super::PickContext::latency).
    ///
    /// The latency fades to 1/e in the time `decay`; less than a millisecond counts as a
    /// millisecond, more than a year as a year. Cost: a clock reading at the end of each call.
    pub fn latency(decay: Duration) -> Self {
        Self { signals: Some(Signals::latency(decay)), ..Self::none() }
    }

    /// Needs failed calls to count as load, which fades to 1/e in the time `decay`.
    pub(crate) fn failures(decay: Duration) -> Self {
        Self { signals: Some(Signals::failures(decay)), ..Self::none() }
    }

    /// Sets what latency a failed or pushed-back call counts as, at least. Default: ten times
    /// the usual latency of the whole set, and at least twice the greatest.
    ///
    /// It never counts as less than the endpoint's present estimate, nor than the call took.
    /// Without [`latency`](Self::latency) it has no effect.
    pub fn penalty(mut self, penalty: Duration) -> Self {
        self.signals = self.signals.map(|signals| signals.penalty(penalty));
        self
    }

    /// Bounds the load of each endpoint to a factor of its share of all running calls; less than
    /// 1, or no number, counts as 1. Default: no bound. The rule:
    /// [`Keyed::bounded`](super::affinity::Keyed::bounded). Cost: a lock for each call.
    pub const fn bound(mut self, factor: f64) -> Self {
        self.bound = Some(factor.max(1.0));
        self
    }

    /// Says that a build takes milliseconds or longer, whatever the number of members.
    ///
    /// The pickers of large sets are built outside the lock in any case: where a tokio runtime has
    /// threads for blocking work, on one of them, from the members that will be there once the
    /// changes of discovery are applied. This setting has it so for small sets, too.
    pub const fn slow_build(self) -> Self {
        self.slow_build_from(0)
    }

    /// The same, for changes of endpoints whose weights sum to this or more.
    pub(crate) const fn slow_build_from(mut self, weight: u64) -> Self {
        self.slow_from = weight;
        self
    }

    /// Says that a build takes no longer than a copy of the list of members, so that it is made
    /// under the lock also for large sets.
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
