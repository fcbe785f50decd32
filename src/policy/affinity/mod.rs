//! Policies that keep a key with one endpoint.
//!
//! They differ in the structure that maps a key to a *walk*: an order of all endpoints, of which the
//! first that may be picked is chosen. The structure depends on the members and their weights;
//! health decides only where the walk ends. So an ejection moves only the ejected endpoint's keys,
//! and they return when it recovers.

mod capacity;
mod hash_mod;
mod key;
mod key_map;
mod keyed;
mod maglev;
mod picker;
mod rendezvous;
mod ring;
mod seen;

pub(crate) use capacity::keeps;
pub use hash_mod::HashMod;
pub use key::{Affinity, And, Combine, Key, Or};
pub use key_map::{KeyMap, Owner, Skipped};
pub use keyed::{Fallback, Keyed};
pub use maglev::Maglev;
pub use rendezvous::Rendezvous;
pub use ring::RingHash;

use crate::policy::Member;

/// How a hash is mapped to endpoints. Sealed: implemented by the structures of this crate.
///
/// Code that is generic over the keyed policies names it as a bound:
///
/// ```
/// use counterpoise::policy::affinity::{Keyed, Structure};
///
/// fn first<A, S: Structure>(policy: &Keyed<A, S>, key: &[u8]) -> Option<String> {
///     policy.map([("a", 1), ("b", 1)]).owner(key).map(str::to_owned)
/// }
/// ```
pub trait Structure: sealed::Structure {}

impl<S: sealed::Structure> Structure for S {}

pub(crate) mod sealed {
    use super::Member;

    #[allow(unnameable_types, reason = "the seal")]
    pub trait Structure: Clone + Send + Sync + 'static {
        type Map: Send + Sync + std::fmt::Debug + 'static;

        /// Maps keys to the members; a member of weight zero owns none.
        fn build(&self, members: &[Member], previous: Option<&Self::Map>) -> Self::Map;

        /// Returns whether these bytes are a key; to nginx an empty key is none.
        fn is_key(&self, key: &[u8]) -> bool {
            let _ = key;
            true
        }

        /// Returns the sum of changed weights from which on a build takes milliseconds. Default: no
        /// sum.
        fn slow_from(&self) -> u64 {
            u64::MAX
        }

        /// Returns whether every walk offers all members that have a weight.
        fn reaches_all(&self) -> bool {
            true
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
        /// `twin` has for each index the index of the same member in the other map.
        fn stays(&self, map: &Self::Map, other: &Self::Map, twin: &[Option<usize>]) -> f64;
    }
}
