//! The immutable view that one pick works on: the hinge between the sides.

use crate::{cluster::nodes::Nodes, error::Counts};

/// Everything a pick may depend on, of one generation.
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
    /// Each member's share of the calls, by index; empty unless loads are bounded.
    pub(crate) shares: Box<[f64]>,
    /// Each member's capacity by index, beside the greatest of the eligible; empty while all
    /// are alike.
    pub(crate) capacities: Box<[u32]>,
    /// Whether ejections are ignored.
    pub(crate) panic: bool,
    pub(crate) counts: Counts,
    /// What the policy built; none if it has only panicked so far.
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

    /// Returns whether a member takes calls at this moment.
    pub(crate) fn is_open(&self, index: usize) -> bool {
        let node = self.nodes.get(index);
        node.is_some_and(|node| node.state.health.admit(self.panic).is_some())
    }
}
