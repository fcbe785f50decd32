//! When a snapshot is published, and what is in it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{Cluster, Locked, batch::Batch, core::Change, nodes::Changes, snapshot::Snapshot};
use crate::{
    policy::{Member, Members, Policy},
    util::{drop_users, fraction::FULL, lock},
};

/// A picker that was built ahead, outside the lock, for members that were planned.
#[derive(Debug)]
pub(crate) struct Prepared<B> {
    /// None if the policy panicked.
    picker: Option<B>,
    members: Vec<Member>,
    eligible: Vec<u32>,
}

/// A snapshot that another has replaced.
type Former<T, P> = Arc<Snapshot<T, <P as Policy>::Picker>>;

/// Up to this many members, each transition is published at once: a build takes microseconds.
const SMALL: usize = 256;

/// From so many members on, the picker for a batch of discovery is built outside the lock.
const LARGE: usize = 1_024;

/// How long the transitions of a large set are gathered. Their health words are set at once all
/// the same, so no call goes to an ejected endpoint.
pub(super) const GATHER: Duration = Duration::from_millis(10);

impl<T, P: Policy> Cluster<T, P> {
    /// Returns whether something is due. Cost: one load while all endpoints are healthy.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.deadlines.is_due(now)
    }

    /// Returns whether an endpoint waits for its trial.
    pub(crate) fn is_trial_due(&self, now: Instant) -> bool {
        self.deadlines.is_trial_due(now)
    }

    /// Publishes what was gathered, whatever its age.
    pub(crate) fn flush(&self, now: Instant) {
        // Not the lock for nothing: it may be held during a build.
        if self.deadlines.has_gathered() {
            self.publish_if(now, |locked| locked.gathered > 0);
        }
    }

    /// Publishes what was gathered for long enough.
    pub(crate) fn flush_due(&self, now: Instant) {
        if self.deadlines.is_publication_due(now) {
            self.flush(now);
        }
    }

    /// Builds the picker anew, if the one of this generation is still in use.
    pub(crate) fn renew(&self, generation: u64, now: Instant) {
        self.publish_if(now, |_| self.snapshot.load().generation == generation);
    }

    pub(super) fn publish_first(&self, now: Instant) {
        self.publish_if(now, |_| true);
    }

    fn publish_if(&self, now: Instant, wanted: impl FnOnce(&Locked<T>) -> bool) {
        let mut locked = lock(&self.locked);
        let former = wanted(&locked).then(|| self.publish(&mut locked, None, now));
        self.set_deadlines(&locked);
        drop(locked);
        drop_users(former);
    }

    /// Publishes what an input has changed, or gathers it.
    pub(super) fn settle(
        &self,
        locked: &mut Locked<T>,
        change: Change,
        prepared: Option<Prepared<P::Picker>>,
        now: Instant,
    ) -> Option<Former<T, P>> {
        let ripe = locked.gathered > 0 && now >= locked.published + GATHER;
        let publish = match change {
            Change::Nothing => ripe,
            Change::Health => ripe || !self.may_gather(locked, now),
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

    /// Returns whether a transition may wait for others: in a large set that was published a
    /// moment ago, while few picks find an endpoint closed.
    fn may_gather(&self, locked: &Locked<T>, now: Instant) -> bool {
        let snapshot = self.snapshot.load();
        snapshot.nodes.len() > SMALL
            && now < locked.published + GATHER
            && (snapshot.eligible.is_empty() || locked.gathered * 8 < snapshot.eligible.len())
            && locked.core.is_panic() == locked.panic
    }

    /// Builds and publishes the next snapshot; returns the former one. If the policy panics, that
    /// one stays in use.
    fn publish(
        &self,
        locked: &mut Locked<T>,
        prepared: Option<Prepared<P::Picker>>,
        now: Instant,
    ) -> Former<T, P> {
        let former = self.snapshot.load_full();
        // If the build fails, the next change tries again, not each call.
        (locked.published, locked.gathered) = (now, 0);
        let (eligible, panic) = locked.core.eligible();
        let members = Members::new(locked.core.members(), &eligible, self.random_start());
        let picker = match prepared {
            Some(Prepared { picker: None, .. }) => None,
            Some(ahead) if ahead.fits(&members) => ahead.picker,
            // Some endpoint's health or capacity has changed meanwhile.
            Some(ahead) => self.build(&members, ahead.picker.as_ref()),
            None => self.build(&members, former.picker.as_ref()),
        };
        let Some(picker) = picker else { return former };
        let same_nodes = locked.unpublished.is_empty();
        let generation = former.generation + 1;
        let shares = if self.bounded.is_some() { shares(&members) } else { Box::default() };
        let capacities = capacities(&members);
        let next = Snapshot {
            generation,
            roll: if same_nodes { former.roll } else { generation },
            nodes: former.nodes.next(&locked.nodes, &locked.unpublished),
            eligible,
            shares,
            capacities,
            panic,
            counts: locked.core.counts(),
            picker: Some(picker),
        };
        self.snapshot.store(Arc::new(next));
        locked.panic = locked.core.is_panic();
        locked.unpublished = Changes::default();
        self.progress.picker_built();
        former
    }

    /// Builds a picker; none if the policy panics.
    fn build(&self, members: &Members<'_>, former: Option<&P::Picker>) -> Option<P::Picker> {
        let build = || self.policy.build(members, former);
        match catch_unwind(AssertUnwindSafe(build)) {
            Ok(picker) => Some(picker),
            Err(payload) => {
                self.progress.policy_panicked(payload.as_ref());
                None
            }
        }
    }

    /// Returns the members after a batch, if their picker is to be built ahead: of a large set
    /// whose builds are not quick, or where the policy says that builds are slow.
    pub(crate) fn plan(&self, batch: &Batch<T>) -> Option<Vec<Member>> {
        // Which endpoints are kept is only known when the batch is applied.
        if self.settings.keep_last {
            return None;
        }
        let is_slow = self.needs.builds_slowly(batch.weight());
        let locked = lock(&self.locked);
        let members = locked.core.members();
        let is_large = !self.needs.builds_quickly() && batch.members_after(members.len()) >= LARGE;
        if is_slow || is_large { Some(batch.plan(members)) } else { None }
    }

    /// Builds a picker outside the lock, for members that are planned.
    pub(crate) fn prepare(&self, members: Vec<Member>) -> Prepared<P::Picker> {
        let former = self.snapshot.load_full();
        let may = |member: &Member| member.is_open() && (former.panic || member.healthy);
        let eligible = (0..).zip(&members).filter(|(_, member)| may(member));
        let eligible: Vec<u32> = eligible.map(|(index, _)| index).collect();
        let view = Members::new(&members, &eligible, self.random_start());
        let picker = self.build(&view, former.picker.as_ref());
        Prepared { picker, members, eligible }
    }

    fn random_start(&self) -> Option<u64> {
        if self.settings.starting_at.is_some() { None } else { Some(self.tickets.seed()) }
    }

    fn set_deadlines(&self, locked: &Locked<T>) {
        let publication = (locked.gathered > 0).then(|| locked.published + GATHER);
        let core = &locked.core;
        self.deadlines.set(publication, core.next_move(), core.next_trial());
    }
}

impl<B> Prepared<B> {
    /// Returns whether the picker was built for these members as they are now.
    fn fits(&self, members: &Members<'_>) -> bool {
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

/// Returns each member's capacity beside the greatest of the eligible, unless all are alike.
fn capacities(members: &Members<'_>) -> Box<[u32]> {
    if !members.is_uneven() {
        return Box::default();
    }
    let greatest = members.capacities().map(|(_, _, capacity)| capacity).max().unwrap_or(1);
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
