//! Rendezvous hashing: each endpoint has a score for each key.

use super::{Keyed, Member, sealed};
use crate::util::{hash::xxh64, random::splitmix64};

/// Keeps keys with endpoints by score: a key goes to the endpoint of the best score for it.
///
/// A score is made of a hash of endpoint and key, and of the endpoint's weight. Shares follow the
/// weights, and a change of the set or of a weight moves the fewest keys of all structures. Each
/// pick computes the score of every endpoint, so it is for small sets. (Thaler and Ravishankar,
/// "Using name-based mappings to increase hit rates", 1998; weights after Schindelhauer and
/// Schomaker, "Weighted distributed hash tables", 2005.)
///
/// Cost per pick: O(n), and O(n log n) if the first choice may not be picked. Cost per
/// build: O(n). Memory: 24 bytes per endpoint.
///
/// ```
/// use counterpoise::policy::affinity::{Key, Rendezvous};
///
/// let policy = Rendezvous::by(|user: &String| Some(Key::from(user.as_str())));
/// let map = policy.map([("a", 1), ("b", 3)]);
/// assert_eq!(map.share("b"), Some(0.75));
/// ```
pub type Rendezvous<A> = Keyed<A, Scores>;

/// The structure of [`Rendezvous`].
#[derive(Debug, Clone, Copy)]
#[allow(unnameable_types, reason = "users name the alias")]
pub struct Scores {
    hash: fn(&[u8]) -> u64,
}

/// The endpoints that have a weight, in the order of their names.
#[derive(Debug)]
#[allow(unnameable_types, reason = "only seen through a sealed trait")]
pub struct ScoreMap {
    entries: Box<[Entry]>,
    members: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    index: u32,
    weight: u32,
    seed: u64,
}

impl Default for Scores {
    fn default() -> Self {
        Self { hash: xxh64 }
    }
}

impl<A> Rendezvous<A> {
    /// Sets the hash function of names and keys. Default: xxHash64 with seed 0.
    #[must_use]
    pub fn hash_with(mut self, hash: fn(&[u8]) -> u64) -> Self {
        self.structure_mut().hash = hash;
        self
    }
}

impl Entry {
    /// Returns the score for a key, of which the lowest is best: exponentially distributed, at the
    /// rate of the weight.
    fn score(&self, hash: u64) -> f64 {
        minus_ln(splitmix64(hash ^ self.seed)) / f64::from(self.weight)
    }
}

/// Returns -ln(x / 2^53), where x is the top 53 bits of the number with the lowest of them set.
///
/// Made from additions, multiplications and divisions alone, which give the same results on every
/// platform; the library's logarithm may differ in the last place.
fn minus_ln(random: u64) -> f64 {
    // 53 bits, which an `f64` holds exactly. The lowest is set, so they are never zero.
    let number = (random >> 11) | 1;
    let zeros = number.leading_zeros() - 11;
    // number = mantissa × 2^(52 - zeros), mantissa in [1, 2)
    let mantissa = (number << zeros) as f64 / (1_u64 << 52) as f64;
    // ln m = 2 artanh((m - 1) / (m + 1)), with a series of 16 terms for m < 2.
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let square = t * t;
    let series = (0..16)
        .rev()
        .fold(0.0, |sum, k| sum * square + 1.0 / f64::from(2 * k + 1));
    let exponent = f64::from(zeros) + 1.0;
    exponent * std::f64::consts::LN_2 - 2.0 * t * series
}

impl sealed::Structure for Scores {
    type Map = ScoreMap;

    fn build(&self, members: &[Member], _previous: Option<&ScoreMap>) -> ScoreMap {
        let mut order: Vec<_> = (0_u32..)
            .zip(members)
            .filter(|(_, m)| m.weight > 0)
            .collect();
        order.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
        let entry = |(index, member): (u32, &Member)| Entry {
            index,
            weight: member.weight,
            seed: splitmix64((self.hash)(member.name.as_bytes())),
        };
        ScoreMap {
            entries: order.into_iter().map(entry).collect(),
            members: members.len(),
        }
    }

    fn find(
        &self,
        map: &ScoreMap,
        key: &[u8],
        mut accept: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let hash = (self.hash)(key);
        let scores = map
            .entries
            .iter()
            .map(|entry| (entry.score(hash), entry.index as usize));
        // Ties go to the first by name: `min_by` returns it, and the sort is stable.
        let (_, first) = scores.clone().min_by(|a, b| a.0.total_cmp(&b.0))?;
        if accept(first) {
            return Some(first);
        }
        let mut scores: Vec<_> = scores.collect();
        scores.sort_by(|a, b| a.0.total_cmp(&b.0));
        scores
            .into_iter()
            .skip(1)
            .map(|(_, index)| index)
            .find(|&index| accept(index))
    }

    fn shares(&self, map: &ScoreMap) -> Vec<f64> {
        let total: f64 = map
            .entries
            .iter()
            .map(|entry| f64::from(entry.weight))
            .sum();
        let mut shares = vec![0.0; map.members];
        for entry in &map.entries {
            shares[entry.index as usize] = f64::from(entry.weight) / total;
        }
        shares
    }

    /// An endpoint has the lowest score in both sets if each other one has a higher score at the
    /// greater of its two weights over those of the endpoint; scores are exponential.
    fn stays(&self, map: &ScoreMap, other: &ScoreMap, twin: &[Option<usize>]) -> f64 {
        let mut weights = vec![0.0; other.members];
        for entry in &other.entries {
            weights[entry.index as usize] = f64::from(entry.weight);
        }
        let pairs = map.entries.iter().map(|entry| {
            let twin = twin.get(entry.index as usize).copied().flatten();
            let there = twin
                .and_then(|twin| weights.get_mut(twin))
                .map_or(0.0, std::mem::take);
            (f64::from(entry.weight), there)
        });
        let pairs: Vec<_> = pairs.collect();
        let only_there: f64 = weights.iter().sum();
        let stays = |&(here, there): &(f64, f64)| {
            let others: f64 = pairs.iter().map(|&(a, b)| (a / here).max(b / there)).sum();
            1.0 / (others + only_there / there)
        };
        pairs
            .iter()
            .filter(|(_, there)| *there > 0.0)
            .map(stays)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_is_right() {
        for i in 0..10_000 {
            let random = splitmix64(i);
            let want = -(((random >> 11) | 1) as f64 / (1_u64 << 53) as f64).ln();
            assert!(
                (minus_ln(random) - want).abs() <= 1e-14 * want.max(1.0),
                "{random}"
            );
        }
        assert!(minus_ln(0).is_finite() && minus_ln(u64::MAX) > 0.0);
    }
}
