//! The immutable snapshot that a pick reads.

use std::sync::Arc;

use super::nodes::Nodes;
use crate::{
    error::Counts,
    health::evidence::AdmissionKind,
    load::bounded::{Bounded, Held, Permit},
};

/// Everything that a pick may depend on, of one generation.
#[derive(Debug)]
pub(crate) struct Snapshot<T, B> {
    /// Grows by one with each publication.
    pub(crate) generation: u64,
    /// The generation in which the nodes last changed.
    pub(crate) roll: u64,
    /// The members, in the order in which they joined.
    pub(crate) nodes: Nodes<T>,
    /// Indexes of the nodes that may be picked, in rising order.
    pub(crate) eligible: Box<[u32]>,
    /// Each member's share of the calls, by index; empty unless the policy bounds loads.
    pub(crate) shares: Box<[f64]>,
    /// Each member's capacity by index, relative to the greatest one of the eligible members;
    /// empty while all capacities are equal.
    pub(crate) capacities: Box<[u32]>,
    /// Whether panic mode uses ejected endpoints.
    pub(crate) panic: bool,
    pub(crate) counts: Counts,
    /// None if each build of the policy has panicked so far.
    pub(crate) picker: Option<B>,
}

impl<T, B> Snapshot<T, B> {
    /// Returns the snapshot before the first one is built.
    pub(crate) fn empty() -> Self {
        Self {
            generation: 0,
            roll: 0,
            nodes: Nodes::default(),
            eligible: Box::default(),
            shares: Box::default(),
            capacities: Box::default(),
            panic: false,
            counts: Counts::default(),
            picker: None,
        }
    }

    /// Returns whether a member takes calls now.
    pub(crate) fn takes_calls(&self, index: usize) -> bool {
        let node = self.nodes.get(index);
        node.is_some_and(|node| node.state.health.admit(self.panic).is_some())
    }

    /// Returns whether a member may hold one more call. A member without a share may hold one.
    pub(crate) fn is_below_bound(&self, held: &Held, index: usize) -> bool {
        let share = self.shares.get(index).copied().unwrap_or(0.0);
        let node = self.nodes.get(index);
        node.is_some_and(|node| held.has_room(node.state.id, share))
    }

    /// Returns whether a member may hold its trial. An ejected member has no share; its trial is
    /// allowed also while earlier calls still run there.
    pub(crate) fn is_below_bound_for_trial(&self, held: &Held, index: usize) -> bool {
        let has_share = self.shares.get(index).is_some_and(|&share| share > 0.0);
        !has_share || self.is_below_bound(held, index)
    }

    /// Takes a permit for one more call to a member; none if the member is at its bound.
    pub(crate) fn take_permit(
        &self,
        bounded: &Arc<Bounded>,
        index: usize,
        kind: AdmissionKind,
    ) -> Option<Permit> {
        let id = self.nodes.get(index)?.state.id;
        let mut held = bounded.lock();
        let is_below_bound = match kind {
            AdmissionKind::Eligible => self.is_below_bound(&held, index),
            AdmissionKind::Trial => self.is_below_bound_for_trial(&held, index),
        };
        if is_below_bound {
            Some(held.start(bounded, id))
        } else {
            None
        }
    }
}
