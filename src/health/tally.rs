//! The calls of one endpoint in one interval.

/// The counts of the calls that have ended within one interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) successes: u64,
    pub(crate) failures: u64,
    /// Successes that were slow.
    pub(crate) slow: u64,
    /// The sum of the latencies of the successes, in nanoseconds.
    pub(crate) spent: u64,
}
