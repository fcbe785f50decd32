//! The ring of one set: points of slots, and the member of each slot.

use std::sync::Arc;

use super::{
    circle::Circle,
    position::{Point, Position},
};
use crate::policy::affinity::{Member, seen::Seen};

/// The ring of one set.
#[derive(Debug)]
#[allow(unnameable_types, reason = "only seen through a sealed trait")]
pub struct RingMap {
    pub(crate) circle: Circles,
    /// The members, in order.
    pub(crate) sources: Box<[Source]>,
    /// The index of the member of each slot. Points name slots, because indexes shift when members
    /// leave.
    pub(crate) members: Box<[u32]>,
    /// How many members own points.
    pub(crate) owning: usize,
}

/// The points of a ring, with positions of 32 or 64 bits.
#[derive(Debug)]
pub(crate) enum Circles {
    Short(Circle<u32>),
    Long(Circle<u64>),
}

/// The data from which the points of an endpoint are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) id: u64,
    pub(crate) name: Arc<str>,
    pub(crate) weight: u32,
    pub(crate) slot: u32,
}

/// The index in a slot that belongs to no member.
const UNUSED: u32 = u32::MAX;

impl RingMap {
    /// Makes a map in which the slot of a member is its index.
    pub(crate) fn in_order(members: &[Member], circle: impl FnOnce(&[Source]) -> Circles) -> Self {
        let slots = (0..).zip(members);
        let sources: Box<[_]> = slots
            .map(|(slot, member)| Source::new(member, slot))
            .collect();
        Self::new(circle(&sources), sources)
    }

    /// Makes a map of a circle and of the sources of its points, in order of the members.
    pub(crate) fn new(circle: Circles, sources: Box<[Source]>) -> Self {
        let slots = sources
            .iter()
            .map(|source| source.slot as usize + 1)
            .max()
            .unwrap_or(0);
        let mut members = vec![UNUSED; slots];
        for (index, source) in (0..).zip(&sources) {
            members[source.slot as usize] = index;
        }
        let owning = sources.iter().filter(|source| source.weight > 0).count();
        Self {
            circle,
            sources,
            members: members.into(),
            owning,
        }
    }

    /// Returns the index of the member of a slot.
    pub(crate) fn member(&self, slot: u32) -> Option<usize> {
        self.members.get(slot as usize).map(|&index| index as usize)
    }

    /// Offers the owners of points in the order of the points, each once, until one is accepted.
    pub(crate) fn first<'p, P: Position>(
        &self,
        points: impl Iterator<Item = &'p Point<P>>,
        mut accept: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let mut seen = Seen::default();
        let mut left = self.owning;
        let mut owners = points.filter_map(|&(_, slot)| self.member(slot));
        // Ends at the last owner: many points may be left.
        while left > 0 {
            let owner = owners.next()?;
            if !seen.is_new(owner, self.sources.len()) {
                continue;
            }
            if accept(owner) {
                return Some(owner);
            }
            left -= 1;
        }
        None
    }
}

impl Source {
    pub(crate) fn new(member: &Member, slot: u32) -> Self {
        Self {
            id: member.id,
            name: member.name.clone(),
            weight: member.weight,
            slot,
        }
    }
}
