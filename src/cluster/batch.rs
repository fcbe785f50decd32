//! A batch of changes, told by ids: ready to be applied behind the door.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    hash::Hash,
    sync::{Arc, Weak},
};

use tokio::time::Instant;
use tower::discover::Change;

use crate::cluster::core::Core;
use crate::{
    cluster::node::{NodeState, Reports},
    endpoint::Endpoint,
    load::Meter,
    policy::Member,
    util::fraction::FULL,
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

impl<T> Batch<T> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the sum of the weights that are told.
    pub(crate) fn weight(&self) -> u64 {
        let weight = |op: &Op<T>| match op {
            Op::Insert(_, endpoint) | Op::Replace(_, endpoint) => endpoint.get_weight().into(),
            Op::Remove(_) => 0,
        };
        self.0.iter().map(weight).sum()
    }

    /// Adds a change; `keys` knows the members after all changes so far. The name of a new
    /// member is made here, outside the door: it is the user's code.
    pub(crate) fn push<K: Hash + Eq + fmt::Display>(
        &mut self,
        change: Change<K, Endpoint<T>>,
        keys: &mut HashMap<K, u64>,
        door: &Weak<dyn Reports>,
        meter: Option<&Arc<Meter>>,
        now: Instant,
    ) {
        match change {
            Change::Insert(key, endpoint) => match keys.get(&key) {
                Some(&id) => self.0.push(Op::Replace(id, endpoint)),
                None => {
                    let state = NodeState::new(
                        key.to_string().into(),
                        Weak::clone(door),
                        meter.map(Arc::clone),
                        now,
                    );
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

    /// Applies the changes as if they came one by one.
    pub(crate) fn apply(self, core: &mut Core<T>, now: Instant) {
        let slowly = !core.is_empty();
        for op in self.0 {
            match op {
                Op::Insert(state, endpoint) => core.insert(state, endpoint, slowly, now),
                Op::Replace(id, endpoint) => core.replace(id, endpoint),
                Op::Remove(id) => core.remove(id),
            }
        }
        core.settle(now);
    }

    /// Returns what the members will be once the changes are applied, if none is kept.
    pub(crate) fn plan(&self, members: &[Member]) -> Vec<Member> {
        let mut members = members.to_vec();
        let mut gone = HashSet::new();
        for op in &self.0 {
            match op {
                Op::Insert(state, endpoint) => members.push(Member {
                    id: state.id,
                    name: Arc::clone(&state.name),
                    weight: endpoint.get_weight(),
                    healthy: true,
                    capacity: FULL,
                }),
                Op::Replace(id, endpoint) => {
                    if let Ok(i) = members.binary_search_by_key(id, |member| member.id) {
                        members[i].weight = endpoint.get_weight();
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
