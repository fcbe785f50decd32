//! The members and their records: the state behind the door.
//!
//! Nothing here is atomic or published: [`Hub`](crate::hub::Hub) holds the roster under
//! one mutex and publishes what has changed.

mod transitions;

use std::{collections::BTreeSet, sync::Arc};

use tokio::time::Instant;

use crate::{
    endpoint::Endpoint,
    error::Counts,
    health::{
        Health,
        ejection::{Record, Stage},
        standing::{Period, State},
    },
    node::{Node, NodeState},
    nodes::Changes,
    policy::{FULL, Member},
    util::{random::Random, trim},
};

#[derive(Debug)]
pub(crate) struct Roster<T> {
    /// Three columns of one table, in the order of the ids, which is that of joining.
    nodes: Vec<Arc<Node<T>>>,
    members: Vec<Member>,
    records: Vec<Entry>,
    /// Who waits to be tried, and from when on.
    queue: BTreeSet<(Instant, u64)>,
    tally: Tally,
    health: Health,
    keep_last: bool,
    /// How the nodes differ from those of the last snapshot.
    pub(crate) unpublished: Changes,
    /// How many members have joined, ever: by this is told who left before whom.
    joined: u64,
    random: Random,
    /// Nodes that were let go of: their services are dropped outside the door.
    discarded: Vec<Arc<Node<T>>>,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) record: Record,
    /// Discovery has removed it, when so many had joined. It leaves at the end of the batch,
    /// unless it is kept.
    left: Option<u64>,
}

impl Entry {
    /// Returns whether it stays only because it was among the last.
    pub(crate) const fn is_kept(&self) -> bool {
        self.left.is_some()
    }
}

/// The endpoints that have a weight.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    candidates: usize,
    ejected: usize,
}

impl Tally {
    fn is_panic(self, health: &Health) -> bool {
        health.is_panic(self.candidates - self.ejected, self.candidates)
    }
}

impl<T> Roster<T> {
    pub(crate) fn new(health: Health, keep_last: bool, seed: u64) -> Self {
        Self {
            nodes: Vec::new(),
            members: Vec::new(),
            records: Vec::new(),
            queue: BTreeSet::new(),
            tally: Tally::default(),
            health,
            keep_last,
            unpublished: Changes::default(),
            joined: 0,
            random: Random::seeded(seed),
            discarded: Vec::new(),
        }
    }

    // ===== what is in it =====

    /// Returns what is known of a member.
    pub(crate) fn get(&self, id: u64) -> Option<(&Member, &Entry)> {
        let i = self.find(id)?;
        Some((&self.members[i], &self.records[i]))
    }

    pub(crate) fn nodes(&self) -> &[Arc<Node<T>>] {
        &self.nodes
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns whether too few endpoints are healthy.
    pub(crate) fn is_panic(&self) -> bool {
        self.tally.is_panic(&self.health)
    }

    /// Returns whether ejections are ignored, so that any success brings an endpoint back.
    fn ignores_health(&self) -> bool {
        self.is_panic() && !self.health.fails_in_panic()
    }

    /// Returns who may be picked now, and whether ejections are ignored for it.
    pub(crate) fn eligible(&self) -> (Box<[u32]>, bool) {
        let panic = self.is_panic();
        if panic && self.health.fails_in_panic() {
            return (Box::default(), false);
        }
        let may = |member: &Member| member.is_open() && (panic || member.healthy);
        let indexes = (0_u32..).zip(&self.members).filter(|(_, m)| may(m)).map(|(i, _)| i);
        (indexes.collect(), panic)
    }

    pub(crate) fn counts(&self) -> Counts {
        let members = self.members.len();
        Counts {
            members,
            ejected: self.tally.ejected,
            drained: members - self.tally.candidates,
            unready: 0,
        }
    }

    /// Returns from when on somebody waits to be tried.
    pub(crate) fn next_trial(&self) -> Option<Instant> {
        self.queue.first().map(|&(until, _)| until)
    }

    pub(crate) fn take_discarded(&mut self) -> Vec<Arc<Node<T>>> {
        std::mem::take(&mut self.discarded)
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.members.binary_search_by_key(&id, |member| member.id).ok()
    }

    /// Finds an endpoint that is still in the period a report is about.
    fn find_in(&self, id: u64, period: Period) -> Option<usize> {
        self.find(id).filter(|&i| self.nodes[i].state.standing.period() == period)
    }

    // ===== membership: a batch of changes, then `settle` =====

    /// Adds a new member at the end.
    pub(crate) fn insert(&mut self, state: Arc<NodeState>, endpoint: Endpoint<T>, now: Instant) {
        self.unpublished.from(self.nodes.len());
        self.joined += 1;
        let (id, name) = (state.id, Arc::clone(&state.name));
        let (target, weight) = endpoint.into_parts();
        state.standing.set_drained(weight == 0);
        self.nodes.push(Arc::new(Node::new(state, target)));
        self.members.push(Member { id, name, weight, healthy: true, capacity: FULL });
        self.records.push(Entry { record: Record::new(now), left: None });
    }

    /// Replaces a member's target and weight; everything else stays.
    pub(crate) fn replace(&mut self, id: u64, endpoint: Endpoint<T>) {
        let Some(i) = self.find(id) else { return };
        self.unpublished.at(i);
        let state = Arc::clone(&self.nodes[i].state);
        state.replaced();
        let (target, weight) = endpoint.into_parts();
        self.members[i].weight = weight;
        let node = Arc::new(Node::new(state, target));
        self.discarded.push(std::mem::replace(&mut self.nodes[i], node));
        self.open_or_drain(i);
    }

    /// Sets the part of the weight that counts, of every endpoint of this name; returns
    /// whether there is one.
    pub(crate) fn set_capacity(&mut self, name: &str, capacity: u32, now: Instant) -> bool {
        let mut found = false;
        for i in 0..self.members.len() {
            if &*self.members[i].name == name {
                found = true;
                self.members[i].capacity = capacity;
                self.open_or_drain(i);
            }
        }
        self.keep_limit(now);
        found
    }

    /// Keeps gate and queue in step with the weight.
    fn open_or_drain(&mut self, i: usize) {
        let (id, open) = (self.members[i].id, self.members[i].is_open());
        self.nodes[i].state.standing.set_drained(!open);
        if let Stage::Out { until, .. } = self.records[i].record.stage() {
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
        }
    }

    /// Ends a batch: lets go of those who left, and keeps the limit of ejections.
    pub(crate) fn settle(&mut self, now: Instant) {
        if self.records.iter().any(|entry| entry.left.is_some()) {
            self.sweep();
        }
        self.keep_limit(now);
    }

    /// Counts anew, and brings back who is ejected beyond the limit.
    fn keep_limit(&mut self, now: Instant) {
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
                if let Stage::Out { until, .. } = self.records[i].record.stage() {
                    self.queue.remove(&(until, self.members[i].id));
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

    /// Finds the ejected endpoint that would be back first: one on trial before all.
    fn soonest_back(&self) -> Option<usize> {
        let ejected = (0..self.members.len())
            .filter(|&i| self.members[i].is_open() && !self.members[i].healthy);
        ejected.min_by_key(|&i| match self.records[i].record.stage() {
            Stage::Out { until, .. } => Some(until),
            Stage::Trial { .. } | Stage::Serving => None,
        })
    }
}
