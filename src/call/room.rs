//! Bounded load: who may hold one more call.

use crate::{
    call::guard::Guard,
    cluster::{Cluster, snapshot::Snapshot},
    load::bounded::Held,
    policy::Policy,
};

impl<T, P: Policy> Cluster<T, P> {
    /// Takes room for a call that waited, which holds none; returns whether there was any.
    pub(crate) fn take_room(&self, guard: &mut Guard) -> bool {
        let Some(bounded) = &self.bounded else { return true };
        let snapshot = self.snapshot.load();
        let id = guard.node().id;
        let index = snapshot.nodes.iter().position(|node| node.state.id == id);
        let mut held = bounded.lock();
        let taken = index.is_some_and(|index| match guard.is_trial() {
            true => has_room_to_try(&snapshot, &held, index),
            false => has_room(&snapshot, &held, index),
        });
        if taken {
            guard.set_permit(held.start(bounded, id));
        }
        taken
    }
}

/// Returns whether a member may hold one more call: with no share, if it holds none.
pub(crate) fn has_room<T, B>(snapshot: &Snapshot<T, B>, held: &Held, index: usize) -> bool {
    let share = snapshot.shares.get(index).copied().unwrap_or(0.0);
    snapshot.nodes.get(index).is_some_and(|node| match share {
        share => held.has_room(node.state.id, share),
    })
}

/// Returns whether a member may hold the call that tries it. One that is ejected has no share, and
/// gets that one call, whatever it holds from before: that may last for long.
pub(crate) fn has_room_to_try<T, B>(snapshot: &Snapshot<T, B>, held: &Held, index: usize) -> bool {
    let has_share = snapshot.shares.get(index).is_some_and(|&share| share > 0.0);
    !has_share || has_room(snapshot, held, index)
}
