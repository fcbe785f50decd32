//! How much of an endpoint's weight counts at present.

use crate::util::fraction::FULL;

/// What became of a call to [`Balance::set_capacity`](crate::Balance::set_capacity).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[must_use]
pub enum CapacityChange {
    /// The factor is in effect.
    Applied,
    /// The factor was outside 0 to 1: the nearer bound is in effect.
    Clamped,
    /// The factor was no number: nothing has changed.
    Refused,
    /// There is no endpoint of this name.
    Unknown,
}

/// Returns the factor in units of 1/[`FULL`], and whether it was in range; none if it was
/// no number. A factor above zero stays above zero.
pub(crate) fn fixed(factor: f64) -> Option<(u32, CapacityChange)> {
    if factor.is_nan() {
        return None;
    }
    let clamped = factor.clamp(0.0, 1.0);
    let fixed = (clamped * f64::from(FULL)).round() as u32;
    let fixed = if clamped > 0.0 { fixed.max(1) } else { 0 };
    let in_range = clamped == factor;
    let change = if in_range { CapacityChange::Applied } else { CapacityChange::Clamped };
    Some((fixed, change))
}
