//! The result of a pick.

/// The result of a pick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PickResult {
    /// The member at this index of the [`Members`](super::Members) from which the picker was built.
    ///
    /// If it cannot take the call now, the balancer reads
    /// [candidates](super::Picker::candidates). An index that is out of range fails the call with
    /// [`ErrorKind::Policy`](crate::error::ErrorKind::Policy).
    Member(usize),
    /// Any eligible member: the balancer rotates over them, whatever their weights.
    Any,
    /// No member: the call fails with [`ErrorKind::Policy`](crate::error::ErrorKind::Policy), for this
    /// reason.
    Refuse(&'static str),
    /// No member, because the picker is used up: the policy builds the next one from it, and that
    /// picks.
    Renew,
}
