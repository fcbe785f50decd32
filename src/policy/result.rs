//! What a pick chose.

/// What a pick chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PickResult {
    /// The member at this index of the [`Members`](super::Members) from which the picker was built.
    ///
    /// If it may not be picked now, another one is taken. An index that is out of range is an
    /// error of the call.
    Member(usize),
    /// Any eligible member: the balancer rotates over them, whatever their weights.
    Any,
    /// None: the call fails, for this reason.
    Refuse(&'static str),
    /// The picker is used up: the next one is built from it, and picks instead.
    Renew,
}
