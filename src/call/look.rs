//! One pick's look at the members of its snapshot.

use tokio::time::Instant;

use crate::{
    cluster::{node::NodeState, snapshot::Snapshot},
    policy::{Gate, Observed},
    util::fraction::FULL,
};

/// A look at a snapshot, at an instant, by a request that stands to the members as `gate`
/// says.
pub(crate) struct Look<'s, T, B, G> {
    pub(crate) snapshot: &'s Snapshot<T, B>,
    pub(crate) gate: G,
    pub(crate) now: Instant,
}

impl<T, B, G> Look<'_, T, B, G> {
    #[inline]
    fn state(&self, index: usize) -> Option<&std::sync::Arc<NodeState>> {
        self.snapshot.nodes.get(index).map(|node| &node.state)
    }
}

impl<T, B, G: Fn(usize) -> Gate> Observed for Look<'_, T, B, G> {
    #[inline]
    fn gate(&self, index: usize) -> Gate {
        (self.gate)(index)
    }

    #[inline]
    fn in_flight(&self, index: usize) -> u64 {
        self.state(index).map_or(0, |state| state.load())
    }

    fn failures(&self, index: usize) -> u64 {
        let measured = self.state(index).and_then(|state| Some((state, state.meter.as_ref()?)));
        measured.map_or(0, |(state, meter)| meter.failures(&state.pace, self.now))
    }

    #[inline]
    fn latency(&self, index: usize) -> f64 {
        let measured = self.state(index).and_then(|state| Some((state, state.meter.as_ref()?)));
        measured.map_or(0.0, |(state, meter)| meter.cost(&state.pace, self.now))
    }

    #[inline]
    fn capacity(&self, index: usize) -> u32 {
        self.snapshot.capacities.get(index).copied().unwrap_or(FULL)
    }

    fn name(&self, index: usize) -> &str {
        self.state(index).map_or("", |state| &state.name)
    }
}
