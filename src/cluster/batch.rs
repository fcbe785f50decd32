//! A batch of changes by ids, to be applied under the lock.

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

/// The changes of one batch, in order.
#[derive(Debug)]
pub(crate) struct Batch<T>(Vec<Op<T>>);

#[derive(Debug)]
enum Op<T> {
    Insert(Arc<NodeState>, Endpoint<T>),
    Replace(u64, Endpoint<T>),
    Remove(u64),
}

/// Creates the records of new endpoints.
#[derive(Debug, Clone)]
pub(crate) struct Recorder {
    pub(crate) cluster: Weak<dyn Reports>,
    pub(crate) meter: Option<Arc<Meter>>,
    pub(crate) limits: Limits,
}

impl Recorder {
    fn record(&self, name: Arc<str>, now: Instant) -> NodeState {
        NodeState::new(
            name,
            Weak::clone(&self.cluster),
            self.meter.clone(),
            self.limits,
            now,
        )
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
        let inserts = self
            .0
            .iter()
            .filter(|op| matches!(op, Op::Insert(..)))
            .count();
        let removes = self
            .0
            .iter()
            .filter(|op| matches!(op, Op::Remove(_)))
            .count();
        (members + inserts).saturating_sub(removes)
    }

    /// Returns the sum of the weights in the batch.
    pub(crate) fn weight(&self) -> u64 {
        let weight = |op: &Op<T>| match op {
            Op::Insert(_, endpoint) | Op::Replace(_, endpoint) => endpoint.get_weight().into(),
            Op::Remove(_) => 0,
        };
        self.0.iter().map(weight).sum()
    }

    /// Adds a change; `keys` holds the members after all changes so far.
    ///
    /// The name of a new member comes from the user's `Display`, so it is made here, outside the
    /// lock.
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

    /// Returns the members after the changes. `keep_last` is not taken into account.
    pub(crate) fn plan(&self, members: &[Member]) -> Vec<Member> {
        let mut members = members.to_vec();
        let mut removed = HashSet::new();
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
                    removed.insert(*id);
                }
            }
        }
        members.retain(|member| !removed.contains(&member.id));
        members
    }
}

impl<T> Locked<T> {
    /// Adds and replaces the nodes of a batch; returns its changes for the core.
    ///
    /// Removed nodes stay until the effects of the core list them.
    pub(super) fn apply_batch(&mut self, batch: Batch<T>) -> Vec<MemberChange> {
        batch.0.into_iter().map(|op| self.apply_op(op)).collect()
    }

    fn apply_op(&mut self, op: Op<T>) -> MemberChange {
        match op {
            Op::Insert(state, endpoint) => {
                let (target, weight, traits) = endpoint.into_parts();
                let (id, name) = (state.id, Arc::clone(&state.name));
                self.push(Node::new(state, target));
                MemberChange::Insert {
                    id,
                    name,
                    weight,
                    traits,
                }
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
