//! A value that has its cache lines for itself.

use std::ops::Deref;

/// Separates a counter that many threads write from its neighbours.
///
/// Aligned to two cache lines of 64 bytes, because processors prefetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

impl<T> Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
