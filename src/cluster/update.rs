//! Passes inputs to the core, and applies its effects.

use std::{
    mem,
    sync::{Arc, MutexGuard},
};

use tokio::time::Instant;

use super::{
    Cluster, Locked,
    batch::Batch,
    core::{Change, Effects, Input, WordChange},
    node::Node,
    prepare::Prepared,
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

    /// Applies the changes of a batch one by one, and publishes once.
    ///
    /// `prepared` is a picker that was built ahead for the result.
    pub(crate) fn update_members(
        &self,
        batch: Batch<T>,
        prepared: Option<Prepared<P::Picker>>,
        now: Instant,
    ) {
        let mut locked = lock(&self.locked);
        let changes = locked.apply_batch(batch);
        let effects = locked.core.update(now, Input::Batch(changes));
        self.apply(locked, effects, prepared, now);
        // Set after the publication: a call that reads it then reads the new snapshot.
        self.progress.updated();
        self.changed.notify_waiters();
    }

    /// Sets the capacity of the endpoints of this name.
    pub(crate) fn set_capacity(&self, name: &str, factor: f64, now: Instant) -> CapacityChange {
        let Some((capacity, change)) = capacity::fixed(factor) else {
            return CapacityChange::Refused;
        };
        let effects = self.update(now, Input::Capacity { name, capacity });
        if effects.applied {
            change
        } else {
            CapacityChange::Unknown
        }
    }

    /// Returns endpoints whose trial is due, at most `most`.
    pub(crate) fn due_trials(&self, most: usize, now: Instant) -> Vec<u64> {
        lock(&self.locked).core.due_trials(now).take(most).collect()
    }

    /// Starts the trial of an endpoint, if it is due; returns the epoch of the trial.
    pub(crate) fn start_trial(&self, id: u64, now: Instant) -> Option<(Arc<Node<T>>, Epoch)> {
        let mut locked = lock(&self.locked);
        let effects = locked.core.update(now, Input::TrialWanted { id });
        let node = locked.node(id).map(Arc::clone);
        let effects = self.apply(locked, effects, None, now);
        node.zip(effects.trial)
    }

    /// Does the work of passed deadlines: updates capacities, compares endpoints with their peers,
    /// and publishes gathered transitions.
    pub(crate) fn catch_up(&self, now: Instant) {
        if !self.deadlines.claim_moves(now) {
            self.flush_due(now);
            return;
        }
        let mut locked = lock(&self.locked);
        // An interval ends for all members, also for those that are not compared.
        let interval = if locked.core.is_comparison_due(now) {
            Some(
                locked
                    .nodes
                    .iter()
                    .map(|node| node.state.window.take())
                    .collect(),
            )
        } else {
            None
        };
        let effects = locked.core.update(now, Input::Time { interval });
        self.apply(locked, effects, None, now);
    }

    /// Applies effects, publishes and unlocks.
    ///
    /// Targets are dropped and listeners are called outside the lock, because they are user code.
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
        // Added under the lock, which decides their order.
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
    fn position(&self, id: u64) -> Option<usize> {
        self.nodes
            .binary_search_by_key(&id, |node| node.state.id)
            .ok()
    }

    pub(super) fn node(&self, id: u64) -> Option<&Arc<Node<T>>> {
        self.position(id).map(|position| &self.nodes[position])
    }

    /// Adds a node at the end.
    pub(super) fn push(&mut self, node: Node<T>) {
        self.unpublished.from(self.nodes.len());
        self.nodes.push(Arc::new(node));
    }

    /// Replaces the target of a node; its record stays.
    pub(super) fn replace(&mut self, id: u64, target: T) {
        let Some(position) = self.position(id) else {
            return;
        };
        self.unpublished.at(position);
        let state = Arc::clone(&self.nodes[position].state);
        state.begin_version();
        let node = Arc::new(Node::new(state, target));
        self.discarded
            .push(mem::replace(&mut self.nodes[position], node));
    }

    /// Sets health words, and removes nodes that have left.
    fn apply(&mut self, effects: &Effects) {
        for &(id, change) in &effects.words {
            let Some(node) = self.node(id) else { continue };
            match change {
                WordChange::Drained(drained) => node.state.health.set_drained(drained),
                WordChange::Enter(state) => {
                    if state == State::Serving {
                        // Calls that ended before do not count in the new epoch.
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
        if let Some(position) = self.position(first) {
            self.unpublished.from(position);
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
