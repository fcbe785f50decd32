//! What a pick may read of its snapshot.

use std::sync::Arc;

use tokio::time::Instant;

use crate::{
    cluster::{node::NodeState, snapshot::Snapshot},
    policy::Observed,
    util::fraction::FULL,
};

/// A snapshot at an instant. `accepts` returns whether a member takes the request.
pub(super) struct View<'s, T, B, A> {
    pub(super) snapshot: &'s Snapshot<T, B>,
    pub(super) accepts: A,
    pub(super) now: Instant,
}

impl<T, B, A> View<'_, T, B, A> {
    #[inline]
    fn state(&self, index: usize) -> Option<&Arc<NodeState>> {
        self.snapshot.nodes.get(index).map(|node| &node.state)
    }
}

impl<T, B, A: Fn(usize) -> bool> Observed for View<'_, T, B, A> {
    #[inline]
    fn accepts(&self, index: usize) -> bool {
        (self.accepts)(index)
    }

    #[inline]
    fn in_flight(&self, index: usize) -> u64 {
        self.state(index).map_or(0, |state| state.load())
    }

    fn failures(&self, index: usize) -> u64 {
        let Some(state) = self.state(index) else {
            return 0;
        };
        state
            .meter
            .as_ref()
            .map_or(0, |meter| meter.failures(&state.measurement, self.now))
    }

    #[inline]
    fn latency(&self, index: usize) -> f64 {
        let Some(state) = self.state(index) else {
            return 0.0;
        };
        match &state.meter {
            Some(meter) if meter.has_latency() => meter.cost(&state.measurement, self.now),
            _ => 0.0,
        }
    }

    #[inline]
    fn capacity(&self, index: usize) -> u32 {
        self.snapshot.capacities.get(index).copied().unwrap_or(FULL)
    }

    fn name(&self, index: usize) -> &str {
        self.state(index).map_or("", |state| &state.name)
    }
}
