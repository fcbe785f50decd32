//! Policies that keep a key with one endpoint.
//!
//! All are alike but for the structure that maps a hash to a *walk*: an order of all
//! endpoints, of which the first that may be picked is taken. The structure is made from
//! the membership; health is only looked at during the walk. So an ejection moves the
//! ejected endpoint's keys and no others, and gives them back.

mod hash_mod;
mod key;
mod key_map;
mod maglev;
mod rendezvous;
mod ring;
mod seen;

pub use hash_mod::{HashMod, Spans};
pub use key::{Affinity, And, Combine, Key, Or};
pub use key_map::{KeyMap, Owner, Skipped};
pub use maglev::{Maglev, Slots};
pub use rendezvous::{Rendezvous, Scores};
pub use ring::{Ring, RingHash};

use std::sync::Arc;

use crate::util::{
    hash::{xxh64, xxh64_seeded},
    random::splitmix64,
};
use crate::{
    policy::{Choice, Claim, Member, Pick, Policy, Turn, View, members::covers, rotate},
    util::fraction::FULL,
};

/// A policy that keeps a key with one endpoint: [`RingHash`], [`Maglev`], [`HashMod`] or
/// [`Rendezvous`].
///
/// A request's key is found by an [`Affinity`]. Its first choice is the endpoint that owns
/// the key; if that may not be picked, or the request was there before, the next of the
/// key's own order is taken. An ejected endpoint is tried with its own keys.
///
/// An endpoint that may not use its whole weight (it starts slowly, say, or has pushed back) keeps
/// that part of its keys, always the same ones, and hands each other key to the next of its order.
/// Under [`RingHash`] and [`Rendezvous`] that is as a rule who had the key before the endpoint
/// joined, so a key moves once; under [`Maglev`] and [`HashMod`] it may be another, and the key
/// moves a second time when the endpoint takes it over.
#[derive(Debug, Clone)]
pub struct Keyed<A, S> {
    affinity: A,
    structure: S,
    fallback: Fallback,
    bound: Option<f64>,
}

/// What becomes of a request that has no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Fallback {
    /// The endpoints take turns, whatever their weights.
    #[default]
    Rotate,
    /// An endpoint is chosen at random, whatever the weights.
    Random,
    /// The call fails, with a policy error that says so.
    Refuse,
}

/// How a hash is mapped to endpoints. Sealed: implemented by the structures of this crate.
pub trait Structure: sealed::Structure {}

impl<S: sealed::Structure> Structure for S {}

pub(crate) mod sealed {
    use super::Member;

    #[allow(unnameable_types, reason = "the seal")]
    pub trait Structure: Send + Sync + 'static {
        type Map: Send + Sync + std::fmt::Debug + 'static;

        /// Maps keys to the members; those of weight zero own nothing.
        fn build(&self, members: &[Member], previous: Option<&Self::Map>) -> Self::Map;

        /// Returns whether these bytes are a key; some products take no empty ones.
        fn is_key(&self, key: &[u8]) -> bool {
            let _ = key;
            true
        }

        /// Returns whether a map after so many changes takes milliseconds to build.
        fn is_costly(&self, changes: usize, weight: u64) -> bool {
            let _ = (changes, weight);
            false
        }

        /// Offers the members in the order of a key, each once, until one is accepted.
        fn find(
            &self,
            map: &Self::Map,
            key: &[u8],
            accept: impl FnMut(usize) -> bool,
        ) -> Option<usize>;

        /// Returns the share of all hashes that each member owns, by index.
        fn shares(&self, map: &Self::Map) -> Vec<f64>;

        /// Returns the share of all hashes that have one and the same owner in both maps;
        /// `twin` tells by index who is who in the other one.
        fn stays(&self, map: &Self::Map, other: &Self::Map, twin: &[Option<usize>]) -> f64;
    }
}

impl<F, S: Structure + Default> Keyed<F, S> {
    /// Creates the policy from a closure that finds a request's key.
    pub fn by<Req: ?Sized>(key: F) -> Self
    where
        F: Fn(&Req) -> Option<Key<'_>> + Send + Sync + 'static,
    {
        Self::on(key)
    }
}

impl<A, S: Structure + Default> Keyed<A, S> {
    /// Creates the policy from an [`Affinity`], such as those in `http::key`.
    #[must_use]
    pub fn on(affinity: A) -> Self {
        let structure = S::default();
        Self { affinity, structure, fallback: Fallback::Rotate, bound: None }
    }
}

impl<A, S> Keyed<A, S> {
    /// Sets what becomes of requests without a key. Default: [`Fallback::Rotate`].
    #[must_use]
    pub fn fallback(mut self, fallback: Fallback) -> Self {
        self.fallback = fallback;
        self
    }

    /// Bounds the load of each endpoint to a factor of its share of all running calls.
    ///
    /// An endpoint is passed over while one more call would make it hold more than
    /// `ceil(factor × (running + 1) × share)` calls, its share being that of its weight
    /// among the eligible. The bound is exact, also under concurrency: calls are admitted
    /// one at a time, under a short lock. With everybody at the bound, the first choice is
    /// taken; and if that is not ready, another beyond its bound rather than none. Typical factors
    /// are 1.25 to 2; anything below 1, or no number, counts as 1. Default: no bound. (Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with
    /// bounded loads", 2018.)
    #[must_use]
    pub fn bounded(mut self, factor: f64) -> Self {
        self.bound = Some(factor.max(1.0));
        self
    }

    pub(crate) fn structure_mut(&mut self) -> &mut S {
        &mut self.structure
    }
}

/// The table of a keyed policy: a map of the membership, which health does not change.
#[derive(Debug)]
pub struct KeyedTable<S: Structure> {
    map: Arc<S::Map>,
    /// Whom the map was made of.
    members: Arc<[(u64, u32)]>,
}

impl<S: Structure> KeyedTable<S> {
    fn is_of(&self, members: &[Member]) -> bool {
        self.members.len() == members.len()
            && members.iter().zip(&*self.members).all(|(m, &made)| (m.id, m.weight) == made)
    }
}

impl<A: Send + Sync + 'static, S: Structure> Policy for Keyed<A, S> {
    type Table = KeyedTable<S>;

    fn compile(&self, view: &View<'_>, previous: Option<&Self::Table>) -> Self::Table {
        let members = view.members();
        match previous.filter(|table| table.is_of(members)) {
            Some(KeyedTable { map, members }) => {
                KeyedTable { map: Arc::clone(map), members: Arc::clone(members) }
            }
            None => KeyedTable {
                map: Arc::new(self.structure.build(members, previous.map(|table| &*table.map))),
                members: members.iter().map(|member| (member.id, member.weight)).collect(),
            },
        }
    }

    fn is_costly(&self, changes: usize, weight: u64) -> bool {
        self.structure.is_costly(changes, weight)
    }

    fn bound(&self) -> Option<f64> {
        self.bound
    }
}

impl<Req: ?Sized, A: Affinity<Req>, S: Structure> Pick<Req> for Keyed<A, S> {
    fn pick(&self, table: &Self::Table, request: &Req, turn: &Turn<'_>) -> Choice {
        let Some(key) = self.key(request) else { return self.without_key(turn) };
        let find = |accept: &dyn Fn(usize) -> bool| {
            self.structure.find(&table.map, key.as_bytes(), accept)
        };
        let keeps = |index| turn.covers(index, || place(key.as_bytes(), turn.name(index)));
        self.structure
            .find(&table.map, key.as_bytes(), |index| turn.welcomes(index) && keeps(index))
            // Nobody has the capacity for it: the first, as if all had.
            .or_else(|| find(&|index| turn.welcomes(index)))
            // All were tried: from the start again; or all are at their bound.
            .or_else(|| find(&|index| turn.admits(index)))
            .or_else(|| find(&|index| turn.is_merely_full(index)))
            .or_else(|| find(&|index| turn.is_eligible(index)))
            .map_or(Choice::Any, Choice::Member)
    }

    fn claim(&self, table: &Self::Table, request: &Req, open: &dyn Fn(usize) -> bool) -> Claim {
        match self.key(request) {
            Some(key) => {
                let owner = self.structure.find(&table.map, key.as_bytes(), open);
                owner.map_or(Claim::None, Claim::Only)
            }
            None if self.fallback == Fallback::Refuse => Claim::None,
            None => Claim::Any,
        }
    }
}

/// Draws again, a few times, if an endpoint was chosen that lacks the capacity; then looks at
/// all, so that the shares are exact.
fn covered(turn: &Turn<'_>, mut choice: Choice) -> Choice {
    for round in 1..8 {
        let Choice::Member(index) = choice else { return choice };
        if turn.covers(index, || turn.draw(2 * round, 1 << 16) as u16) {
            return choice;
        }
        choice = rotate(turn, |_, n| turn.draw(2 * round + 1, n));
    }
    by_capacity(turn, 16)
}

/// Chooses with chances in proportion to the capacities. Cost: O(n).
fn by_capacity(turn: &Turn<'_>, nth: u64) -> Choice {
    let capacity = |&index: &u32| (turn.capacity(index as usize) * f64::from(FULL)) as u64;
    let mut left = turn.draw(nth, turn.eligible().iter().map(capacity).sum());
    let chosen = turn.eligible().iter().find(|&index| {
        let own = capacity(index);
        let is_it = left < own;
        left = left.saturating_sub(own);
        is_it
    });
    chosen.map_or(Choice::Any, |&index| Choice::Member(index as usize))
}

/// Returns where a key stands among the keys of an endpoint: those that it keeps at a capacity
/// are the first ones. The same everywhere, so that clients agree on who has which; and of
/// other numbers than rendezvous makes its bids of, or nobody would win with a low one.
fn place(key: &[u8], endpoint: &str) -> u16 {
    let both = xxh64_seeded(PLACES, key) ^ splitmix64(xxh64(endpoint.as_bytes()));
    (splitmix64(both) >> 48) as u16
}

/// Returns whether an endpoint of this capacity keeps a key, in units of 1/[`FULL`].
pub(crate) fn keeps(key: &[u8], endpoint: &str, capacity: u32) -> bool {
    covers(capacity, || place(key, endpoint))
}

/// The seed of places.
const PLACES: u64 = 0x706c_6163_6573;

impl<A, S: Structure> Keyed<A, S> {
    fn key<'a, Req: ?Sized>(&self, request: &'a Req) -> Option<Key<'a>>
    where
        A: Affinity<Req>,
    {
        self.affinity.key(request).filter(|key| self.structure.is_key(key.as_bytes()))
    }

    /// Returns the indexes of the members in the order of a key.
    pub(crate) fn walk(&self, table: &KeyedTable<S>, key: &[u8]) -> Vec<usize> {
        let mut walk = Vec::new();
        self.structure.find(&table.map, key, |index| {
            walk.push(index);
            false
        });
        walk
    }
}

impl<A, S> Keyed<A, S> {
    fn without_key(&self, turn: &Turn<'_>) -> Choice {
        match self.fallback {
            Fallback::Rotate => covered(turn, rotate(turn, |ticket, n| ticket % n)),
            Fallback::Random => covered(turn, rotate(turn, |_, n| turn.random_below(n))),
            Fallback::Refuse => Choice::Refuse("the request has no key"),
        }
    }
}
