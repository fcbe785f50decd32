//! Fractions of one as whole numbers, so that they add up and compare exactly.

/// The fraction that is one whole.
pub(crate) const FULL: u32 = 1 << 16;
