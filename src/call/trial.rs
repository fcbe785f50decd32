//! The call that tries an ejected endpoint.

use std::sync::Arc;

use tokio::time::Instant;

use super::{exclusions::Exclusions, guard::Guard, view::View};
use crate::{
    cluster::{Cluster, node::Node, snapshot::Snapshot},
    health::evidence::{Admission, AdmissionKind, State},
    load::bounded::Held,
    policy::{Candidates, PickContext, Picker, Policy},
};

/// The endpoints that a request may try.
enum Triable {
    /// Any endpoint: the policy binds the request to none.
    Any,
    /// The member at this index: the policy binds the request to it.
    Owner(usize),
    None,
}

/// Does the work of the deadlines that have passed; starts a trial if one is due for this request.
#[cold]
pub(super) fn start<T, P, Req>(
    cluster: &Cluster<T, P>,
    request: &Req,
    exclusions: &Exclusions,
    now: Instant,
) -> Option<(Arc<Node<T>>, Guard)>
where
    P: Policy,
    P::Picker: Picker<Req>,
    Req: ?Sized,
{
    cluster.catch_up(now);
    let snapshot = cluster.snapshot.load();
    // A request that has failed once makes no trial while an endpoint is eligible.
    if exclusions.is_retry(cluster.balancer()) && !snapshot.eligible.is_empty() {
        return None;
    }
    let owner = match triable(cluster, &snapshot, request, now) {
        Triable::Any => None,
        Triable::Owner(index) => Some(&snapshot.nodes.get(index)?.state),
        Triable::None => return None,
    };
    // Checked before the lock is taken, which a build may hold for long.
    let is_serving = owner.is_some_and(|owner| owner.health.load().state() == State::Serving);
    if is_serving || !cluster.is_trial_due(now) {
        return None;
    }
    claim(cluster, owner.map(|owner| owner.id), exclusions, now)
}

/// Claims the trial that is due, and admits the call.
fn claim<T, P: Policy>(
    cluster: &Cluster<T, P>,
    owner: Option<u64>,
    exclusions: &Exclusions,
    now: Instant,
) -> Option<(Arc<Node<T>>, Guard)> {
    let (node, epoch) = cluster.start_trial(owner, exclusions.excluded(), now)?;
    let bounded = cluster.bounded.as_ref();
    let permit = bounded.map(|bounded| bounded.lock().start(bounded, node.state.id));
    let call = Admission {
        epoch,
        kind: AdmissionKind::Trial,
    };
    let guard = Guard::new(&node, call, permit, now);
    Some((node, guard))
}

/// Finds the owner of a request: the first of its candidates that has a weight and is below its
/// bound, healthy or not.
fn triable<T, P, Req>(
    cluster: &Cluster<T, P>,
    snapshot: &Snapshot<T, P::Picker>,
    request: &Req,
    now: Instant,
) -> Triable
where
    P: Policy,
    P::Picker: Picker<Req>,
    Req: ?Sized,
{
    let Some(picker) = &snapshot.picker else {
        return Triable::None;
    };
    let view = View {
        snapshot,
        accepts: |index| snapshot.takes_calls(index),
        now,
    };
    let cx = PickContext::new(&snapshot.eligible, &view, &cluster.tickets, 0);
    let held = cluster.bounded.as_ref().map(|bounded| bounded.lock());
    let mut passed = 0;
    loop {
        let mut chunk = Candidates::after(passed);
        picker.candidates(request, &cx, passed, &mut chunk);
        if !chunk.is_bound() {
            return Triable::Any;
        }
        if let Some(owner) = chunk
            .iter()
            .find(|&i| may_own(snapshot, held.as_deref(), i))
        {
            return Triable::Owner(owner);
        }
        passed += chunk.len();
        if !chunk.is_full() || passed > snapshot.nodes.len() {
            return Triable::None;
        }
    }
}

fn may_own<T, B>(snapshot: &Snapshot<T, B>, held: Option<&Held>, index: usize) -> bool {
    held.is_none_or(|held| snapshot.is_below_bound_for_trial(held, index))
        && snapshot
            .nodes
            .get(index)
            .is_some_and(|node| node.state.has_weight())
}
