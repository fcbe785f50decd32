//! The picker of the keyed policies: one type over all structures.

use std::sync::Arc;

use crate::policy::{
    Candidates, Members, PickContext, PickResult, Picker,
    affinity::{
        Affinity, Fallback, Key, Structure,
        capacity::{covered, keeps_now},
    },
    rotate,
};

/// Picks by key, from a map of the members that health does not change.
#[derive(Debug)]
#[allow(
    unnameable_types,
    reason = "users name it as `<Keyed<A, S> as Policy>::Picker`"
)]
pub struct KeyedPicker<A, S: Structure> {
    affinity: Arc<A>,
    structure: S,
    fallback: Fallback,
    map: Arc<S::Map>,
    /// Id and weight of each member of the map.
    members: Arc<[(u64, u32)]>,
}

impl<A, S: Structure> KeyedPicker<A, S> {
    /// Keeps the former map where members and weights are the same.
    pub(super) fn new(
        affinity: &Arc<A>,
        structure: &S,
        fallback: Fallback,
        members: &Members<'_>,
        previous: Option<&Self>,
    ) -> Self {
        let (map, members) = match previous {
            Some(former) if former.is_of(members) => {
                (Arc::clone(&former.map), Arc::clone(&former.members))
            }
            _ => {
                let former = previous.map(|former| &*former.map);
                let map = structure.build(members.as_slice(), former);
                (
                    Arc::new(map),
                    members.iter().map(|m| (m.id, m.weight)).collect(),
                )
            }
        };
        let (affinity, structure) = (Arc::clone(affinity), structure.clone());
        Self {
            affinity,
            structure,
            fallback,
            map,
            members,
        }
    }

    /// Returns whether the map was made from these members.
    fn is_of(&self, members: &Members<'_>) -> bool {
        let made = members.iter().map(|member| (member.id, member.weight));
        made.eq(self.members.iter().copied())
    }

    fn key<'a, Req: ?Sized>(&self, request: &'a Req) -> Option<Key<'a>>
    where
        A: Affinity<Req>,
    {
        self.affinity
            .key(request)
            .filter(|key| self.structure.is_key(key.as_bytes()))
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

/// Pushes the candidates from the `skip`-th on.
struct Rest<'o> {
    skip: usize,
    out: &'o mut Candidates,
}

impl Rest<'_> {
    /// Passes the next candidate, and pushes it if it is not to be skipped; returns whether the part
    /// is full.
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
        let Some(key) = self.key(request) else {
            return self.without_key(cx);
        };
        self.find(&key, |index| {
            cx.accepts(index) && keeps_now(&key, cx, index)
        })
        // No member that accepts keeps the key: the first that accepts.
        .or_else(|| self.find(&key, |index| cx.accepts(index)))
        // No member accepts: an eligible one, for which the balancer reads candidates; `Any`
        // would draw a ticket.
        .or_else(|| self.find(&key, |index| cx.is_eligible(index)))
        .map_or(PickResult::Any, PickResult::Member)
    }

    /// Pushes the walk of the key and binds the request to it; without a key, those of the fallback.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{
        Member, Policy,
        affinity::{HashMod, Keyed, RingHash, keeps},
        context::tests::{Idle, NAMES},
        ticket::Tickets,
    };
    use crate::{endpoint::Traits, util::fraction::FULL};

    type ByKey = for<'a> fn(&'a Option<u64>) -> Option<Key<'a>>;

    const KEY: ByKey = |key| key.map(Key::from);

    fn members(n: usize) -> Vec<Member> {
        let member = |id: usize| Member {
            id: id as u64,
            name: NAMES[id..=id].into(),
            weight: 1,
            traits: Traits::default(),
            healthy: true,
            capacity: FULL,
        };
        (0..n).map(member).collect()
    }

    fn picker<S: Structure>(policy: &Keyed<ByKey, S>, n: usize) -> KeyedPicker<ByKey, S> {
        policy.build(&Members::new(&members(n), &[], None), None)
    }

    /// Returns the candidates of a request, read in parts of `most`, and whether they bind it.
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
            part = Candidates::of(most);
            picker.candidates(&key, &cx, all.len(), &mut part);
        }
        (all, part.is_bound())
    }

    #[test]
    fn candidates_are_the_walk_in_parts_of_any_size() {
        let picker = picker(&RingHash::on(KEY), 20);
        for key in 0..20 {
            let walk = picker.walk(Key::from(key).as_bytes());
            for most in [1, 2, 7, 16] {
                assert_eq!(
                    candidates(&picker, Some(key), &[], most),
                    (walk.clone(), true)
                );
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
