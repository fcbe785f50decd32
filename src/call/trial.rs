//! The call that tries an ejected endpoint.

use std::sync::Arc;

use tokio::time::Instant;

use super::{exclusions::Exclusions, guard::Guard, pick::has_room, view::View};
use crate::{
    cluster::{Cluster, node::Node, snapshot::Snapshot},
    health::evidence::{Admission, AdmissionKind, State},
    load::bounded::Held,
    policy::{Candidates, PickContext, Picker, Policy},
};

/// Which endpoints a request may try.
enum Claim {
    /// Any: the request belongs to none.
    Any,
    /// The member at this index: the request belongs there.
    Owner(usize),
    /// None of those that may be tried.
    None,
}

/// Does what is due; takes the place of a trial, if there is one for this request.
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
    // A request that has failed once is not put at risk again while it can go elsewhere.
    if exclusions.is_retry(cluster.address()) && !snapshot.eligible.is_empty() {
        return None;
    }
    let owner = match claim(cluster, &snapshot, request, now) {
        Claim::Any => None,
        Claim::Owner(index) => Some(&snapshot.nodes.get(index)?.state),
        Claim::None => return None,
    };
    // Not the lock for nothing: it may be held during a build.
    let is_serving = owner.is_some_and(|owner| owner.health.load().state() == State::Serving);
    if is_serving || !cluster.is_trial_due(now) {
        return None;
    }
    let (node, epoch) =
        cluster.start_trial(owner.map(|owner| owner.id), exclusions.excluded(), now)?;
    let bounded = cluster.bounded.as_ref();
    let permit = bounded.map(|bounded| bounded.lock().start(bounded, node.state.id));
    let call = Admission { epoch, kind: AdmissionKind::Trial };
    let guard = Guard::new(&node, call, permit, now);
    Some((node, guard))
}

/// Finds the owner of a request: the first of its candidates that has a weight and room, healthy
/// or not.
fn claim<T, P, Req>(
    cluster: &Cluster<T, P>,
    snapshot: &Snapshot<T, P::Picker>,
    request: &Req,
    now: Instant,
) -> Claim
where
    P: Policy,
    P::Picker: Picker<Req>,
    Req: ?Sized,
{
    let Some(picker) = &snapshot.picker else { return Claim::None };
    let view = View { snapshot, accepts: |index| snapshot.is_open(index), now };
    let cx = PickContext::new(&snapshot.eligible, &view, &cluster.tickets, 0);
    let held = cluster.bounded.as_ref().map(|bounded| bounded.lock());
    let takes = |index: usize| {
        let node = snapshot.nodes.get(index);
        let has_room = held.as_ref().is_none_or(|held| has_room_to_try(snapshot, held, index));
        has_room && node.is_some_and(|node| node.state.is_open())
    };
    let mut passed = 0;
    loop {
        let mut part = Candidates::after(passed);
        picker.candidates(request, &cx, passed, &mut part);
        if !part.is_bound() {
            return Claim::Any;
        }
        if let Some(owner) = part.iter().find(|&index| takes(index)) {
            return Claim::Owner(owner);
        }
        passed += part.len();
        if !part.is_full() || passed > snapshot.nodes.len() {
            return Claim::None;
        }
    }
}

/// Returns whether a member may hold the call that tries it. An ejected one has no share, and gets
/// that one call whatever it holds from before, since that may last.
pub(super) fn has_room_to_try<T, B>(snapshot: &Snapshot<T, B>, held: &Held, index: usize) -> bool {
    let has_share = snapshot.shares.get(index).is_some_and(|&share| share > 0.0);
    !has_share || has_room(snapshot, held, index)
}
