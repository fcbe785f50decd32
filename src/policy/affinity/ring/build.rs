//! Builds this crate's own ring: anew, or by an edit of the former ring.

use super::{
    Ring, RingMap,
    circle::Circle,
    map::{Circles, Source},
    points,
    position::Point,
};
use crate::policy::affinity::Member;

impl Ring {
    /// Makes the ring of these members, by an edit of the former ring where that is cheaper.
    pub(crate) fn build_own(&self, members: &[Member], previous: Option<&RingMap>) -> RingMap {
        let edited = previous.and_then(|former| match &former.circle {
            Circles::Short(circle) => self.edit(members, former, circle),
            Circles::Long(_) => None,
        });
        edited.unwrap_or_else(|| {
            RingMap::in_order(members, |sources| Circles::Short(self.fresh(sources)))
        })
    }

    /// Makes the points of all sources.
    fn fresh(&self, sources: &[Source]) -> Circle<u32> {
        let count = |source: &Source| self.count(source.weight) as usize;
        let len = sources.iter().map(count).sum();
        let points = || sources.iter().flat_map(|source| self.points_of(source));
        let order = |&(_, slot): &Point<u32>| {
            let source = &sources[slot as usize];
            (&source.name, source.id)
        };
        Circle::new(len, points, |ties| {
            ties.sort_by(|a, b| order(a).cmp(&order(b)));
        })
    }

    fn points_of(&self, source: &Source) -> impl Iterator<Item = Point<u32>> + use<> {
        let slot = source.slot;
        let points = points::own(&source.name, self.count(source.weight), self.hash());
        points.map(move |point| (point, slot))
    }

    /// Edits the former ring; none if too much has changed.
    fn edit(&self, members: &[Member], former: &RingMap, circle: &Circle<u32>) -> Option<RingMap> {
        let Matched {
            sources,
            gone,
            fresh,
        } = Matched::of(members, former);
        if gone.is_empty() && fresh.is_empty() {
            let circle = Circles::Short(circle.clone());
            return Some(RingMap::new(circle, sources));
        }
        let gone: Vec<_> = gone
            .iter()
            .flat_map(|source| self.points_of(source))
            .collect();
        let fresh = fresh
            .iter()
            .flat_map(|&index| self.points_of(&sources[index]));
        let fresh: Vec<_> = fresh.collect();
        let map = RingMap::new(Circles::Short(Circle::default()), sources);
        let order = |&(_, slot): &Point<u32>| {
            let source = &map.sources[map.member(slot)?];
            Some((&source.name, source.id))
        };
        let settle = |ties: &mut [Point<u32>]| ties.sort_by(|a, b| order(a).cmp(&order(b)));
        let circle = circle.edit(&gone, &fresh, settle)?;
        Some(RingMap {
            circle: Circles::Short(circle),
            ..map
        })
    }
}

/// What a change does to the sources of a former ring.
struct Matched<'f> {
    sources: Box<[Source]>,
    /// The former sources that have left or changed their weight.
    gone: Vec<&'f Source>,
    /// The indexes of the sources that are new or have changed their weight.
    fresh: Vec<usize>,
}

impl<'f> Matched<'f> {
    /// Matches members and former sources by id; both are in rising order of ids. Sources that stay
    /// keep their slot.
    fn of(members: &[Member], former: &'f RingMap) -> Self {
        let mut gone = Vec::new();
        let mut fresh = Vec::new();
        let mut formers = former.sources.iter().peekable();
        let mut sources = Vec::with_capacity(members.len());
        let mut free = vec![true; former.members.len()];
        for (index, member) in members.iter().enumerate() {
            while let Some(source) = formers.next_if(|source| source.id < member.id) {
                gone.push(source);
            }
            let same = formers.next_if(|source| source.id == member.id);
            let stays = same.filter(|source| source.weight == member.weight);
            if let Some(source) = stays {
                free[source.slot as usize] = false;
                sources.push(source.clone());
                continue;
            }
            gone.extend(same);
            fresh.push(index);
            sources.push(Source::new(member, u32::MAX));
        }
        gone.extend(formers);
        // A slot that becomes free now is used again in the next change, so that the points to
        // remove and those to add differ in their slots.
        gone.iter()
            .for_each(|source| free[source.slot as usize] = false);
        let unused = (0_u32..)
            .zip(free)
            .filter(|(_, free)| *free)
            .map(|(slot, _)| slot);
        let mut slots = unused.chain(former.members.len() as u32..);
        for &index in &fresh {
            sources[index].slot = slots.next().unwrap_or(u32::MAX);
        }
        Self {
            sources: sources.into(),
            gone,
            fresh,
        }
    }
}
