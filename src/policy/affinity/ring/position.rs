//! Positions on a circle, of 32 or 64 bits.

use std::fmt::Debug;

/// A position on the circle.
pub(crate) trait Position: Copy + Ord + Debug + Send + Sync + 'static {
    /// The width of a position.
    const BITS: u32;

    /// Returns the top bits as a number.
    fn top(self, bits: u32) -> usize;

    /// Returns how far the position lies in its sector, as a part of a length.
    fn part(self, bits: u32, length: usize) -> usize;

    /// Returns the position as a number.
    fn to_u64(self) -> u64;
}

impl Position for u32 {
    const BITS: Self = 32;

    #[inline]
    fn top(self, bits: u32) -> usize {
        // In two steps, because a shift by all bits is none.
        (self >> 1 >> (Self::BITS - 1 - bits)) as usize
    }

    #[inline]
    fn part(self, bits: u32, length: usize) -> usize {
        ((u64::from(self << bits) * length as u64) >> Self::BITS) as usize
    }

    fn to_u64(self) -> u64 {
        self.into()
    }
}

impl Position for u64 {
    const BITS: u32 = 64;

    #[inline]
    fn top(self, bits: u32) -> usize {
        (self >> 1 >> (Self::BITS - 1 - bits)) as usize
    }

    #[inline]
    fn part(self, bits: u32, length: usize) -> usize {
        ((u128::from(self << bits) * length as u128) >> Self::BITS) as usize
    }

    fn to_u64(self) -> u64 {
        self
    }
}

/// A point and its owner.
pub(crate) type Point<P> = (P, u32);
