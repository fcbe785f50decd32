//! Maglev: a table in which the endpoints claim slots, round by round.

use super::{Keyed, Member, sealed, seen::Seen};
use crate::util::hash::{xxh64, xxh64_seeded};

/// Keeps keys with endpoints by a table that each endpoint fills in an order of its own.
///
/// Shares are almost exactly those of the weights: with the default table within 1 % at up
/// to 500 endpoints. A change moves the keys it must, and a few more: with one of n
/// endpoints gone, 0.2 to 0.9 % beyond its own. An ejection moves only the ejected
/// endpoint's keys. (Eisenbud and others, "Maglev: a fast and reliable software network load
/// balancer", 2016.)
///
/// Chooses as Envoy and gRPC do, bit for bit, if the names are what is hashed there: mostly
/// `ip:port`. Envoy fills the table anew without an ejected host; here the table stays, and
/// the key goes where Envoy's retries would go.
///
/// Cost per pick: a hash of the key and one load from the table. Cost per build: a few
/// steps for each slot, under a second for all but the largest tables. Memory: 4 bytes per
/// slot. There should be many more slots than endpoints: each endpoint owns at least one
/// while there are enough.
///
/// ```
/// use counterpoise::policy::affinity::{Key, Maglev};
///
/// let policy = Maglev::by(|user: &String| Some(Key::from(user.as_str())));
/// let map = policy.map([("a", 1), ("b", 3)]);
/// assert!((map.share("b").unwrap() - 0.75).abs() < 0.01);
/// ```
pub type Maglev<A> = Keyed<A, Slots>;

/// The structure of [`Maglev`].
#[derive(Debug, Clone, Copy)]
#[allow(unnameable_types, reason = "users name the alias")]
pub struct Slots {
    size: u32,
}

/// The owner of each slot.
#[derive(Debug)]
#[allow(unnameable_types, reason = "only seen through a sealed trait")]
pub struct SlotMap {
    slots: Box<[u32]>,
    members: usize,
}

/// The default table size of Envoy and gRPC.
const SIZE: u32 = 65_537;

/// The largest table that Envoy allows.
const LARGEST: u32 = 5_000_011;

impl Default for Slots {
    fn default() -> Self {
        Self { size: SIZE }
    }
}

impl<A> Maglev<A> {
    /// Sets the number of slots.
    ///
    /// Default: 65,537. A number that is not prime counts as the next prime, and one above 5,000,011
    /// as 5,000,011.
    #[must_use]
    pub fn table_size(mut self, size: u32) -> Self {
        self.structure_mut().size = prime(size.clamp(2, LARGEST));
        self
    }
}

/// Returns the least prime that is not below a size.
fn prime(mut size: u32) -> u32 {
    let is_prime = |n: u32| {
        (2..)
            .take_while(|d| d * d <= n)
            .all(|d| !n.is_multiple_of(d))
    };
    while !is_prime(size) {
        size += 1;
    }
    size
}

/// One endpoint while the table is filled.
struct Filler {
    index: u32,
    weight: f64,
    /// In which round the next slot is claimed, in units of its weight.
    target: f64,
    /// The next slot of its own order, which is a step of `skip` from one to the next.
    next: u64,
    skip: u64,
}

impl Filler {
    fn new(index: u32, member: &Member, total: f64, size: u64) -> Self {
        let name = member.name.as_bytes();
        Self {
            index,
            weight: f64::from(member.weight) / total,
            target: 0.0,
            next: xxh64(name) % size,
            skip: xxh64_seeded(1, name) % (size - 1) + 1,
        }
    }

    /// Claims the next free slot of this endpoint's own order.
    fn claim(&mut self, slots: &mut [u32]) {
        let size = slots.len() as u64;
        while slots[self.next as usize] != FREE {
            self.next = (self.next + self.skip) % size;
        }
        slots[self.next as usize] = self.index;
    }
}

/// The content of a slot that is not claimed.
const FREE: u32 = u32::MAX;

/// Fills the table in rounds: the heaviest endpoints claim a slot in each, others in part of them.
fn fill(slots: &mut [u32], fillers: &mut [Filler]) {
    let heaviest = fillers
        .iter()
        .map(|filler| filler.weight)
        .fold(0.0, f64::max);
    let mut free = slots.len();
    for round in 1_u32.. {
        for filler in fillers.iter_mut() {
            if f64::from(round) * filler.weight < filler.target {
                continue;
            }
            if free == 0 {
                return;
            }
            filler.target += heaviest;
            filler.claim(slots);
            free -= 1;
        }
    }
}

impl sealed::Structure for Slots {
    type Map = SlotMap;

    fn build(&self, members: &[Member], _previous: Option<&SlotMap>) -> SlotMap {
        let owners = (0_u32..)
            .zip(members)
            .filter(|(_, member)| member.weight > 0);
        let mut owners: Vec<_> = owners.collect();
        owners.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
        let total: f64 = owners
            .iter()
            .map(|(_, member)| f64::from(member.weight))
            .sum();
        let size = u64::from(self.size);
        let filler = |&(index, member): &(u32, &Member)| Filler::new(index, member, total, size);
        let mut fillers: Vec<_> = owners.iter().map(filler).collect();
        let mut slots = vec![
            FREE;
            if fillers.is_empty() {
                0
            } else {
                self.size as usize
            }
        ];
        if !fillers.is_empty() {
            fill(&mut slots, &mut fillers);
        }
        SlotMap {
            slots: slots.into(),
            members: members.len(),
        }
    }

    fn slow_from(&self) -> u64 {
        if self.size > 10_000 { 0 } else { u64::MAX }
    }

    fn find(
        &self,
        map: &SlotMap,
        key: &[u8],
        mut accept: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let (hash, size) = (xxh64(key), map.slots.len() as u64);
        let slot = |attempt: u64| {
            // Envoy's retries: `hash ^ (~0 - attempt + 1)`.
            let hash = if attempt == 0 {
                hash
            } else {
                hash ^ attempt.wrapping_neg()
            };
            map.slots
                .get(hash.checked_rem(size)? as usize)
                .map(|&owner| owner as usize)
        };
        let mut seen = Seen::default();
        let mut offer = |owner: usize| seen.is_new(owner, map.members) && accept(owner);
        let first = slot(0)?;
        if offer(first) {
            return Some(first);
        }
        let tries = (1..=TRIES).filter_map(slot);
        let rest = map.slots.iter().map(|&owner| owner as usize);
        tries.chain(rest).find(|&owner| offer(owner))
    }

    fn shares(&self, map: &SlotMap) -> Vec<f64> {
        let mut shares = vec![0.0; map.members];
        map.slots
            .iter()
            .for_each(|&owner| shares[owner as usize] += 1.0);
        shares
            .iter_mut()
            .for_each(|share| *share /= map.slots.len().max(1) as f64);
        shares
    }

    fn stays(&self, map: &SlotMap, other: &SlotMap, twin: &[Option<usize>]) -> f64 {
        let same =
            |&(&a, &b): &(&u32, &u32)| twin.get(a as usize).copied().flatten() == Some(b as usize);
        let stay = map.slots.iter().zip(&other.slots).filter(same).count();
        stay as f64 / map.slots.len().max(1) as f64
    }
}

/// How many further hashes of a key are tried before the slots follow in order.
const TRIES: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_raised_to_primes() {
        assert_eq!(
            [0, 2, 4, 8, 65_536, u32::MAX].map(|n| prime(n.clamp(2, LARGEST))),
            [2, 2, 5, 11, 65_537, LARGEST]
        );
    }
}
