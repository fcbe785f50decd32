//! A value that shares its cache line with nothing else.

use std::ops::Deref;

/// Keeps a hot counter away from its neighbours: 128 bytes, because processors
/// fetch cache lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

impl<T> Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
