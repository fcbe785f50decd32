//! The capacity of an endpoint as the program sets it.

use crate::util::fraction::FULL;

/// The result of [`Balance::set_capacity`](crate::Balance::set_capacity).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[must_use]
pub enum CapacityChange {
    /// The capacity is set.
    Applied,
    /// The capacity was below 0 or above 1, and the nearer bound is set.
    Clamped,
    /// The capacity was not a number, and nothing has changed.
    Refused,
    /// No endpoint has this name.
    Unknown,
}

/// Returns a capacity in units of 1/[`FULL`], and whether it was in range; none for NaN.
///
/// A capacity above zero stays above zero.
pub(crate) fn fixed(capacity: f64) -> Option<(u32, CapacityChange)> {
    if capacity.is_nan() {
        return None;
    }
    let clamped = capacity.clamp(0.0, 1.0);
    let rounded = (clamped * f64::from(FULL)).round() as u32;
    let fixed = if clamped > 0.0 { rounded.max(1) } else { 0 };
    let in_range = clamped == capacity;
    let change = if in_range {
        CapacityChange::Applied
    } else {
        CapacityChange::Clamped
    };
    Some((fixed, change))
}
