//! Hash modulo the sum of the weights.

use super::{Keyed, Member, sealed, seen::Seen};
use crate::util::{
    fraction::gcd,
    hash::{crc32, crc32_continued, xxh64},
    random::splitmix64,
};

/// Keeps keys with endpoints by the hash of the key, modulo the sum of the weights.
///
/// Endpoints are sorted by name, so the order in which they joined plays no part. Shares
/// are exactly those of the weights. But when an endpoint joins or leaves, or a weight
/// changes, nearly every key moves: of n endpoints all but 1 in n. An ejection moves only
/// the ejected endpoint's keys, spread over the others. For sets that rarely change; for others see [`RingHash`](super::RingHash) and [`Maglev`](super::Maglev).
///
/// Cost per pick: a hash of the key, a division and a binary search among the endpoints.
/// Cost per build: O(n log n). Memory: 12 bytes per endpoint.
///
/// ```
/// use counterpoise::policy::affinity::{HashMod, Key};
///
/// let policy = HashMod::by(|user: &String| Some(Key::from(user.as_str())));
/// let map = policy.map([("a", 1), ("b", 1)]);
/// assert_eq!(map.owners(b"user 7").len(), 2);
/// ```
pub type HashMod<A> = Keyed<A, Spans>;

/// The structure of [`HashMod`].
#[derive(Debug, Clone, Copy)]
#[allow(unnameable_types, reason = "users name the alias")]
pub struct Spans {
    nginx: bool,
    hash: fn(&[u8]) -> u64,
}

/// The owner of each part of the numbers below the total.
#[derive(Debug)]
#[allow(unnameable_types, reason = "only seen through a sealed trait")]
pub struct SpanMap {
    /// The end of each part, rising.
    ends: Box<[u64]>,
    owners: Box<[u32]>,
    members: usize,
}

impl Default for Spans {
    fn default() -> Self {
        Self {
            nginx: false,
            hash: xxh64,
        }
    }
}

impl<A> HashMod<A> {
    /// Chooses as nginx's `hash …` (without `consistent`) does, bit for bit.
    ///
    /// The endpoints must join in the order of nginx's configuration. As in nginx the order
    /// of a key is made by hashing it again with the number of the try; after 21 tries
    /// the request goes to any eligible endpoint (nginx: by weight). As in nginx a request with an
    /// empty key has no key.
    #[must_use]
    pub fn nginx(mut self) -> Self {
        self.structure_mut().nginx = true;
        self
    }

    /// Sets the hash function of keys. Default: xxHash64 with seed 0.
    ///
    /// With [`nginx`](Self::nginx) it has no effect.
    #[must_use]
    pub fn hash_with(mut self, hash: fn(&[u8]) -> u64) -> Self {
        self.structure_mut().hash = hash;
        self
    }
}

impl SpanMap {
    fn total(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    fn span(&self, number: u64) -> usize {
        self.ends.partition_point(|&end| end <= number)
    }

    /// Returns owner, start and end of each part.
    fn spans(&self) -> impl Iterator<Item = (usize, u64, u64)> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let spans = self.owners.iter().zip(starts).zip(&self.ends);
        spans.map(|((&owner, start), &end)| (owner as usize, start, end))
    }
}

/// How often a key is hashed anew after its first try, before the other endpoints follow in order: as
/// often as in nginx.
const TRIES: u64 = 20;

impl Spans {
    /// Returns the number for each try of a key.
    fn numbers(&self, key: &[u8]) -> impl Iterator<Item = u64> {
        let first = if self.nginx { 0 } else { (self.hash)(key) };
        let mut sum = 0;
        let nginx = self.nginx.then(|| key.to_vec());
        (0..=TRIES).map(move |attempt| match (&nginx, attempt) {
            (None, 0) => first,
            (None, attempt) => splitmix64(first ^ splitmix64(attempt)),
            (Some(key), attempt) => {
                sum += nginx_hash(key, attempt);
                sum
            }
        })
    }
}

fn nginx_hash(key: &[u8], attempt: u64) -> u64 {
    let prefix = if attempt > 0 {
        attempt.to_string()
    } else {
        String::new()
    };
    u64::from((crc32_continued(crc32(prefix.as_bytes()), key) >> 16) & 0x7fff)
}

impl sealed::Structure for Spans {
    type Map = SpanMap;

    fn is_key(&self, key: &[u8]) -> bool {
        !(key.is_empty() && self.nginx)
    }

    fn reaches_all(&self) -> bool {
        !self.nginx
    }

    fn build(&self, members: &[Member], _previous: Option<&SpanMap>) -> SpanMap {
        let mut order: Vec<_> = (0_u32..)
            .zip(members)
            .filter(|(_, m)| m.weight > 0)
            .collect();
        if !self.nginx {
            order.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
        }
        let mut total = 0;
        let mut end = |weight: u32| {
            total += u64::from(weight);
            total
        };
        SpanMap {
            ends: order.iter().map(|(_, member)| end(member.weight)).collect(),
            owners: order.iter().map(|&(index, _)| index).collect(),
            members: members.len(),
        }
    }

    fn find(
        &self,
        map: &SpanMap,
        key: &[u8],
        mut accept: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let total = map.total();
        if total == 0 {
            return None;
        }
        let mut seen = Seen::default();
        let mut offer = |owner: usize| seen.is_new(owner, map.members) && accept(owner);
        let mut last = 0;
        for number in self.numbers(key) {
            last = map.span(number % total);
            if let Some(&owner) = map.owners.get(last)
                && offer(owner as usize)
            {
                return Some(owner as usize);
            }
        }
        if self.nginx {
            return None;
        }
        let (before, after) = map.owners.split_at(last);
        after
            .iter()
            .chain(before)
            .map(|&owner| owner as usize)
            .find(|&owner| offer(owner))
    }

    fn shares(&self, map: &SpanMap) -> Vec<f64> {
        let mut shares = vec![0.0; map.members];
        for (owner, start, end) in map.spans() {
            shares[owner] = (end - start) as f64 / map.total() as f64;
        }
        shares
    }

    /// A hash modulo one total and modulo another: the pairs that occur are those that agree modulo
    /// the greatest common divisor, and they are equally frequent.
    fn stays(&self, map: &SpanMap, other: &SpanMap, twin: &[Option<usize>]) -> f64 {
        let common = gcd(map.total(), other.total());
        if common == 0 {
            return 0.0;
        }
        let mut spans = vec![None; other.members];
        other
            .spans()
            .for_each(|(owner, start, end)| spans[owner] = Some((start, end)));
        let same = |(owner, start, end): (usize, u64, u64)| {
            let twin = twin.get(owner).copied().flatten();
            let span = twin.and_then(|twin| spans.get(twin).copied().flatten());
            span.map_or(0.0, |span| pairs((start, end), span, common))
        };
        let stay: f64 = map.spans().map(same).sum();
        stay / (map.total() as f64 / common as f64 * other.total() as f64)
    }
}

/// Returns how many pairs of numbers from two spans agree modulo `common`.
fn pairs(a: (u64, u64), b: (u64, u64), common: u64) -> f64 {
    // Each span has every remainder `whole` times, and those of an arc once more.
    let parts = |(start, end): (u64, u64)| {
        let length = end - start;
        (length / common, start % common, length % common)
    };
    let ((whole_a, start_a, arc_a), (whole_b, start_b, arc_b)) = (parts(a), parts(b));
    let overlap = |from: u64, length: u64, other: u64, other_length: u64| {
        let offset = (other + common - from) % common;
        let inside = length.saturating_sub(offset).min(other_length);
        let wrapped = (offset + other_length).saturating_sub(common).min(length);
        inside + wrapped
    };
    let (wa, wb) = (whole_a as f64, whole_b as f64);
    wa * wb * common as f64
        + wa * arc_b as f64
        + wb * arc_a as f64
        + overlap(start_a, arc_a, start_b, arc_b) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_counted_as_by_hand() {
        for common in 1..8 {
            for (a, b) in [
                ((0, 5), (3, 9)),
                ((2, 16), (1, 4)),
                ((7, 8), (0, 30)),
                ((3, 3), (0, 9)),
            ] {
                let by_hand = (a.0..a.1)
                    .flat_map(|x| (b.0..b.1).map(move |y| x % common == y % common))
                    .filter(|&agree| agree)
                    .count();
                assert_eq!(
                    pairs(a, b, common),
                    by_hand as f64,
                    "{a:?} {b:?} mod {common}"
                );
            }
        }
    }
}
