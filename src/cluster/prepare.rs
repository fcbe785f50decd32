//! Pickers that are built ahead, outside the lock.

use super::{Cluster, batch::Batch};
use crate::{
    policy::{Member, Members, Policy},
    util::lock,
};

/// A picker that was built for planned members.
#[derive(Debug)]
pub(crate) struct Prepared<B> {
    /// None if the policy panicked.
    pub(super) picker: Option<B>,
    members: Vec<Member>,
    eligible: Vec<u32>,
}

/// From this many members on, the picker for a batch of discovery is built outside the lock. The number
/// is a choice: builds of smaller sets hold the lock for a short time only.
const LARGE: usize = 1_024;

impl<T, P: Policy> Cluster<T, P> {
    /// Returns the members after a batch, if their picker is to be built ahead.
    ///
    /// That is so for a slow build, and for a large set unless the build is quick.
    pub(crate) fn plan(&self, batch: &Batch<T>) -> Option<Vec<Member>> {
        // Which endpoints are kept is not known before the batch is applied.
        if self.settings.keep_last {
            return None;
        }
        let is_slow = self.needs.builds_slowly(batch.weight());
        let locked = lock(&self.locked);
        let members = locked.core.members();
        let is_large = !self.needs.builds_quickly() && batch.members_after(members.len()) >= LARGE;
        if is_slow || is_large {
            Some(batch.plan(members))
        } else {
            None
        }
    }

    /// Builds a picker for planned members.
    pub(crate) fn prepare(&self, members: Vec<Member>) -> Prepared<P::Picker> {
        let former = self.snapshot.load_full();
        let is_eligible = |member: &Member| member.has_weight() && (former.panic || member.healthy);
        let eligible = (0..)
            .zip(&members)
            .filter(|(_, member)| is_eligible(member));
        let eligible: Vec<u32> = eligible.map(|(index, _)| index).collect();
        let planned = Members::new(&members, &eligible, self.random_start());
        let picker = self.build(&planned, former.picker.as_ref());
        Prepared {
            picker,
            members,
            eligible,
        }
    }
}

impl<B> Prepared<B> {
    /// Returns whether the picker was built for these members in this state.
    pub(super) fn fits(&self, members: &Members<'_>) -> bool {
        let same = |(planned, member): (&Member, &Member)| {
            planned.id == member.id
                && planned.weight == member.weight
                && planned.capacity == member.capacity
        };
        self.eligible == members.eligible()
            && self.members.len() == members.len()
            && self.members.iter().zip(members.iter()).all(same)
    }
}
