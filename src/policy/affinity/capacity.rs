//! Endpoints of reduced capacity: the keys that they keep, and their share of the requests without a
//! key.

use crate::{
    policy::{PickContext, PickResult, affinity::Key, members::covers, rotate},
    util::{
        fraction::FULL,
        hash::{xxh64, xxh64_seeded},
        random::splitmix64,
    },
};

/// Draws again, up to seven times, while the chosen endpoint lacks the capacity; then chooses by the
/// capacities of all, so that the shares are exact.
///
/// Seven is a choice: where most endpoints have half of the greatest capacity, fewer than one call in
/// a hundred gets as far as the last choice, which takes O(n). The rounds use the draws 2 to 15, and
/// the last choice the 16th.
pub(super) fn covered(cx: &PickContext<'_>, mut result: PickResult) -> PickResult {
    for round in 1..8 {
        let PickResult::Member(index) = result else {
            return result;
        };
        if cx.covers(index, || cx.draw(2 * round, 1 << 16) as u16) {
            return result;
        }
        result = rotate(cx, |_, n| cx.draw(2 * round + 1, n));
    }
    by_capacity(cx, 16)
}

/// Chooses with chances in proportion to the capacities. Cost: O(n).
fn by_capacity(cx: &PickContext<'_>, nth: u64) -> PickResult {
    let capacity = |&index: &u32| (cx.capacity(index as usize) * f64::from(FULL)) as u64;
    let mut left = cx.draw(nth, cx.eligible().iter().map(capacity).sum());
    for index in cx.eligible() {
        let own = capacity(index);
        if left < own {
            return PickResult::Member(*index as usize);
        }
        left -= own;
    }
    PickResult::Any
}

/// Returns the position of a key among the keys of an endpoint, which keeps the first of them at a
/// reduced capacity.
///
/// It is the same in every process, so that clients agree. It is independent of the scores of
/// [`Rendezvous`](super::Rendezvous): those of the keys that an endpoint owns are all low.
fn position(key: &[u8], endpoint: &str) -> u16 {
    let both = xxh64_seeded(POSITIONS, key) ^ splitmix64(xxh64(endpoint.as_bytes()));
    (splitmix64(both) >> 48) as u16
}

/// Returns whether an endpoint of this capacity keeps a key, in units of 1/[`FULL`].
pub(crate) fn keeps(key: &[u8], endpoint: &str, capacity: u32) -> bool {
    covers(capacity, || position(key, endpoint))
}

/// Returns whether a member keeps a key at its capacity of this moment.
#[inline]
pub(super) fn keeps_now(key: &Key<'_>, cx: &PickContext<'_>, index: usize) -> bool {
    cx.covers(index, || position(key.as_bytes(), cx.name(index)))
}

/// The seed of positions: "places" in ASCII.
const POSITIONS: u64 = 0x706c_6163_6573;
