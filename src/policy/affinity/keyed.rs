//! The policy that all structures share, and its picker.

use std::sync::Arc;

use crate::policy::{
    Candidates, Members, Needs, PickContext, PickResult, Picker, Policy,
    affinity::{Affinity, Key, Structure},
    members::covers,
    rotate,
};
use crate::util::{
    fraction::FULL,
    hash::{xxh64, xxh64_seeded},
    random::splitmix64,
};

/// A policy that keeps a key with one endpoint: [`RingHash`], [`Maglev`], [`HashMod`] or
/// [`Rendezvous`].
///
/// A request's key is found by an [`Affinity`]. Its first choice is the endpoint that owns
/// the key; if that may not be picked, or the request tried it before, the next of the
/// key's own order is taken. An ejected endpoint is tested with its own keys alone.
///
/// An endpoint that may not use its whole weight (it starts slowly, say, or has pushed back) keeps
/// that part of its keys, always the same ones, and hands each other key to the next of its order.
/// Under [`RingHash`] and [`Rendezvous`] that is as a rule the one that had the key before the
/// endpoint joined, so a key moves once; under [`Maglev`] and [`HashMod`] it may be another, and
/// the key moves a second time when the endpoint takes it over.
///
/// Cost per pick: that of the structure, and one pointer more than the structure alone. Cost per
/// build: that of the structure where members or weights have changed, else none: health and
/// capacities change no map.
///
/// ```
/// use counterpoise::policy::affinity::{Key, RingHash};
/// use counterpoise::{discover, Balance, Direct, Endpoint};
/// use tower::service_fn;
///
/// let echo = service_fn(async |user: String| Ok::<_, std::io::Error>(user));
/// let endpoints = discover::list([("a", Endpoint::new(Direct(echo)))]);
/// let policy = RingHash::by(|user: &String| Some(Key::from(user.as_str())));
/// let balance = Balance::new(endpoints, policy.bounded(1.25));
/// ```
///
/// [`RingHash`]: super::RingHash
/// [`Maglev`]: super::Maglev
/// [`HashMod`]: super::HashMod
/// [`Rendezvous`]: super::Rendezvous
#[derive(Debug, Clone)]
pub struct Keyed<A, S> {
    affinity: Arc<A>,
    pub(super) structure: S,
    fallback: Fallback,
    bound: Option<f64>,
}

/// What becomes of a request that has no key.
///
/// ```
/// use counterpoise::policy::affinity::{Fallback, Key, RingHash};
///
/// let by_user = RingHash::by(|user: &Option<String>| user.as_deref().map(Key::from));
/// let policy = by_user.fallback(Fallback::Refuse);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Fallback {
    /// The endpoints are taken in turn, whatever their weights.
    #[default]
    Rotate,
    /// An endpoint is chosen at random, whatever the weights.
    Random,
    /// The call fails, with a policy error that says so.
    Refuse,
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
        let (affinity, structure) = (Arc::new(affinity), S::default());
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
    /// one at a time, under a short lock. With all at the bound, the first choice is taken; and
    /// if that is not ready, another beyond its bound rather than none. Typical factors are 1.25 to
    /// 2; anything below 1, or no number, counts as 1. Default: no bound. (Mirrokni, Thorup and
    /// Zadimoghaddam, "Consistent hashing with bounded loads", 2018.)
    #[must_use]
    pub fn bounded(mut self, factor: f64) -> Self {
        self.bound = Some(factor.max(1.0));
        self
    }

    pub(super) fn structure_mut(&mut self) -> &mut S {
        &mut self.structure
    }
}

/// Picks by key, from a map of the members that health does not change.
#[derive(Debug)]
#[allow(unnameable_types, reason = "users name it as `<Keyed<A, S> as Policy>::Picker`")]
pub struct KeyedPicker<A, S: Structure> {
    affinity: Arc<A>,
    structure: S,
    fallback: Fallback,
    map: Arc<S::Map>,
    /// Id and weight of each member of the map.
    members: Arc<[(u64, u32)]>,
}

impl<A: Send + Sync + 'static, S: Structure> Policy for Keyed<A, S> {
    type Picker = KeyedPicker<A, S>;

    fn build(&self, members: &Members<'_>, previous: Option<&Self::Picker>) -> Self::Picker {
        let (map, members) = match previous {
            Some(former) if former.is_of(members) => {
                (Arc::clone(&former.map), Arc::clone(&former.members))
            }
            _ => {
                let former = previous.map(|former| &*former.map);
                let map = self.structure.build(members.as_slice(), former);
                (Arc::new(map), members.iter().map(|m| (m.id, m.weight)).collect())
            }
        };
        let affinity = Arc::clone(&self.affinity);
        KeyedPicker {
            affinity,
            structure: self.structure.clone(),
            fallback: self.fallback,
            map,
            members,
        }
    }

    fn needs(&self) -> Needs {
        let needs = Needs::none().slow_build_from(self.structure.slow_from());
        self.bound.map_or(needs, |factor| needs.bound(factor))
    }
}

impl<A, S: Structure> KeyedPicker<A, S> {
    fn is_of(&self, members: &Members<'_>) -> bool {
        let made = members.iter().map(|member| (member.id, member.weight));
        made.eq(self.members.iter().copied())
    }

    fn key<'a, Req: ?Sized>(&self, request: &'a Req) -> Option<Key<'a>>
    where
        A: Affinity<Req>,
    {
        self.affinity.key(request).filter(|key| self.structure.is_key(key.as_bytes()))
    }

    /// Offers the members in the order of a key, each once, until one is accepted.
    #[inline]
    fn find(&self, key: &Key<'_>, accept: impl FnMut(usize) -> bool) -> Option<usize> {
        self.structure.find(&self.map, key.as_bytes(), accept)
    }

    /// Returns the indexes of the members in the order of a key.
    pub(crate) fn walk(&self, key: &[u8]) -> Vec<usize> {
        let mut walk = Vec::new();
        self.structure.find(&self.map, key, |index| {
            walk.push(index);
            false
        });
        walk
    }

    fn without_key(&self, cx: &PickContext<'_>) -> PickResult {
        match self.fallback {
            Fallback::Rotate => covered(cx, rotate(cx, |ticket, n| ticket % n)),
            Fallback::Random => covered(cx, rotate(cx, |_, n| cx.random_below(n))),
            Fallback::Refuse => PickResult::Refuse("the request has no key"),
        }
    }

    /// Pushes the walk of a key: first the members that keep it at their capacity, then the
    /// others, then those that the walk does not reach.
    fn push_walk(&self, key: &Key<'_>, cx: &PickContext<'_>, skip: usize, out: &mut Candidates) {
        let mut rest = Rest { skip, out };
        let mut has_others = false;
        let keeper = |index| {
            let keeps = keeps_now(key, cx, index);
            has_others |= !keeps;
            keeps && rest.fills_with(index)
        };
        if self.find(key, keeper).is_some() {
            return;
        }
        let other = |index| !keeps_now(key, cx, index) && rest.fills_with(index);
        if has_others && self.find(key, other).is_some() {
            return;
        }
        if !self.structure.reaches_all() {
            let walk = self.walk(key.as_bytes());
            let mut unreached = cx.shuffled(0).filter(|index| !walk.contains(index));
            unreached.find(|&index| rest.fills_with(index));
        }
    }
}

/// The candidates beyond those that were pushed before.
struct Rest<'o> {
    skip: usize,
    out: &'o mut Candidates,
}

impl Rest<'_> {
    /// Adds the next one, unless it was pushed before; returns whether that fills the part.
    fn fills_with(&mut self, index: usize) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        !self.out.push(index)
    }
}

impl<Req: ?Sized, A: Affinity<Req>, S: Structure> Picker<Req> for KeyedPicker<A, S> {
    fn pick(&self, request: &Req, cx: &PickContext<'_>) -> PickResult {
        let Some(key) = self.key(request) else { return self.without_key(cx) };
        self.find(&key, |index| cx.accepts(index) && keeps_now(&key, cx, index))
            // None has the capacity for it: the first, as if all had.
            .or_else(|| self.find(&key, |index| cx.accepts(index)))
            // All were tried: from the start again; or all are at their bound.
            .or_else(|| self.find(&key, |index| cx.admits(index)))
            .or_else(|| self.find(&key, |index| cx.is_merely_full(index)))
            .or_else(|| self.find(&key, |index| cx.is_eligible(index)))
            .map_or(PickResult::Any, PickResult::Member)
    }

    /// The walk of the key, to which the request is bound; without a key those of the fallback.
    fn candidates(&self, request: &Req, cx: &PickContext<'_>, skip: usize, out: &mut Candidates) {
        match self.key(request) {
            Some(key) => {
                out.bind();
                self.push_walk(&key, cx, skip, out);
            }
            None if self.fallback == Fallback::Refuse => out.bind(),
            None => cx.shuffle(skip, out),
        }
    }
}

/// Draws again, a few times, if an endpoint was chosen that lacks the capacity; then weighs all,
/// so that the shares are exact.
fn covered(cx: &PickContext<'_>, mut result: PickResult) -> PickResult {
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
fn keeps_now(key: &Key<'_>, cx: &PickContext<'_>, index: usize) -> bool {
    cx.covers(index, || place(key.as_bytes(), cx.name(index)))
}

/// The seed of places.
const PLACES: u64 = 0x706c_6163_6573;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{
        Member,
        affinity::{HashMod, RingHash},
        context::tests::{Idle, NAMES},
        ticket::Tickets,
    };

    type ByKey = for<'a> fn(&'a Option<u64>) -> Option<Key<'a>>;

    const KEY: ByKey = |key| key.map(Key::from);

    fn members(n: usize) -> Vec<Member> {
        let member = |id: usize| Member {
            id: id as u64,
            name: NAMES[id..=id].into(),
            weight: 1,
            healthy: true,
            capacity: FULL,
        };
        (0..n).map(member).collect()
    }

    fn picker<S: Structure>(policy: &Keyed<ByKey, S>, n: usize) -> KeyedPicker<ByKey, S> {
        policy.build(&Members::new(&members(n), &[], None), None)
    }

    /// Returns the candidates of a request, read in parts of so many, and whether they bind.
    fn candidates<S: Structure>(
        picker: &KeyedPicker<ByKey, S>,
        key: Option<u64>,
        capacities: &[u32],
        most: usize,
    ) -> (Vec<usize>, bool) {
        let tickets = Tickets::new(0, 7);
        let eligible: Vec<u32> = (0..picker.members.len() as u32).collect();
        let idle = Idle(capacities);
        let cx = PickContext::new(&eligible, &idle, &tickets, 3);
        let (mut part, mut all) = (Candidates::of(most), Vec::new());
        picker.candidates(&key, &cx, 0, &mut part);
        while part.iter().next().is_some() {
            all.extend(part.iter());
            picker.candidates(&key, &cx, part.next_part(), &mut part);
        }
        (all, part.is_bound())
    }

    #[test]
    fn candidates_are_the_walk_in_parts_of_any_size() {
        let picker = picker(&RingHash::on(KEY), 20);
        for key in 0..20 {
            let walk = picker.walk(Key::from(key).as_bytes());
            for most in [1, 2, 7, 16] {
                assert_eq!(candidates(&picker, Some(key), &[], most), (walk.clone(), true));
            }
        }
    }

    #[test]
    fn members_that_keep_the_key_come_first() {
        let picker = picker(&RingHash::on(KEY), 20);
        let capacities = [FULL / 2; 10];
        for key in 0..20 {
            let key_bytes = Key::from(key);
            let capacity = |index: usize| capacities.get(index).copied().unwrap_or(FULL);
            let keeps = |&index: &usize| {
                keeps(key_bytes.as_bytes(), &NAMES[index..=index], capacity(index))
            };
            let walk = picker.walk(key_bytes.as_bytes());
            let (mut want, others): (Vec<_>, Vec<_>) = walk.iter().copied().partition(keeps);
            want.extend(others);
            for most in [1, 2, 7, 16] {
                let found = candidates(&picker, Some(key), &capacities, most);
                assert_eq!(found, (want.clone(), true));
            }
        }
    }

    #[test]
    fn what_a_walk_does_not_reach_comes_last_and_once() {
        let picker = picker(&HashMod::on(KEY).nginx(), 26);
        for key in 0..20 {
            let walk = picker.walk(Key::from(key).as_bytes());
            assert!(walk.len() < 26, "nginx tries 21 numbers");
            let (all, _) = candidates(&picker, Some(key), &[], 7);
            assert_eq!(all[..walk.len()], walk);
            assert_eq!(candidates(&picker, Some(key), &[], 1).0, all);
            let mut all = all;
            all.sort_unstable();
            assert!(all.into_iter().eq(0..26));
        }
    }

    #[test]
    fn requests_without_a_key_are_bound_only_if_they_are_refused() {
        let policy = RingHash::on(KEY);
        for fallback in [Fallback::Rotate, Fallback::Random] {
            let picker = picker(&policy.clone().fallback(fallback), 20);
            let (mut all, is_bound) = candidates(&picker, None, &[], 16);
            all.sort_unstable();
            assert!(!is_bound && all.into_iter().eq(0..20));
        }
        let picker = picker(&policy.fallback(Fallback::Refuse), 20);
        assert_eq!(candidates(&picker, None, &[], 16), (vec![], true));
    }
}
