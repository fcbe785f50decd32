//! The publishing side of the door: when a snapshot is compiled, and of what.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use tokio::time::Instant;

use crate::cluster::{Change, Cluster, Former, GATHER, Prepared, Room, SMALL};
use crate::{
    cluster::{nodes::Changes, snapshot::Snapshot},
    policy::{Member, Members, Policy},
    util::fraction::FULL,
};

impl<T, P: Policy> Cluster<T, P> {
    /// Publishes what a visit has changed, or lets it gather.
    pub(crate) fn settle(
        &self,
        room: &mut Room<T>,
        change: Change,
        table: Prepared<P::Picker>,
        now: Instant,
    ) -> Option<Former<T, P>> {
        let ripe = room.gathered > 0 && now >= room.published + GATHER;
        let publish = match change {
            Change::Nothing => ripe,
            Change::Health => ripe || !self.may_gather(room, now),
            Change::Members => true,
        };
        let former = if publish {
            self.publish(room, table, now)
        } else {
            room.gathered += usize::from(change == Change::Health);
            None
        };
        self.set_due(room);
        former
    }

    /// Returns whether a transition may wait for others: in a large set that was published a
    /// moment ago, while few picks land on a closed gate.
    fn may_gather(&self, room: &Room<T>, now: Instant) -> bool {
        let snapshot = self.snapshot.load();
        snapshot.nodes.len() > SMALL
            && now < room.published + GATHER
            && (snapshot.eligible.is_empty() || room.gathered * 8 < snapshot.eligible.len())
            && room.core.is_panic() == room.panic
    }

    /// Compiles and publishes the next snapshot. If the policy panics, the former one stays.
    pub(crate) fn publish(
        &self,
        room: &mut Room<T>,
        table: Prepared<P::Picker>,
        now: Instant,
    ) -> Option<Former<T, P>> {
        let former = self.snapshot.load_full();
        let core = &room.core;
        let (eligible, panic) = core.eligible();
        let view = Members::new(core.members(), &eligible, self.random_start());
        let compile = || self.compile(&view, former.table.as_ref());
        let Some(table) = table.unwrap_or_else(compile) else {
            // Not due any more: the next change compiles anew, not every call.
            (room.published, room.gathered) = (now, 0);
            return Some(former);
        };
        let table = Some(table);
        let nodes = match core.unpublished.is_empty() {
            true => former.nodes.clone(),
            false => former.nodes.next(core.nodes(), &core.unpublished),
        };
        let generation = former.generation + 1;
        let counts = core.counts();
        let shares = if self.loads.is_some() { shares(&view) } else { Box::default() };
        let capacities = capacities(&view);
        let roll = if core.unpublished.is_empty() { former.roll } else { generation };
        let next = Snapshot {
            generation,
            roll,
            nodes,
            eligible,
            shares,
            capacities,
            panic,
            counts,
            table,
        };
        self.snapshot.store(Arc::new(next));
        room.panic = room.core.is_panic();
        room.core.unpublished = Changes::default();
        self.progress.policy_compiled();
        (room.published, room.gathered) = (now, 0);
        Some(former)
    }

    /// Compiles a table; none if the policy panics.
    fn compile(&self, view: &Members<'_>, former: Option<&P::Picker>) -> Option<P::Picker> {
        let compile = || self.policy.build(view, former);
        match catch_unwind(AssertUnwindSafe(compile)) {
            Ok(table) => Some(table),
            Err(payload) => {
                self.progress.policy_panicked(payload.as_ref());
                None
            }
        }
    }

    /// Compiles a table ahead, outside the door, for members that are planned.
    pub(crate) fn prepare(&self, members: &[Member]) -> Option<P::Picker> {
        let open = (0..).zip(members).filter(|(_, member)| member.is_open());
        let eligible: Vec<u32> = open.map(|(index, _)| index).collect();
        let view = Members::new(members, &eligible, self.random_start());
        self.compile(&view, self.snapshot.load_full().table.as_ref())
    }

    fn random_start(&self) -> Option<u64> {
        self.settings.starting_at.is_none().then(|| self.tickets.seed())
    }
}

/// Returns each member's capacity beside the greatest of the eligible, unless all are alike.
fn capacities(view: &Members<'_>) -> Box<[u32]> {
    if !view.is_uneven() {
        return Box::default();
    }
    let greatest = view.capacities().map(|(_, _, capacity)| capacity).max().unwrap_or(1);
    let mut capacities = vec![FULL; view.len()];
    for (index, _, capacity) in view.capacities() {
        capacities[index as usize] = (capacity * u64::from(FULL) / greatest) as u32;
    }
    capacities.into()
}

/// Returns each member's share of the effective weights of the eligible.
fn shares(view: &Members<'_>) -> Box<[f64]> {
    let total: f64 = view.shares().map(|(_, _, share)| share as f64).sum();
    let mut shares = vec![0.0; view.len()];
    for (index, _, share) in view.shares() {
        shares[index as usize] = share as f64 / total;
    }
    shares.into()
}
