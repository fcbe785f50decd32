//! Builds and publishes snapshots.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{Cluster, Locked, core::Change, nodes::Changes, prepare::Prepared, snapshot::Snapshot};
use crate::{
    policy::{Members, Policy},
    util::{drop_users, fraction::FULL, lock},
};

/// The snapshot before the present one.
type Former<T, P> = Arc<Snapshot<T, <P as Policy>::Picker>>;

/// Up to this many members, each transition is published at once: the build takes microseconds.
const SMALL: usize = 256;

/// How long the transitions of a large set are gathered: they cause at most 100 builds a second.
/// Health words are set at once, so no call goes to an ejected endpoint meanwhile.
const GATHER: Duration = Duration::from_millis(10);

impl<T, P: Policy> Cluster<T, P> {
    /// Returns whether a deadline has passed. Cost: one load while there is none.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.deadlines.is_due(now)
    }

    /// Returns whether a trial is due.
    pub(crate) fn is_trial_due(&self, now: Instant) -> bool {
        self.deadlines.is_trial_due(now)
    }

    /// Returns the first deadline after `seen`, an instant up to which the call has acted on all
    /// deadlines.
    pub(crate) fn next_due(&self, seen: Option<Instant>) -> Option<Instant> {
        let due = self.deadlines.next()?;
        let Some(seen) = seen else { return Some(due) };
        if due > seen {
            return Some(due);
        }
        let locked = lock(&self.locked);
        let publication = (locked.gathered > 0).then(|| locked.published + GATHER);
        let others = [publication, locked.core.next_move()].into_iter().flatten();
        others
            .filter(|&at| at > seen)
            .chain(locked.core.next_trial_after(seen))
            .min()
    }

    /// Publishes the gathered transitions now.
    pub(crate) fn flush(&self, now: Instant) {
        // Checked before the lock is taken, which a build may hold for long.
        if self.deadlines.has_gathered() {
            self.publish_if(now, |locked| locked.gathered > 0);
        }
    }

    /// Publishes the gathered transitions once they are due.
    pub(crate) fn flush_due(&self, now: Instant) {
        if self.deadlines.is_publication_due(now) {
            self.flush(now);
        }
    }

    /// Builds a new picker, if the snapshot of this generation is still published.
    pub(crate) fn renew(&self, generation: u64, now: Instant) {
        self.publish_if(now, |_| self.snapshot.load().generation == generation);
    }

    pub(super) fn publish_first(&self, now: Instant) {
        self.publish_if(now, |_| true);
    }

    fn publish_if(&self, now: Instant, condition: impl FnOnce(&Locked<T>) -> bool) {
        let mut locked = lock(&self.locked);
        let former = if condition(&locked) {
            Some(self.publish(&mut locked, None, now))
        } else {
            None
        };
        self.set_deadlines(&locked);
        drop(locked);
        drop_users(former);
    }

    /// Publishes the change of an input, or gathers it.
    pub(super) fn settle(
        &self,
        locked: &mut Locked<T>,
        change: Change,
        prepared: Option<Prepared<P::Picker>>,
        now: Instant,
    ) -> Option<Former<T, P>> {
        let is_due = locked.gathered > 0 && now >= locked.published + GATHER;
        let publish = match change {
            Change::Nothing => is_due,
            Change::Health => is_due || !self.may_gather(locked, now),
            Change::Members => true,
        };
        let former = if publish {
            Some(self.publish(locked, prepared, now))
        } else {
            locked.gathered += usize::from(change == Change::Health);
            None
        };
        self.set_deadlines(locked);
        former
    }

    /// Returns whether a transition may be gathered: in a large set that was just published, while
    /// less than an eighth of the eligible endpoints has changed and panic mode has not.
    ///
    /// An eighth is a choice: most picks then still need no second candidate.
    fn may_gather(&self, locked: &Locked<T>, now: Instant) -> bool {
        let snapshot = self.snapshot.load();
        snapshot.nodes.len() > SMALL
            && now < locked.published + GATHER
            && (snapshot.eligible.is_empty() || locked.gathered * 8 < snapshot.eligible.len())
            && locked.core.is_panic() == locked.panic
    }

    /// Builds and publishes the next snapshot; returns the former one.
    ///
    /// If the policy panics, the former snapshot stays published.
    fn publish(
        &self,
        locked: &mut Locked<T>,
        prepared: Option<Prepared<P::Picker>>,
        now: Instant,
    ) -> Former<T, P> {
        let former = self.snapshot.load_full();
        // Set before the build: after a panic the next change builds again, not each call.
        (locked.published, locked.gathered) = (now, 0);
        let (eligible, panic) = locked.core.eligible();
        let members = Members::new(locked.core.members(), &eligible, self.random_start());
        let Some(picker) = self.next_picker(prepared, &members, &former) else {
            return former;
        };
        let shares = if self.bounded.is_some() {
            shares(&members)
        } else {
            Box::default()
        };
        let capacities = capacities(&members);
        let same_nodes = locked.unpublished.is_empty();
        let generation = former.generation + 1;
        self.snapshot.store(Arc::new(Snapshot {
            generation,
            roll: if same_nodes { former.roll } else { generation },
            nodes: former.nodes.next(&locked.nodes, &locked.unpublished),
            eligible,
            shares,
            capacities,
            panic,
            counts: locked.core.counts(),
            picker: Some(picker),
        }));
        locked.panic = locked.core.is_panic();
        locked.unpublished = Changes::default();
        self.progress.picker_built();
        former
    }

    /// Returns the picker for these members: the prepared one, if it was built for the same state
    /// of them, else a new one. None if the policy panics.
    fn next_picker(
        &self,
        prepared: Option<Prepared<P::Picker>>,
        members: &Members<'_>,
        former: &Snapshot<T, P::Picker>,
    ) -> Option<P::Picker> {
        let Some(prepared) = prepared else {
            return self.build(members, former.picker.as_ref());
        };
        let fits = prepared.fits(members);
        let picker = prepared.picker?;
        if fits {
            Some(picker)
        } else {
            self.build(members, Some(&picker))
        }
    }

    /// Builds a picker; none if the policy panics.
    pub(super) fn build(
        &self,
        members: &Members<'_>,
        former: Option<&P::Picker>,
    ) -> Option<P::Picker> {
        let build = AssertUnwindSafe(|| self.policy.build(members, former));
        match catch_unwind(build) {
            Ok(picker) => Some(picker),
            Err(payload) => {
                self.progress.policy_panicked(payload.as_ref());
                None
            }
        }
    }

    pub(super) fn random_start(&self) -> Option<u64> {
        if self.settings.starting_at.is_some() {
            None
        } else {
            Some(self.tickets.seed())
        }
    }

    fn set_deadlines(&self, locked: &Locked<T>) {
        let publication = (locked.gathered > 0).then(|| locked.published + GATHER);
        let core = &locked.core;
        self.deadlines
            .set(publication, core.next_move(), core.next_trial());
    }
}

/// Returns each member's capacity relative to the greatest one of the eligible members; empty if
/// all are equal.
fn capacities(members: &Members<'_>) -> Box<[u32]> {
    if !members.is_uneven() {
        return Box::default();
    }
    let greatest = members
        .capacities()
        .map(|(_, _, capacity)| capacity)
        .max()
        .unwrap_or(1);
    let mut capacities = vec![FULL; members.len()];
    for (index, _, capacity) in members.capacities() {
        capacities[index as usize] = (capacity * u64::from(FULL) / greatest) as u32;
    }
    capacities.into()
}

/// Returns each member's share of the effective weights of the eligible.
fn shares(members: &Members<'_>) -> Box<[f64]> {
    let total: f64 = members.shares().map(|(_, _, share)| share as f64).sum();
    let mut shares = vec![0.0; members.len()];
    for (index, _, share) in members.shares() {
        shares[index as usize] = share as f64 / total;
    }
    shares.into()
}
