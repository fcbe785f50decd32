//! Endpoints that may not use their whole weight: which keys they keep, and how often they are
//! taken for requests without a key.

use crate::policy::{PickContext, PickResult, affinity::Key, members::covers, rotate};
use crate::util::{
    fraction::FULL,
    hash::{xxh64, xxh64_seeded},
    random::splitmix64,
};

/// Draws again, a few times, if an endpoint was chosen that lacks the capacity; then weighs all,
/// so that the shares are exact.
pub(super) fn covered(cx: &PickContext<'_>, mut result: PickResult) -> PickResult {
    for round in 1..8 {
        let PickResult::Member(index) = result else { return result };
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
    let chosen = cx.eligible().iter().find(|&index| {
        let own = capacity(index);
        let is_it = left < own;
        left = left.saturating_sub(own);
        is_it
    });
    chosen.map_or(PickResult::Any, |&index| PickResult::Member(index as usize))
}

/// Returns where a key stands among the keys of an endpoint: those that it keeps at a capacity
/// are the first ones. The same everywhere, so that clients agree on which endpoint has which;
/// and not made of the numbers of rendezvous' bids, or no endpoint would win with a low one.
fn place(key: &[u8], endpoint: &str) -> u16 {
    let both = xxh64_seeded(PLACES, key) ^ splitmix64(xxh64(endpoint.as_bytes()));
    (splitmix64(both) >> 48) as u16
}

/// Returns whether an endpoint of this capacity keeps a key, in units of 1/[`FULL`].
pub(crate) fn keeps(key: &[u8], endpoint: &str, capacity: u32) -> bool {
    covers(capacity, || place(key, endpoint))
}

/// Returns whether a member keeps a key at its capacity of this moment.
#[inline]
pub(super) fn keeps_now(key: &Key<'_>, cx: &PickContext<'_>, index: usize) -> bool {
    cx.covers(index, || place(key.as_bytes(), cx.name(index)))
}

/// The seed of places.
const PLACES: u64 = 0x706c_6163_6573;
