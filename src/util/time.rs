//! Spans of time that every setting keeps within, and times as numbers.

use std::time::Duration;

/// No time that is set is longer, so that adding one to any instant stays in range.
pub(crate) const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// What takes time takes at least as long.
pub(crate) const SHORT: Duration = Duration::from_millis(1);

/// Returns a time in nanoseconds; 584 years fit.
#[inline]
pub(crate) const fn nanos(time: Duration) -> u64 {
    let seconds = time.as_secs().saturating_mul(1_000_000_000);
    seconds.saturating_add(time.subsec_nanos() as u64)
}
