//! When a snapshot is published, and what is in it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{Cluster, Locked, batch::Batch, core::Change, nodes::Changes, snapshot::Snapshot};
use crate::{
    policy::{Member, Policy, View},
    util::{drop_users, fraction::FULL, lock},
};

/// A picker that was built ahead: none if nothing was, `Some(None)` if the policy panicked.
pub(crate) type Prepared<B> = Option<Option<B>>;

/// A snapshot that another has replaced.
type Former<T, P> = Arc<Snapshot<T, <P as Policy>::Table>>;

/// Up to this many members, each transition is published at once: a build takes microseconds.
const SMALL: usize = 256;

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
        prepared: Prepared<P::Table>,
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
        prepared: Prepared<P::Table>,
        now: Instant,
    ) -> Former<T, P> {
        let former = self.snapshot.load_full();
        // If the build fails, the next change tries again, not each call.
        (locked.published, locked.gathered) = (now, 0);
        let (eligible, panic) = locked.core.eligible();
        let view = View::new(locked.core.members(), &eligible, self.random_start());
        let build = || self.build(&view, former.table.as_ref());
        let Some(picker) = prepared.unwrap_or_else(build) else { return former };
        let same_nodes = locked.unpublished.is_empty();
        let generation = former.generation + 1;
        let shares = if self.bounded.is_some() { shares(&view) } else { Box::default() };
        let capacities = capacities(&view);
        let next = Snapshot {
            generation,
            roll: if same_nodes { former.roll } else { generation },
            nodes: former.nodes.next(&locked.nodes, &locked.unpublished),
            eligible,
            shares,
            capacities,
            panic,
            counts: locked.core.counts(),
            table: Some(picker),
        };
        self.snapshot.store(Arc::new(next));
        locked.panic = locked.core.is_panic();
        locked.unpublished = Changes::default();
        self.progress.picker_built();
        former
    }

    /// Builds a picker; none if the policy panics.
    fn build(&self, view: &View<'_>, former: Option<&P::Table>) -> Option<P::Table> {
        let build = || self.policy.compile(view, former);
        match catch_unwind(AssertUnwindSafe(build)) {
            Ok(picker) => Some(picker),
            Err(payload) => {
                self.progress.policy_panicked(payload.as_ref());
                None
            }
        }
    }

    /// Returns the members after a batch, if their picker is to be built ahead.
    pub(crate) fn plan_large(&self, batch: &Batch<T>) -> Option<Vec<Member>> {
        // Which endpoints are kept is only known when the batch is applied.
        if self.settings.keep_last || !self.policy.is_costly(batch.len(), batch.weight()) {
            return None;
        }
        Some(batch.plan(lock(&self.locked).core.members()))
    }

    /// Builds a picker ahead, outside the lock, for members that are planned.
    pub(crate) fn prepare(&self, members: &[Member]) -> Option<P::Table> {
        let open = (0..).zip(members).filter(|(_, member)| member.is_open());
        let eligible: Vec<u32> = open.map(|(index, _)| index).collect();
        let view = View::new(members, &eligible, self.random_start());
        self.build(&view, self.snapshot.load_full().table.as_ref())
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

/// Returns each member's capacity beside the greatest of the eligible, unless all are alike.
fn capacities(view: &View<'_>) -> Box<[u32]> {
    if !view.is_uneven() {
        return Box::default();
    }
    let greatest = view.capacities().map(|(_, _, capacity)| capacity).max().unwrap_or(1);
    let mut capacities = vec![FULL; view.members().len()];
    for (index, _, capacity) in view.capacities() {
        capacities[index as usize] = (capacity * u64::from(FULL) / greatest) as u32;
    }
    capacities.into()
}

/// Returns each member's share of the effective weights of the eligible.
fn shares(view: &View<'_>) -> Box<[f64]> {
    let total: f64 = view.shares().map(|(_, _, share)| share as f64).sum();
    let mut shares = vec![0.0; view.members().len()];
    for (index, _, share) in view.shares() {
        shares[index as usize] = share as f64 / total;
    }
    shares.into()
}
