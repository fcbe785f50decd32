//! A seeded permutation, in which each position is computed on its own.

use crate::util::random::splitmix64;

/// A pseudo-random permutation of the numbers below n, in constant memory.
///
/// A keyed bijection of the next power of two, in rounds of an odd multiplication, an addition
/// and a shift; where it leads beyond n it is applied again (cycle walking: Black and Rogaway,
/// "Ciphers with arbitrary finite domains", 2002). Cost: eight random numbers once, and eight
/// rounds for a position, on average less than twice.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shuffle {
    keys: [u64; ROUNDS],
    n: usize,
    /// Of the next power of two.
    mask: u64,
    /// Half of its bits, rounded up.
    half: u32,
}

/// With eight rounds all orders of small sets are equally frequent, as the tests show.
const ROUNDS: usize = 8;

impl Shuffle {
    pub(super) fn new(seed: u64, n: usize) -> Self {
        let bits = n.max(1).next_power_of_two().ilog2();
        let keys = std::array::from_fn(|round| splitmix64(seed ^ splitmix64(round as u64)));
        Self {
            keys,
            n,
            mask: (1 << bits) - 1,
            half: bits.div_ceil(2),
        }
    }

    /// Returns the number at a position below n.
    pub(super) fn at(&self, position: usize) -> usize {
        let mut number = self.map(position as u64);
        // The loop ends, because the numbers form cycles and `position` is below n.
        while number >= self.n as u64 {
            number = self.map(number);
        }
        number as usize
    }

    fn map(&self, number: u64) -> u64 {
        self.keys.iter().fold(number, |number, key| {
            let mixed = number.wrapping_mul(key | 1).wrapping_add(key >> 32) & self.mask;
            mixed ^ (mixed >> self.half)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEDS: u64 = 50_000;

    /// Asserts that all counts are what even chances give, by a chi-squared test: for two counts
    /// they may be five deviations off.
    fn assert_even(counts: &[u32], what: &str) {
        let total: u32 = counts.iter().sum();
        let expected = f64::from(total) / counts.len() as f64;
        let freedom = counts.len() as f64 - 1.0;
        let distance = counts
            .iter()
            .map(|&count| (f64::from(count) - expected).powi(2));
        let statistic = distance.sum::<f64>() / expected;
        assert!(
            statistic < freedom + 8.0 * (2.0 * freedom).sqrt() + 16.0,
            "{what}: {counts:?}"
        );
    }

    #[test]
    fn every_number_has_one_position() {
        for n in [1, 2, 3, 7, 8, 9, 100, 1_000, 4_097] {
            for seed in 0..20 {
                let shuffle = Shuffle::new(splitmix64(seed), n);
                let mut seen = vec![false; n];
                (0..n).for_each(|position| seen[shuffle.at(position)] = true);
                assert!(seen.iter().all(|&seen| seen), "{n} of seed {seed}");
            }
        }
    }

    #[test]
    fn every_number_is_as_likely_at_every_position() {
        for n in 2..=10 {
            let mut counts = vec![0; n * n];
            for seed in 0..SEEDS {
                let shuffle = Shuffle::new(splitmix64(seed), n);
                (0..n).for_each(|position| counts[position * n + shuffle.at(position)] += 1);
            }
            for (position, counts) in counts.chunks(n).enumerate() {
                assert_even(counts, &format!("{n} at {position}"));
            }
        }
    }

    /// For retries: after any endpoint, all others are equally likely.
    #[test]
    fn after_any_first_every_other_is_as_likely_next() {
        for n in 3..=10 {
            let mut counts = vec![0; n * n];
            for seed in 0..SEEDS {
                let shuffle = Shuffle::new(splitmix64(seed), n);
                counts[shuffle.at(0) * n + shuffle.at(1)] += 1;
            }
            for (first, counts) in counts.chunks(n).enumerate() {
                let others = counts.iter().enumerate().filter(|&(next, _)| next != first);
                let others: Vec<_> = others.map(|(_, &count)| count).collect();
                assert_even(&others, &format!("{n} after {first}"));
            }
        }
    }

    /// The same if the excluded endpoint is at any position of the order.
    #[test]
    fn with_any_one_left_out_every_other_is_as_likely_first() {
        for n in 2..=10 {
            for out in 0..n {
                let mut counts = vec![0; n];
                for seed in 0..SEEDS / 5 {
                    let shuffle = Shuffle::new(splitmix64(seed), n);
                    let first = shuffle.at(0);
                    counts[if first == out { shuffle.at(1) } else { first }] += 1;
                }
                counts.remove(out);
                assert_even(&counts, &format!("{n} without {out}"));
            }
        }
    }
}
