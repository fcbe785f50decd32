//! Random numbers that can be reproduced from a seed.

use std::hash::{BuildHasher, RandomState};

/// Returns a seed that is different for each balancer and each process.
pub(crate) fn entropy() -> u64 {
    RandomState::new().hash_one(0_u64)
}

/// Maps one number to another, as a bijection. Source: Steele, Lea and Flood, "Fast splittable
/// pseudorandom number generators", 2014.
#[inline]
pub(crate) const fn splitmix64(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns the n-th random number that follows from one; the 0-th is that one itself.
///
/// The factor is odd, so that no two n above 0 give the same number, and is not the step of [`splitmix64`]. Its
/// other bits are a choice.
#[inline]
pub(crate) const fn scramble(random: u64, nth: u64) -> u64 {
    if nth == 0 {
        random
    } else {
        splitmix64(random ^ nth.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }
}

/// A sequence of random numbers.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Starts the sequence of a seed. The first number is mixed, so that seeds close to each other
    /// begin far apart.
    pub(crate) const fn seeded(seed: u64) -> Self {
        Self(splitmix64(!seed))
    }

    /// Returns the next number in `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        let bits = splitmix64(self.0);
        self.0 = self.0.wrapping_add(1);
        // A double holds 53 bits exactly.
        (bits >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_is_half_open_and_reproducible() {
        let draw = |seed| {
            let mut random = Random::seeded(seed);
            (0..1000).map(|_| random.unit()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!(draw(7).iter().all(|x| (0.0..1.0).contains(x)));
    }
}
