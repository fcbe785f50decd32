//! The calls of one endpoint in one interval.

/// The calls that have ended since the window began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) successes: u64,
    pub(crate) failures: u64,
    pub(crate) slow: u64,
    pub(crate) spent: u64,
}
