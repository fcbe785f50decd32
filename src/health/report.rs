//! The end of a call, and the reports that follow from it.

use std::time::Duration;

/// The number of an epoch: each ejection and each recovery begins a new one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Epoch(pub(super) u32);

impl Epoch {
    pub(crate) const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// The epoch and the kind of a call's admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Admission {
    pub(crate) epoch: Epoch,
    pub(crate) kind: AdmissionKind,
}

/// How a call was admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdmissionKind {
    /// The endpoint was eligible.
    Eligible,
    /// The call is the trial of an ejected endpoint.
    Trial,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Success,
    /// Also a panic of the endpoint's code, and a service that failed to become ready.
    Failure,
    /// The endpoint pushed back, with the time that it requested.
    Overload(Option<Duration>),
    Neutral,
    /// The caller dropped the call at this age.
    Dropped(Duration),
    /// The caller dropped the body of a response whose head was good.
    BodyDropped,
    /// The endpoint was picked, and the request was never sent.
    Unsent,
}

/// The settings by which ends are weighed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// How many failures in a row eject.
    pub(crate) threshold: u32,
    /// The age from which on a dropped call is a failure.
    pub(crate) drop_age: Duration,
}

/// What the end of a call reports to the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    Nothing,
    /// The failures in a row have reached the threshold.
    Failed,
    /// A call to an ejected endpoint, admitted in panic mode, has succeeded.
    Recovered,
    /// The endpoint pushed back, with the time that it requested.
    PushedBack(Option<Duration>),
    /// The trial is over.
    TrialEnded(Verdict),
}

/// The result of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    /// The trial was neutral, or was dropped too early to count.
    Nothing,
    PushedBack(Option<Duration>),
    Unsent,
}
