//! Rendezvous hashing: every endpoint bids for every key.

use crate::policy::affinity::{Keyed, Member, sealed};
use crate::util::{hash::xxh64, random::splitmix64};

/// Keeps keys with endpoints by the highest bid: each endpoint's bid for a key is a hash of
/// both, stretched by its weight.
///
/// Shares follow the weights, and a change of the set or of a weight moves only the keys
/// that it must: the least of all structures. But each pick computes every endpoint's bid, so it is
/// for small sets. (Thaler and Ravishankar, "Using name-based mappings to increase hit
/// rates", 1998; weights after Schindelhauer and Schomaker, "Weighted distributed hash
/// tables", 2005.)
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

/// The endpoints that bid, in the order of their names.
#[derive(Debug)]
#[allow(unnameable_types, reason = "only seen through a sealed trait")]
pub struct ScoreMap {
    bidders: Box<[Bidder]>,
    members: usize,
}

#[derive(Debug, Clone, Copy)]
struct Bidder {
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
    /// Replaces the hash function. Default: xxHash64 with seed 0.
    #[must_use]
    pub fn hash_with(mut self, hash: fn(&[u8]) -> u64) -> Self {
        self.structure_mut().hash = hash;
        self
    }
}

impl Bidder {
    /// The time at which this bidder would arrive, if all ran at paces like their weights:
    /// the first one wins.
    fn arrival(&self, hash: u64) -> f64 {
        minus_ln(splitmix64(hash ^ self.seed)) / f64::from(self.weight)
    }
}

/// Returns -ln(x / 2^64) of a number, for 0 that of 1/2.
///
/// Made from additions, multiplications and divisions alone, whose results are the same on
/// every platform; the library's logarithm may differ in the last place.
fn minus_ln(random: u64) -> f64 {
    // Odd, so never zero, and exact with 53 bits.
    let number = (random >> 11) | 1;
    let zeros = number.leading_zeros() - 11;
    // mantissa in [1, 2), number = mantissa × 2^(52 - zeros)
    let mantissa = (number << zeros) as f64 / (1_u64 << 52) as f64;
    // ln m = 2 artanh((m - 1) / (m + 1)), whose series converges fast for m below 2.
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let square = t * t;
    let series = (0..16).rev().fold(0.0, |sum, k| sum * square + 1.0 / f64::from(2 * k + 1));
    let exponent = f64::from(zeros) + 1.0;
    exponent * std::f64::consts::LN_2 - 2.0 * t * series
}

impl sealed::Structure for Scores {
    type Map = ScoreMap;

    fn build(&self, members: &[Member], _previous: Option<&ScoreMap>) -> ScoreMap {
        let mut order: Vec<_> = (0_u32..).zip(members).filter(|(_, m)| m.weight > 0).collect();
        order.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
        let bidder = |(index, member): (u32, &Member)| Bidder {
            index,
            weight: member.weight,
            seed: splitmix64((self.hash)(member.name.as_bytes())),
        };
        ScoreMap { bidders: order.into_iter().map(bidder).collect(), members: members.len() }
    }

    fn find(
        &self,
        map: &ScoreMap,
        key: &[u8],
        mut accept: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let hash = (self.hash)(key);
        let bids = map.bidders.iter().map(|bidder| (bidder.arrival(hash), bidder.index as usize));
        // Ties go to the first by name: `min_by` keeps it, and sorting is stable.
        let (_, first) = bids.clone().min_by(|a, b| a.0.total_cmp(&b.0))?;
        if accept(first) {
            return Some(first);
        }
        let mut bids: Vec<_> = bids.collect();
        bids.sort_by(|a, b| a.0.total_cmp(&b.0));
        bids.into_iter().skip(1).map(|(_, index)| index).find(|&index| accept(index))
    }

    fn shares(&self, map: &ScoreMap) -> Vec<f64> {
        let total: f64 = map.bidders.iter().map(|bidder| f64::from(bidder.weight)).sum();
        let mut shares = vec![0.0; map.members];
        for bidder in &map.bidders {
            shares[bidder.index as usize] = f64::from(bidder.weight) / total;
        }
        shares
    }

    /// With exponential arrivals: a bidder wins in both sets if each rival takes longer by
    /// the greater of its two relative paces.
    fn stays(&self, map: &ScoreMap, other: &ScoreMap, twin: &[Option<usize>]) -> f64 {
        let mut weights = vec![0.0; other.members];
        for bidder in &other.bidders {
            weights[bidder.index as usize] = f64::from(bidder.weight);
        }
        let pairs = map.bidders.iter().map(|bidder| {
            let twin = twin.get(bidder.index as usize).copied().flatten();
            let there = twin.and_then(|twin| weights.get_mut(twin)).map_or(0.0, std::mem::take);
            (f64::from(bidder.weight), there)
        });
        let pairs: Vec<_> = pairs.collect();
        let only_there: f64 = weights.iter().sum();
        let stays = |&(here, there): &(f64, f64)| {
            let rivals: f64 = pairs.iter().map(|&(a, b)| (a / here).max(b / there)).sum();
            1.0 / (rivals + only_there / there)
        };
        pairs.iter().filter(|(_, there)| *there > 0.0).map(stays).sum()
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
            assert!((minus_ln(random) - want).abs() <= 1e-14 * want.max(1.0), "{random}");
        }
        assert!(minus_ln(0).is_finite() && minus_ln(u64::MAX) > 0.0);
    }
}
