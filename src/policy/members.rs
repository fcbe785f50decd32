//! The members of the set, as a policy sees them: names and numbers, no services.

use std::sync::Arc;

use crate::{endpoint::Traits, util::fraction::FULL};

/// The members of the set, in the order in which they joined, with those that are drained or
/// ejected.
///
/// A pick returns the index of a member in this list.
///
/// ```
/// use counterpoise::policy::Members;
///
/// /// The weights of the members that may be picked now.
/// fn weights(members: &Members<'_>) -> Vec<u32> {
///     let eligible = members.eligible().iter().filter_map(|&index| members.get(index as usize));
///     eligible.map(|member| member.weight()).collect()
/// }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Members<'a> {
    members: &'a [Member],
    eligible: &'a [u32],
    random_start: Option<u64>,
}

/// One endpoint, as a policy sees it.
#[derive(Debug, Clone)]
pub struct Member {
    pub(crate) id: u64,
    pub(crate) name: Arc<str>,
    pub(crate) weight: u32,
    pub(crate) traits: Traits,
    /// Whether its health allows calls.
    pub(crate) healthy: bool,
    /// In units of 1/[`FULL`].
    pub(crate) capacity: u32,
}

/// Returns whether a capacity covers 16 random bits. A greater capacity covers all numbers that a
/// smaller one does.
#[inline]
pub(super) fn covers(capacity: u32, random: impl FnOnce() -> u16) -> bool {
    capacity == FULL || u32::from(random()) < capacity
}

impl<'a> Members<'a> {
    pub(crate) const fn new(
        members: &'a [Member],
        eligible: &'a [u32],
        random_start: Option<u64>,
    ) -> Self {
        Self {
            members,
            eligible,
            random_start,
        }
    }

    /// Returns the members, in order of their indexes.
    pub fn iter(&self) -> std::slice::Iter<'a, Member> {
        self.members.iter()
    }

    /// Returns the member at an index.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&'a Member> {
        self.members.get(index)
    }

    /// Returns the number of members.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns whether there are no members.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the indexes of the members that may be picked, in rising order.
    ///
    /// Those are the members in service with a weight, or, while panic mode ignores health, all with
    /// a weight.
    #[must_use]
    pub const fn eligible(&self) -> &'a [u32] {
        self.eligible
    }

    /// Returns a seed for the start of a sequence; none if
    /// [`starting_at`](crate::Builder::starting_at) fixed the start.
    ///
    /// With it the sequences of many balancers differ.
    #[must_use]
    pub const fn random_start(&self) -> Option<u64> {
        self.random_start
    }

    pub(crate) const fn as_slice(&self) -> &'a [Member] {
        self.members
    }

    /// Returns index, id and effective weight of each eligible member, in order. The weights are in a
    /// common unit.
    pub(crate) fn shares(&self) -> impl Iterator<Item = (u32, u64, u64)> {
        let is_uneven = self.is_uneven();
        self.eligible_members().map(move |(index, member)| {
            let factor = if is_uneven { member.capacity } else { 1 };
            (
                index,
                member.id,
                u64::from(member.weight) * u64::from(factor),
            )
        })
    }

    /// Returns index, id and capacity of each eligible member, in order.
    pub(crate) fn capacities(&self) -> impl Iterator<Item = (u32, u64, u64)> {
        self.eligible_members()
            .map(|(index, member)| (index, member.id, u64::from(member.capacity)))
    }

    /// Returns whether the capacities of the eligible members differ.
    pub(crate) fn is_uneven(&self) -> bool {
        let mut capacities = self.eligible_members().map(|(_, member)| member.capacity);
        let first = capacities.next();
        capacities.any(|capacity| Some(capacity) != first)
    }

    fn eligible_members(&self) -> impl Iterator<Item = (u32, &'a Member)> {
        let (members, eligible) = (self.members, self.eligible);
        eligible
            .iter()
            .filter_map(|&i| Some((i, members.get(i as usize)?)))
    }
}

impl<'a> IntoIterator for &Members<'a> {
    type Item = &'a Member;
    type IntoIter = std::slice::Iter<'a, Member>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Member {
    /// Returns the number of the endpoint: constant while its key stays in the set, and not used
    /// again.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Returns the name: the `Display` form of the key.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the weight that was set.
    #[must_use]
    pub const fn weight(&self) -> u32 {
        self.weight
    }

    /// Returns the tier that discovery has set.
    #[must_use]
    pub fn tier(&self) -> u32 {
        self.traits.tier()
    }

    /// Returns the zone that discovery has set.
    #[must_use]
    pub fn zone(&self) -> Option<&str> {
        self.traits.zone().map(AsRef::as_ref)
    }

    /// Returns the value of a label that discovery has set.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.traits.labels().get(key)
    }

    /// Returns the weight that was set times the capacity.
    #[must_use]
    pub fn effective_weight(&self) -> f64 {
        f64::from(self.weight) * self.capacity()
    }

    /// Returns the part of the weight that counts at present, from 0 to 1.
    ///
    /// It is less than 1 during a ramp, after push-back, while the endpoint is slower than its peers,
    /// or by [`set_capacity`](crate::Balance::set_capacity).
    /// [`PickContext::capacity`](crate::policy::PickContext::capacity) relates it to the others.
    #[must_use]
    pub fn capacity(&self) -> f64 {
        f64::from(self.capacity) / f64::from(FULL)
    }

    /// Returns whether weight and capacity allow calls.
    pub(crate) const fn has_weight(&self) -> bool {
        self.weight > 0 && self.capacity > 0
    }
}
