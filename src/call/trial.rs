//! The call that tries an ejected endpoint.

use std::sync::Arc;

use tokio::time::Instant;

use super::{exclusions::Exclusions, guard::Guard, view::View};
use crate::{
    cluster::{
        Cluster,
        node::{Node, NodeState},
        snapshot::Snapshot,
    },
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
    if !cluster.is_trial_due(now) {
        return None;
    }
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
        Triable::Any => claim.start_first(),
        Triable::Owner(index) => claim.start(index),
        Triable::None => None,
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
        if state.health.load().state() == State::Serving || self.avoids(state) {
            return None;
        }
        let kind = AdmissionKind::Trial;
        // Taken before the trial starts: a listener may answer that event with a call.
        let permit = match &self.cluster.bounded {
            Some(bounded) => Some(self.snapshot.take_permit(bounded, index, kind)?),
            None => None,
        };
        let (node, epoch) = self.cluster.start_trial(state.id, self.now)?;
        let guard = Guard::new(&node, Admission { epoch, kind }, permit, self.now);
        Some((node, guard))
    }

    /// Returns whether the call excludes an endpoint, or avoids it while another is eligible.
    fn avoids(&self, state: &NodeState) -> bool {
        self.exclusions.excludes(state)
            || (self.exclusions.was_tried(state) && !self.snapshot.eligible.is_empty())
    }

    /// Finds the owner of a request: the endpoint that the caller prefers, else the first of the
    /// policy's candidates that has a weight and is below its bound, healthy or not.
    fn triable<Req>(&self, request: &Req) -> Triable
    where
        P::Picker: Picker<Req>,
        Req: ?Sized,
    {
        let held = self.cluster.bounded.as_ref().map(|bounded| bounded.lock());
        let may_own = |&index: &usize| self.may_own(held.as_deref(), index);
        if let Some(index) = self.preferred().filter(may_own) {
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

    /// Returns the endpoint that the caller prefers, unless the call avoids it.
    fn preferred(&self) -> Option<usize> {
        let index = self.exclusions.preferred(self.snapshot)?;
        let node = self.snapshot.nodes.get(index)?;
        if self.avoids(&node.state) {
            None
        } else {
            Some(index)
        }
    }

    /// Returns whether a member has a weight and is below its bound.
    fn may_own(&self, held: Option<&Held>, index: usize) -> bool {
        let node = self.snapshot.nodes.get(index);
        node.is_some_and(|node| node.state.has_weight())
            && held.is_none_or(|held| self.snapshot.is_below_bound_for_trial(held, index))
    }
}
