//! Where one call should not be sent.

use super::{
    attempts::Attempts,
    guard::{Guard, Occasion},
    sequence::Sequence,
};
use crate::cluster::{node::NodeState, snapshot::Snapshot};

/// The endpoints that a call should not be sent to, and the state of its search for others.
#[derive(Debug, Default)]
pub(crate) struct Exclusions {
    /// Endpoints that the call waits for and endpoints that failed to become ready, each with the
    /// occasion of its pick. Sorted by id; mostly empty.
    excluded: Vec<(u64, Occasion)>,
    /// Endpoints of earlier attempts: taken only if there is no other.
    attempts: Option<Attempts>,
    pub(crate) sequence: Sequence,
}

impl Exclusions {
    #[inline]
    pub(crate) fn new(attempts: Option<Attempts>) -> Self {
        Self {
            attempts,
            ..Self::default()
        }
    }

    #[inline]
    pub(crate) const fn attempts(&self) -> Option<&Attempts> {
        self.attempts.as_ref()
    }

    /// Returns the index of the endpoint that the caller prefers, if it is a member.
    pub(crate) fn preferred<T, B>(&self, snapshot: &Snapshot<T, B>) -> Option<usize> {
        let name = self.attempts()?.preferred()?;
        let mut nodes = snapshot.nodes.iter();
        nodes.position(|node| node.state.name == name)
    }

    /// Excludes an endpoint on the occasion of its pick.
    pub(crate) fn exclude(&mut self, guard: &Guard) {
        let (id, occasion) = (guard.node().id, guard.occasion());
        match self.find(id) {
            Ok(i) => self.excluded[i].1 = occasion,
            Err(i) => self.excluded.insert(i, (id, occasion)),
        }
    }

    /// Excludes an endpoint no longer.
    pub(crate) fn readmit(&mut self, node: &NodeState) {
        if let Ok(i) = self.find(node.id) {
            self.excluded.remove(i);
        }
        self.sequence = Sequence::default();
    }

    #[inline]
    pub(crate) fn excludes(&self, node: &NodeState) -> bool {
        if self.excluded.is_empty() {
            return false;
        }
        let occasion = (node.health.epoch(), node.version());
        self.find(node.id)
            .is_ok_and(|i| self.excluded[i].1 == occasion)
    }

    fn find(&self, id: u64) -> Result<usize, usize> {
        self.excluded.binary_search_by_key(&id, |&(other, _)| other)
    }

    /// Returns whether an earlier attempt was sent to the endpoint, or the caller avoids it.
    #[inline]
    pub(crate) fn was_tried(&self, node: &NodeState) -> bool {
        self.attempts
            .as_ref()
            .is_some_and(|attempts| attempts.contains(node))
    }

    /// Returns whether the call neither excludes nor avoids an endpoint yet.
    #[inline]
    pub(crate) const fn is_fresh(&self) -> bool {
        self.excluded.is_empty() && self.attempts.is_none()
    }

    /// Returns whether this balancer has sent the request before.
    pub(crate) fn is_retry(&self, balancer: usize) -> bool {
        self.attempts
            .as_ref()
            .is_some_and(|attempts| attempts.was_sent_by(balancer))
    }
}
