//! Draws by weight: each endpoint owns as many numbers as its weight.
//!
//! The cutpoint method of Chen and Asau, "On generating random variates from an empirical
//! distribution", 1974.

/// The weights of the eligible endpoints, each of which owns as many numbers below the total.
#[derive(Debug)]
pub(super) struct Cutpoints {
    /// For each eligible endpoint, the sum of the weights up to and with its own.
    sums: Box<[u64]>,
    /// For each value of a draw's top bits, the first endpoint that can own it: one to two values
    /// for each endpoint.
    cuts: Box<[u32]>,
    /// How many low bits of a draw are not top bits.
    shift: u32,
    total: u64,
}

impl Cutpoints {
    /// Makes the draws of the eligible members by their shares: index, id and weight of each. Cost:
    /// O(n).
    pub(super) fn new(shares: impl Iterator<Item = (u32, u64, u64)>) -> Self {
        let shares: Vec<_> = shares.map(|(_, _, share)| share).collect();
        Self::of(&shares)
    }

    fn of(shares: &[u64]) -> Self {
        let all: u128 = shares.iter().copied().map(u128::from).sum();
        // A sum beyond 63 bits is scaled down to them.
        let coarse = (u128::BITS - all.leading_zeros()).saturating_sub(u64::BITS - 1);
        let mut total = 0;
        let mut add = |&share: &u64| {
            total += if share > 0 {
                (share >> coarse).max(1)
            } else {
                0
            };
            total
        };
        let sums: Box<[u64]> = shares.iter().map(&mut add).collect();
        let shift = (total / (sums.len() as u64).max(1))
            .checked_ilog2()
            .unwrap_or(0);
        let mut first = 0;
        let mut cut = |part: u64| {
            while sums.get(first).is_some_and(|&sum| sum <= part << shift) {
                first += 1;
            }
            first as u32
        };
        let cuts = (0..=total.saturating_sub(1) >> shift)
            .map(&mut cut)
            .collect();
        Self {
            sums,
            cuts,
            shift,
            total,
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.sums.len()
    }

    pub(super) const fn total(&self) -> u64 {
        self.total
    }

    /// Returns the first number that the endpoint at a place owns, and how many it owns.
    #[inline]
    pub(super) fn span(&self, place: usize) -> (u64, u64) {
        let end = self.sums.get(place).copied().unwrap_or(self.total);
        let start = place.checked_sub(1).map_or(0, |before| self.sums[before]);
        (start, end - start)
    }

    /// Finds the endpoint that owns a number below the total.
    #[inline]
    pub(super) fn owner(&self, draw: u64) -> usize {
        let part = (draw >> self.shift) as usize;
        let mut place = self.cuts.get(part).map_or(0, |&first| first as usize);
        while self.sums.get(place).is_some_and(|&sum| sum <= draw) {
            place += 1;
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(weights: &[u64]) -> Vec<usize> {
        let weights = Cutpoints::of(weights);
        (0..weights.total).map(|draw| weights.owner(draw)).collect()
    }

    #[test]
    fn b21_draws_are_half_open() {
        assert_eq!(owners(&[1, 1, 1, 1]), [0, 1, 2, 3]);
        assert_eq!(owners(&[2, 3, 1]), [0, 0, 1, 1, 1, 2]);
        assert_eq!(owners(&[0, 2, 0, 1, 0]), [1, 1, 3]);
    }

    #[test]
    fn each_endpoint_owns_its_weight() {
        let mut weights = vec![1, 1000, 3, 0, 77, 500, 1, 1];
        weights.extend(1..200);
        let owners = owners(&weights);
        for (place, &weight) in weights.iter().enumerate() {
            let owned = owners.iter().filter(|&&owner| owner == place).count();
            assert_eq!(owned as u64, weight);
        }
    }

    #[test]
    fn b31_sums_beyond_32_and_64_bits() {
        let weights = Cutpoints::of(&[u64::from(u32::MAX), u64::from(u32::MAX), 1]);
        assert_eq!(weights.owner(weights.total - 1), 2);
        let weights = Cutpoints::of(&[u64::MAX / 2; 10_000]);
        assert_eq!(weights.owner(0), 0);
        assert_eq!(weights.owner(weights.total - 1), 9_999);
    }
}
