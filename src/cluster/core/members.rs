//! Membership: a batch of changes, then `settle`.

use std::sync::Arc;

use tokio::time::Instant;

use crate::cluster::core::{Core, Entry, Tally};
use crate::{
    cluster::node::{Node, NodeState},
    endpoint::Endpoint,
    event::{Event, WeightCause},
    health::{
        ejection::{Record, Stage},
        factors::Factors,
        pace::Patience,
        standing::State,
    },
    policy::Member,
    util::{fraction::FULL, trim},
};

impl<T> Core<T> {
    /// Adds a new member at the end; it may start slowly if others can carry its share.
    pub(crate) fn insert(
        &mut self,
        state: Arc<NodeState>,
        endpoint: Endpoint<T>,
        slowly: bool,
        now: Instant,
    ) {
        let i = self.nodes.len();
        self.unpublished.from(i);
        self.joined += 1;
        let (id, name) = (state.id, Arc::clone(&state.name));
        let (target, weight) = endpoint.into_parts();
        state.standing.set_drained(weight == 0);
        self.note(|| Event::Joined { endpoint: Arc::clone(&name), weight });
        self.nodes.push(Arc::new(Node::new(state, target)));
        self.members.push(Member { id, name, weight, healthy: true, capacity: FULL });
        self.records.push(Entry {
            record: Record::new(now),
            factors: Factors::default(),
            patience: Patience::default(),
            checked_out: false,
            left: None,
        });
        if slowly {
            self.start_slowly(i, now);
        }
    }

    /// Replaces a member's target and weight; everything else stays.
    pub(crate) fn replace(&mut self, id: u64, endpoint: Endpoint<T>) {
        let Some(i) = self.find(id) else { return };
        self.unpublished.at(i);
        let state = Arc::clone(&self.nodes[i].state);
        state.replaced();
        let (target, weight) = endpoint.into_parts();
        let former = std::mem::replace(&mut self.members[i].weight, weight);
        let node = Arc::new(Node::new(state, target));
        self.discarded.push(std::mem::replace(&mut self.nodes[i], node));
        self.open_or_drain(i);
        if former != weight {
            self.note_weight(i, WeightCause::Discovery);
        }
    }

    /// Keeps gate and queue in step with the weight.
    pub(crate) fn open_or_drain(&mut self, i: usize) {
        let (id, open) = (self.members[i].id, self.members[i].is_open());
        self.nodes[i].state.standing.set_drained(!open);
        if let Some(until) = self.records[i].waits_until() {
            if open {
                self.queue.insert((until, id));
            } else {
                self.queue.remove(&(until, id));
            }
        }
    }

    pub(crate) fn remove(&mut self, id: u64) {
        if let Some(i) = self.find(id) {
            self.records[i].left = Some(self.joined);
            // In the order of the batch: its key may be inserted again in the same one.
            if !self.keep_last {
                self.note_left(i);
            }
        }
    }

    fn note_left(&mut self, i: usize) {
        let endpoint = Arc::clone(&self.members[i].name);
        self.note(|| Event::Left { endpoint });
    }

    /// Ends a batch: lets go of those who left, and keeps the limit of ejections.
    pub(crate) fn settle(&mut self, now: Instant) {
        if self.records.iter().any(|entry| entry.left.is_some()) {
            self.sweep();
        }
        self.keep_limit(now);
    }

    /// Counts anew, and brings back who is ejected beyond the limit.
    pub(crate) fn keep_limit(&mut self, now: Instant) {
        self.count();
        while self.tally.ejected > self.health.ejection_limit(self.tally.candidates) {
            let Some(i) = self.soonest_back() else { break };
            self.bring_back(i, now);
        }
    }

    fn sweep(&mut self) {
        // The last ones are those that nobody has joined after.
        let keep = self.keep_last && self.records.iter().all(|entry| entry.left.is_some());
        let joined = self.joined;
        let leaves = |entry: &Entry| entry.left.is_some_and(|at| !keep || at < joined);
        let mut kept = 0;
        for i in 0..self.records.len() {
            if leaves(&self.records[i]) {
                self.unpublished.from(i);
                self.nodes[i].state.standing.enter(State::Gone);
                self.unqueue(i);
                self.moving.remove(&self.members[i].id);
                // Who is kept has not left yet.
                if self.keep_last {
                    self.note_left(i);
                }
            } else {
                self.nodes.swap(kept, i);
                self.members.swap(kept, i);
                self.records.swap(kept, i);
                kept += 1;
            }
        }
        self.discarded.extend(self.nodes.drain(kept..));
        self.members.truncate(kept);
        self.records.truncate(kept);
        trim(&mut self.nodes);
        trim(&mut self.members);
        trim(&mut self.records);
    }

    fn count(&mut self) {
        let candidates = self.members.iter().filter(|member| member.is_open());
        self.tally = candidates.fold(Tally::default(), |tally, member| Tally {
            candidates: tally.candidates + 1,
            ejected: tally.ejected + usize::from(!member.healthy),
        });
    }

    /// Finds the ejected endpoint that would be back first: one on trial before all,
    /// one that checks keep out after all.
    fn soonest_back(&self) -> Option<usize> {
        let ejected = (0..self.members.len())
            .filter(|&i| self.members[i].is_open() && !self.members[i].healthy);
        ejected.min_by_key(|&i| match self.records[i].record.stage() {
            _ if self.records[i].checked_out => (true, None),
            Stage::Out { until, .. } => (false, Some(until)),
            Stage::Trial { .. } | Stage::Serving => (false, None),
        })
    }
}
