//! The counter that turns picks into a sequence.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::util::padded::Padded;

/// A wrapping 64-bit counter. It is never reset, inspected or repaired: unsigned
/// arithmetic keeps every use of it in range, and 2^64 picks take centuries.
#[derive(Debug)]
pub(crate) struct Tickets(Padded<AtomicU64>);

impl Tickets {
    pub(crate) const fn starting_at(first: u64) -> Self {
        Self(Padded(AtomicU64::new(first)))
    }

    /// Draws the next ticket. Cost: one `fetch_add`.
    #[inline]
    pub(crate) fn draw(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}
