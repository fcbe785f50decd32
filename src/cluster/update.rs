//! How inputs reach the core, and how its effects are applied.

use std::{
    mem,
    sync::{Arc, MutexGuard},
};

use tokio::time::Instant;

use super::{
    Cluster, Locked, Prepared,
    batch::Batch,
    core::{Change, Effects, Input, Occasion, WordChange},
    node::Node,
};
use crate::{
    health::{
        capacity::{self, CapacityChange},
        evidence::{Epoch, State},
    },
    policy::Policy,
    util::{drop_users, lock, trim},
};

impl<T, P: Policy> Cluster<T, P> {
    /// Passes an input to the core and applies the effects.
    pub(crate) fn update(&self, now: Instant, input: Input<'_>) -> Effects {
        let mut locked = lock(&self.locked);
        let effects = locked.core.update(now, input);
        self.apply(locked, effects, None, now)
    }

    /// Applies a batch of discovery as if its changes came one by one, and publishes once; with a
    /// picker that was built for the result, if there is one.
    pub(crate) fn update_members(
        &self,
        batch: Batch<T>,
        prepared: Option<Prepared<P::Picker>>,
        now: Instant,
    ) {
        let mut locked = lock(&self.locked);
        let changes = locked.take_batch(batch);
        let effects = locked.core.update(now, Input::Batch(changes));
        self.apply(locked, effects, prepared, now);
        // After the publication, so that a call that sees this sees what the batch brought.
        self.progress.updated();
        self.changed.notify_waiters();
    }

    /// Sets what part of the weight counts, of the endpoints of this name.
    pub(crate) fn set_capacity(&self, name: &str, factor: f64, now: Instant) -> CapacityChange {
        let Some((capacity, change)) = capacity::fixed(factor) else {
            return CapacityChange::Refused;
        };
        let effects = self.update(now, Input::Capacity { name, capacity });
        if effects.applied { change } else { CapacityChange::Unknown }
    }

    /// Takes the place of a trial that is due: of the owner's, if there is one, and of none that
    /// is excluded.
    pub(crate) fn start_trial(
        &self,
        owner: Option<u64>,
        excluded: &[(u64, Occasion)],
        now: Instant,
    ) -> Option<(Arc<Node<T>>, Epoch)> {
        let mut locked = lock(&self.locked);
        let effects = locked.core.update(now, Input::TrialWanted { owner, excluded });
        let node = effects.trial.and_then(|(id, _)| locked.node(id).map(Arc::clone));
        let effects = self.apply(locked, effects, None, now);
        node.zip(effects.trial.map(|(_, epoch)| epoch))
    }

    /// Does what time has brought: moves capacities, compares endpoints with their peers,
    /// publishes what was gathered for long enough.
    pub(crate) fn catch_up(&self, now: Instant) {
        if !self.deadlines.claim_moves(now) {
            self.flush_due(now);
            return;
        }
        let mut locked = lock(&self.locked);
        // An interval ends for all members: also for those that are not compared now.
        let is_due = locked.core.is_comparison_due(now);
        let interval = is_due.then(|| locked.nodes.iter().map(|node| node.state.window.take()));
        let interval = interval.map(Iterator::collect);
        let effects = locked.core.update(now, Input::Time { interval });
        self.apply(locked, effects, None, now);
    }

    /// Applies effects, publishes, and unlocks. Users' services are dropped and listeners called
    /// outside the lock.
    pub(super) fn apply(
        &self,
        mut locked: MutexGuard<'_, Locked<T>>,
        mut effects: Effects,
        prepared: Option<Prepared<P::Picker>>,
        now: Instant,
    ) -> Effects {
        locked.apply(&effects);
        if let Some(meter) = &self.meter
            && let Some(slow_from) = effects.slow_from
        {
            meter.set_slow_from(slow_from);
        }
        let former = self.settle(&mut locked, effects.change, prepared, now);
        let discarded = mem::take(&mut locked.discarded);
        // Under the lock, where their order is decided.
        self.events.add(mem::take(&mut effects.events));
        drop(locked);
        drop_users((former, discarded));
        if effects.change != Change::Nothing {
            self.changed.notify_waiters();
        }
        self.events.deliver();
        effects
    }
}

impl<T> Locked<T> {
    fn place(&self, id: u64) -> Option<usize> {
        self.nodes.binary_search_by_key(&id, |node| node.state.id).ok()
    }

    pub(super) fn node(&self, id: u64) -> Option<&Arc<Node<T>>> {
        self.place(id).map(|place| &self.nodes[place])
    }

    /// Adds a node at the end.
    pub(super) fn push(&mut self, node: Node<T>) {
        self.unpublished.from(self.nodes.len());
        self.nodes.push(Arc::new(node));
    }

    /// Replaces the target of a node; its record stays.
    pub(super) fn replace(&mut self, id: u64, target: T) {
        let Some(place) = self.place(id) else { return };
        self.unpublished.at(place);
        let state = Arc::clone(&self.nodes[place].state);
        state.replaced();
        let node = Arc::new(Node::new(state, target));
        self.discarded.push(mem::replace(&mut self.nodes[place], node));
    }

    /// Sets health words, and lets go of nodes that have left.
    fn apply(&mut self, effects: &Effects) {
        for &(id, change) in &effects.words {
            let Some(node) = self.node(id) else { continue };
            match change {
                WordChange::Drained(drained) => node.state.health.set_drained(drained),
                WordChange::Enter(state) => {
                    if state == State::Serving {
                        // What ended before says nothing of the new epoch.
                        let _former = node.state.window.take();
                    }
                    node.state.health.enter(state);
                }
            }
        }
        self.remove(&effects.left);
    }

    fn remove(&mut self, left: &[u64]) {
        let Some(&first) = left.first() else { return };
        if let Some(place) = self.place(first) {
            self.unpublished.from(place);
        }
        let mut left = left.iter().peekable();
        let nodes = mem::take(&mut self.nodes);
        for node in nodes {
            if left.next_if(|id| **id == node.state.id).is_some() {
                self.discarded.push(node);
            } else {
                self.nodes.push(node);
            }
        }
        trim(&mut self.nodes);
    }
}
