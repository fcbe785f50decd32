//! The map of a keyed policy for a set, before the set is deployed.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::{Keyed, Member, Structure};
use crate::{endpoint::Traits, util::fraction::FULL};

/// The map from keys to endpoints that a keyed policy makes of names and weights.
///
/// It is the same in every process and on every platform.
///
/// ```
/// use counterpoise::policy::affinity::{Key, RingHash};
///
/// let policy = RingHash::by(|user: &String| Some(Key::from(user.as_str())));
/// let now = policy.map([("a", 1), ("b", 1)]);
/// let then = policy.map([("a", 1), ("b", 1), ("c", 1)]);
/// assert_eq!(now.owners(b"user 7").len(), 2);
/// assert!((now.moved(&then) - then.share("c").unwrap()).abs() < 1e-9);
/// ```
#[derive(Debug)]
pub struct KeyMap<S: Structure> {
    structure: S,
    map: S::Map,
    members: Box<[Member]>,
}

/// An endpoint in the order of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Owner {
    /// The endpoint's name.
    pub name: Arc<str>,
    /// Why the endpoint is passed over at present; none if it may be picked.
    pub skipped: Option<Skipped>,
}

/// Why an endpoint is passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Skipped {
    /// Its capacity is zero. (Endpoints of weight zero are in no key's order.)
    Drained,
    /// It is ejected.
    Ejected,
    /// Its capacity is reduced, and this key is among those that it does not keep.
    Capacity,
}

impl<A, S: Structure> Keyed<A, S> {
    /// Maps a set of names and weights, in the order in which the endpoints would join.
    pub fn map<N: Into<Arc<str>>>(&self, set: impl IntoIterator<Item = (N, u32)>) -> KeyMap<S> {
        let member = |(id, (name, weight)): (u64, (N, u32))| Member {
            id,
            name: name.into(),
            weight,
            traits: Traits::default(),
            healthy: true,
            capacity: FULL,
        };
        let members: Box<[Member]> = (0..).zip(set).map(member).collect();
        let map = self.structure.build(&members, None);
        KeyMap {
            structure: self.structure.clone(),
            map,
            members,
        }
    }
}

impl<S: Structure> KeyMap<S> {
    /// Returns the endpoint that owns a key. Cost: that of a pick.
    #[must_use]
    pub fn owner(&self, key: &[u8]) -> Option<&str> {
        let index = self.structure.find(&self.map, key, |_| true)?;
        self.members.get(index).map(Member::name)
    }

    /// Returns the endpoints in the order in which they would be chosen for a key, each once.
    /// Those without weight are not in it. (nginx's order ends after 21 points or tries.)
    #[must_use]
    pub fn owners(&self, key: &[u8]) -> Vec<&str> {
        let mut owners = Vec::new();
        self.structure.find(&self.map, key, |index| {
            owners.extend(self.members.get(index).map(Member::name));
            false
        });
        owners
    }

    /// Returns the share of all hashes that each endpoint owns, in the order of the set.
    ///
    /// Exact for rings, tables and [`HashMod`](super::HashMod); for
    /// [`Rendezvous`](super::Rendezvous) what an ideal hash would give.
    #[must_use]
    pub fn shares(&self) -> Vec<(&str, f64)> {
        let shares = self.structure.shares(&self.map);
        self.members.iter().map(Member::name).zip(shares).collect()
    }

    /// Returns the share of all hashes that one endpoint owns.
    #[must_use]
    pub fn share(&self, name: &str) -> Option<f64> {
        self.shares()
            .into_iter()
            .find(|(other, _)| *other == name)
            .map(|(_, share)| share)
    }

    /// Returns the share of all keys that would move if this set became the other one, under
    /// the same kind of policy (a ring of another product is another kind). From 0 to 1; exact where
    /// [`shares`](Self::shares) are.
    #[must_use]
    pub fn moved(&self, other: &Self) -> f64 {
        if self.is_ownerless() && other.is_ownerless() {
            return 0.0;
        }
        // Endpoints of one name are matched in order.
        let mut there: HashMap<&str, VecDeque<usize>> = HashMap::new();
        for (index, member) in other.members.iter().enumerate() {
            there.entry(member.name()).or_default().push_back(index);
        }
        let twin = |member: &Member| there.get_mut(member.name())?.pop_front();
        let twin: Vec<_> = self.members.iter().map(twin).collect();
        (1.0 - self.structure.stays(&self.map, &other.map, &twin)).max(0.0)
    }

    /// Returns whether no endpoint has a weight.
    fn is_ownerless(&self) -> bool {
        self.members.iter().all(|member| member.weight == 0)
    }
}
