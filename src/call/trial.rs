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

/// The endpoints whose trial a call may be.
enum Triable {
    /// Any endpoint: the policy binds the request to none.
    Any,
    /// The member at this index: the caller prefers it, or the policy binds the request to it.
    Owner(usize),
    None,
}

/// How many endpoints with a due trial a call reads at most. It takes the first that it accepts, and
/// a call avoids few; the number bounds the cost after a common outage of a large set.
const MOST_DUE: usize = 16;

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
    let claim = Claim {
        cluster,
        snapshot: &snapshot,
        exclusions,
        now,
    };
    match claim.triable(request) {
        Triable::Owner(index) => claim.start(index),
        Triable::Any if cluster.is_trial_due(now) => claim.start_first(),
        Triable::Any | Triable::None => None,
    }
}

/// A call that could be a trial.
struct Claim<'a, T, P: Policy> {
    cluster: &'a Cluster<T, P>,
    snapshot: &'a Snapshot<T, P::Picker>,
    exclusions: &'a Exclusions,
    now: Instant,
}

impl<T, P: Policy> Claim<'_, T, P> {
    /// Starts the first trial that is due and that the call accepts.
    fn start_first(&self) -> Option<(Arc<Node<T>>, Guard)> {
        let due = self.cluster.due_trials(MOST_DUE, self.now);
        let mut indexes = due
            .iter()
            .filter_map(|&id| self.snapshot.nodes.position(id));
        indexes.find_map(|index| self.start(index))
    }

    /// Starts the trial of a member, if it is due and the call accepts the member.
    fn start(&self, index: usize) -> Option<(Arc<Node<T>>, Guard)> {
        let state = &self.snapshot.nodes.get(index)?.state;
        // Checked before the lock is taken, which a build may hold for long.
        let is_serving = state.health.load().state() == State::Serving;
        if is_serving || !self.cluster.is_trial_due(self.now) || !self.accepts(index) {
            return None;
        }
        let (node, epoch) = self.cluster.start_trial(state.id, self.now)?;
        let bounded = self.cluster.bounded.as_ref();
        let permit = bounded.map(|bounded| bounded.lock().start(bounded, node.state.id));
        let call = Admission {
            epoch,
            kind: AdmissionKind::Trial,
        };
        let guard = Guard::new(&node, call, permit, self.now);
        Some((node, guard))
    }

    /// Returns whether the call may go to a member: it does not exclude it, and does not avoid it
    /// while another is eligible; the member is below its bound.
    fn accepts(&self, index: usize) -> bool {
        let Some(node) = self.snapshot.nodes.get(index) else {
            return false;
        };
        let avoids = self.exclusions.was_tried(&node.state) && !self.snapshot.eligible.is_empty();
        let held = self.cluster.bounded.as_ref().map(|bounded| bounded.lock());
        !avoids && !self.exclusions.excludes(&node.state) && self.has_room(held.as_deref(), index)
    }

    fn has_room(&self, held: Option<&Held>, index: usize) -> bool {
        held.is_none_or(|held| self.snapshot.is_below_bound_for_trial(held, index))
    }

    /// Finds the owner of a request: the endpoint that the caller prefers, else the first of the
    /// policy's candidates that has a weight and is below its bound, healthy or not.
    fn triable<Req>(&self, request: &Req) -> Triable
    where
        P::Picker: Picker<Req>,
        Req: ?Sized,
    {
        if let Some(index) = self.exclusions.preferred(self.snapshot)
            && self.accepts(index)
            && self.has_weight(index)
        {
            return Triable::Owner(index);
        }
        let Some(picker) = &self.snapshot.picker else {
            return Triable::None;
        };
        let view = View {
            snapshot: self.snapshot,
            accepts: |index| self.snapshot.takes_calls(index),
            now: self.now,
        };
        let tickets = &self.cluster.tickets;
        let cx = PickContext::new(&self.snapshot.eligible, &view, tickets, 0);
        let held = self.cluster.bounded.as_ref().map(|bounded| bounded.lock());
        let may_own = |&i: &usize| self.has_room(held.as_deref(), i) && self.has_weight(i);
        let mut passed = 0;
        loop {
            let mut chunk = Candidates::after(passed);
            picker.candidates(request, &cx, passed, &mut chunk);
            if !chunk.is_bound() {
                return Triable::Any;
            }
            if let Some(owner) = chunk.iter().find(may_own) {
                return Triable::Owner(owner);
            }
            passed += chunk.len();
            if !chunk.is_full() || passed > self.snapshot.nodes.len() {
                return Triable::None;
            }
        }
    }

    fn has_weight(&self, index: usize) -> bool {
        let node = self.snapshot.nodes.get(index);
        node.is_some_and(|node| node.state.has_weight())
    }
}
