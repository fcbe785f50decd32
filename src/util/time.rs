//! Limits of all durations that are settings, and durations as numbers.

use std::time::Duration;

/// The longest duration that a setting accepts, so that an instant plus a setting stays in range.
pub(crate) const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// The shortest duration that most settings accept: the resolution of tokio's timers.
pub(crate) const SHORT: Duration = Duration::from_millis(1);

/// Returns a duration in nanoseconds, at most 584 years.
#[inline]
pub(crate) const fn nanos(time: Duration) -> u64 {
    let seconds = time.as_secs().saturating_mul(1_000_000_000);
    seconds.saturating_add(time.subsec_nanos() as u64)
}
