//! A batch of changes by ids, ready to be applied under the lock.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    hash::Hash,
    sync::{Arc, Weak},
};

use tokio::time::Instant;
use tower::discover::Change;

use super::{
    Locked,
    core::MemberChange,
    node::{Node, NodeState, Reports},
};
use crate::{
    endpoint::Endpoint, health::evidence::Limits, load::Meter, policy::Member, util::fraction::FULL,
};

/// The changes of one batch.
#[derive(Debug)]
pub(crate) struct Batch<T>(Vec<Op<T>>);

#[derive(Debug)]
enum Op<T> {
    Insert(Arc<NodeState>, Endpoint<T>),
    Replace(u64, Endpoint<T>),
    Remove(u64),
}

/// What the record of a new endpoint is made with.
#[derive(Debug, Clone)]
pub(crate) struct Recorder {
    pub(crate) cluster: Weak<dyn Reports>,
    pub(crate) meter: Option<Arc<Meter>>,
    pub(crate) limits: Limits,
}

impl Recorder {
    fn record(&self, name: Arc<str>, now: Instant) -> NodeState {
        NodeState::new(name, Weak::clone(&self.cluster), self.meter.clone(), self.limits, now)
    }
}

impl<T> Batch<T> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns how many members there are after the batch, if there were `members` before.
    pub(crate) fn members_after(&self, members: usize) -> usize {
        let count = |wanted: fn(&Op<T>) -> bool| self.0.iter().filter(|op| wanted(op)).count();
        let joined = members + count(|op| matches!(op, Op::Insert(..)));
        joined.saturating_sub(count(|op| matches!(op, Op::Remove(_))))
    }

    /// Returns the sum of the weights in the batch.
    pub(crate) fn weight(&self) -> u64 {
        let weight = |op: &Op<T>| match op {
            Op::Insert(_, endpoint) | Op::Replace(_, endpoint) => endpoint.get_weight().into(),
            Op::Remove(_) => 0,
        };
        self.0.iter().map(weight).sum()
    }

    /// Adds a change; `keys` holds the members after all changes so far. The name of a new member
    /// is made here, outside the lock, because it is the user's code.
    pub(crate) fn push<K: Hash + Eq + fmt::Display>(
        &mut self,
        change: Change<K, Endpoint<T>>,
        keys: &mut HashMap<K, u64>,
        recorder: &Recorder,
        now: Instant,
    ) {
        match change {
            Change::Insert(key, endpoint) => match keys.get(&key) {
                Some(&id) => self.0.push(Op::Replace(id, endpoint)),
                None => {
                    let state = recorder.record(key.to_string().into(), now);
                    keys.insert(key, state.id);
                    self.0.push(Op::Insert(Arc::new(state), endpoint));
                }
            },
            Change::Remove(key) => {
                if let Some(id) = keys.remove(&key) {
                    self.0.push(Op::Remove(id));
                }
            }
        }
    }

    /// Returns the members after the changes, if none is kept that is removed.
    pub(crate) fn plan(&self, members: &[Member]) -> Vec<Member> {
        let mut members = members.to_vec();
        let mut gone = HashSet::new();
        for op in &self.0 {
            match op {
                Op::Insert(state, endpoint) => members.push(Member {
                    id: state.id,
                    name: Arc::clone(&state.name),
                    weight: endpoint.get_weight(),
                    traits: endpoint.traits().clone(),
                    healthy: true,
                    capacity: FULL,
                }),
                Op::Replace(id, endpoint) => {
                    if let Ok(i) = members.binary_search_by_key(id, |member| member.id) {
                        members[i].weight = endpoint.get_weight();
                        members[i].traits = endpoint.traits().clone();
                    }
                }
                Op::Remove(id) => {
                    gone.insert(*id);
                }
            }
        }
        members.retain(|member| !gone.contains(&member.id));
        members
    }
}

impl<T> Locked<T> {
    /// Adds and replaces the nodes of a batch; returns its changes for the core. Nodes that are
    /// removed stay until the core lets go of them.
    pub(super) fn take_batch(&mut self, batch: Batch<T>) -> Vec<MemberChange> {
        batch.0.into_iter().map(|op| self.take(op)).collect()
    }

    fn take(&mut self, op: Op<T>) -> MemberChange {
        match op {
            Op::Insert(state, endpoint) => {
                let (target, weight, traits) = endpoint.into_parts();
                let (id, name) = (state.id, Arc::clone(&state.name));
                self.push(Node::new(state, target));
                MemberChange::Insert { id, name, weight, traits }
            }
            Op::Replace(id, endpoint) => {
                let (target, weight, traits) = endpoint.into_parts();
                self.replace(id, target);
                MemberChange::Replace { id, weight, traits }
            }
            Op::Remove(id) => MemberChange::Remove { id },
        }
    }
}
