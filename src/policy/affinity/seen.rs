//! The members that a walk has already offered.

/// A set of indexes. One index needs no allocation, and most walks offer only one.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    first: Option<usize>,
    bits: Vec<u64>,
}

impl Seen {
    /// Adds an index below `n`; returns whether it is new.
    #[inline]
    pub(crate) fn is_new(&mut self, index: usize, n: usize) -> bool {
        match self.first {
            None => {
                self.first = Some(index);
                true
            }
            Some(first) if first == index => false,
            Some(_) => self.is_new_bit(index, n),
        }
    }

    #[cold]
    fn is_new_bit(&mut self, index: usize, n: usize) -> bool {
        if self.bits.is_empty() {
            self.bits = vec![0; n.div_ceil(64)];
        }
        match self.bits.get_mut(index / 64) {
            Some(word) => {
                let bit = 1 << (index % 64);
                let new = *word & bit == 0;
                *word |= bit;
                new
            }
            None => false,
        }
    }
}
