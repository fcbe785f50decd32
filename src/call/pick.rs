//! Picks an endpoint from the snapshot.
//!
//! The first choice is one pick of the policy. If the call cannot use it, a lazy
//! [sequence](super::sequence) yields further candidates, best rank first.

use std::task::{Context, Poll};

use tokio::time::Instant;
use tower_service::Service;

use super::{
    exclusions::Exclusions,
    guard::Guard,
    sequence::{Rank, Sequence},
    trial,
    view::View,
};
use crate::{
    cluster::{Cluster, node::Node, snapshot::Snapshot},
    error::{Counts, Error},
    health::evidence::{Admission, AdmissionKind},
    load::bounded::{Held, Permit},
    policy::{PickContext, PickResult, Picker, Policy, rotate, ticket::Tickets},
};

/// An endpoint that was picked: its service, and the guard of the call.
#[derive(Debug)]
pub(crate) struct Picked<S> {
    pub(crate) service: S,
    pub(crate) guard: Guard,
}

impl<S> Picked<S> {
    /// Polls the service; a panic in it counts as a failure of the endpoint.
    #[inline]
    pub(crate) fn poll_ready<Req>(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>>
    where
        S: Service<Req>,
    {
        self.guard.inside(|| self.service.poll_ready(cx))
    }
}

/// Why no endpoint was picked.
#[derive(Debug)]
pub(crate) enum Missed {
    /// The policy refused the request or returned an invalid index.
    Policy(Error),
    /// No endpoint is eligible.
    Nothing(Counts),
    /// All eligible endpoints are excluded, or were ejected or drained after the snapshot.
    Closed(Counts),
    /// The picker of this generation has to be built anew.
    UsedUp(u64),
}

/// How many snapshots a pick reads at most. A newer one may have an endpoint for the call; the
/// number is small, so that a pick never loops while endpoints change quickly. 3 is a choice: the
/// present one, the one after a publication or a renewal, and one more.
const SNAPSHOTS: usize = 3;

/// Picks an endpoint and counts the call as in flight there.
#[inline]
pub(crate) fn pick<T, P, Req, S>(
    cluster: &Cluster<T, P>,
    request: &Req,
    exclusions: &mut Exclusions,
    now: Instant,
    attach: impl Fn(&T) -> S,
) -> Result<Picked<S>, Missed>
where
    P: Policy,
    P::Picker: Picker<Req>,
    Req: ?Sized,
{
    if cluster.is_due(now)
        && let Some((node, guard)) = trial::start(cluster, request, exclusions, now)
    {
        return Ok(attach_service(guard, &node.target, attach));
    }
    let mut missed = Missed::Nothing(Counts::default());
    for _ in 0..SNAPSHOTS {
        let snapshot = cluster.snapshot.load();
        missed = match choose(cluster, &snapshot, request, exclusions, now) {
            Ok((node, guard)) => return Ok(attach_service(guard, &node.target, attach)),
            Err(missed) => missed,
        };
        drop(snapshot);
        match missed {
            Missed::Policy(_) | Missed::Nothing(_) => break,
            Missed::Closed(_) => cluster.flush(now),
            Missed::UsedUp(generation) => cluster.renew(generation, now),
        }
    }
    Err(missed)
}

#[inline]
fn attach_service<T, S>(mut guard: Guard, target: &T, attach: impl Fn(&T) -> S) -> Picked<S> {
    let service = guard.inside(|| attach(target));
    Picked { service, guard }
}

#[inline]
fn choose<'s, T, P, Req>(
    cluster: &Cluster<T, P>,
    snapshot: &'s Snapshot<T, P::Picker>,
    request: &Req,
    exclusions: &mut Exclusions,
    now: Instant,
) -> Result<(&'s Node<T>, Guard), Missed>
where
    P: Policy,
    P::Picker: Picker<Req>,
    Req: ?Sized,
{
    if snapshot.eligible.is_empty() {
        return Err(Missed::Nothing(snapshot.counts));
    }
    // The usual case: no exclusions and no bound.
    if exclusions.is_fresh()
        && cluster.bounded.is_none()
        && let Some(picker) = &snapshot.picker
    {
        let view = View {
            snapshot,
            accepts: |index| snapshot.takes_calls(index),
            now,
        };
        let cx = PickContext::new(&snapshot.eligible, &view, &cluster.tickets, 0);
        let (_, node) = resolve(snapshot, picker.pick(request, &cx), &cx)?;
        if let Some(guard) = admit(snapshot, node, || None, now) {
            return Ok((node, guard));
        }
        // One pick per generation: the search goes on with the candidates.
        exclusions.sequence.begin(snapshot.generation);
    }
    choose_by_rank(cluster, snapshot, request, exclusions, now)
}

/// Chooses for a call that excludes endpoints, for a call under a bound, and after a first choice
/// that was ejected or drained.
#[inline(never)]
fn choose_by_rank<'s, T, P, Req>(
    cluster: &Cluster<T, P>,
    snapshot: &'s Snapshot<T, P::Picker>,
    request: &Req,
    exclusions: &mut Exclusions,
    now: Instant,
) -> Result<(&'s Node<T>, Guard), Missed>
where
    P: Policy,
    P::Picker: Picker<Req>,
    Req: ?Sized,
{
    let picker = snapshot
        .picker
        .as_ref()
        .ok_or_else(|| Missed::Policy(cluster.no_picker()))?;
    // Locked until the call is counted, so that the bound is exact.
    let mut held = cluster.bounded.as_ref().map(|bounded| bounded.lock());
    let mut sequence = std::mem::take(&mut exclusions.sequence);
    let search = Search {
        snapshot,
        exclusions,
        held: held.as_deref(),
        tickets: &cluster.tickets,
        now,
    };
    let index = search.find(picker, request, &mut sequence);
    exclusions.sequence = sequence;
    let closed = || Missed::Closed(snapshot.counts);
    let node = snapshot.nodes.get(index?).ok_or_else(closed)?;
    let permit = || {
        let bounded = cluster.bounded.as_ref()?;
        Some(held.as_mut()?.start(bounded, node.state.id))
    };
    let guard = admit(snapshot, node, permit, now).ok_or_else(closed)?;
    Ok((node, guard))
}

/// Admits the call to an endpoint, unless that was ejected or drained after the snapshot.
#[inline]
fn admit<T, B>(
    snapshot: &Snapshot<T, B>,
    node: &Node<T>,
    permit: impl FnOnce() -> Option<Permit>,
    now: Instant,
) -> Option<Guard> {
    let epoch = node.state.health.admit(snapshot.panic)?;
    let kind = AdmissionKind::Eligible;
    Some(Guard::new(node, Admission { epoch, kind }, permit(), now))
}

/// One search for an endpoint that takes the call.
struct Search<'a, T, B> {
    snapshot: &'a Snapshot<T, B>,
    exclusions: &'a Exclusions,
    /// The running calls, if their number is bounded.
    held: Option<&'a Held>,
    tickets: &'a Tickets,
    now: Instant,
}

impl<T, B> Search<'_, T, B> {
    /// Returns the index of the best member: the preferred one, else the policy's first choice,
    /// else the next candidate.
    fn find<Req: ?Sized>(
        &self,
        picker: &B,
        request: &Req,
        sequence: &mut Sequence,
    ) -> Result<usize, Missed>
    where
        B: Picker<Req>,
    {
        let view = View {
            snapshot: self.snapshot,
            accepts: |index| self.accepts(index),
            now: self.now,
        };
        let context = |seed| PickContext::new(&self.snapshot.eligible, &view, self.tickets, seed);
        if sequence.begin(self.snapshot.generation) {
            if let Some(index) = self.exclusions.preferred(self.snapshot)
                && self.accepts(index)
            {
                return Ok(index);
            }
            let cx = context(0);
            let (index, _) = resolve(self.snapshot, picker.pick(request, &cx), &cx)?;
            if self.accepts(index) {
                return Ok(index);
            }
        }
        let cx = context(sequence.seed(|| self.tickets.draw_seed()));
        let fill = |skip, out: &mut _| picker.candidates(request, &cx, skip, out);
        let (generation, most) = (self.snapshot.generation, self.snapshot.nodes.len());
        let found = sequence.next(generation, most, fill, |index| self.rank(index));
        found.ok_or(Missed::Closed(self.snapshot.counts))
    }

    /// Returns whether the call can use a first choice, ready or not: the call polls it.
    fn accepts(&self, index: usize) -> bool {
        self.rank(index)
            .is_some_and(|rank| rank <= Rank::new(false, false, true))
    }

    /// Returns the rank of a member; none if it cannot take the call.
    fn rank(&self, index: usize) -> Option<Rank> {
        let node = self.snapshot.nodes.get(index)?;
        let state = &node.state;
        if !self.snapshot.takes_calls(index) || self.exclusions.excludes(state) {
            return None;
        }
        let full = self
            .held
            .is_some_and(|held| !self.snapshot.is_below_bound(held, index));
        Some(Rank::new(
            full,
            self.exclusions.was_tried(state),
            state.is_unready(),
        ))
    }
}

/// Returns the member that a pick result stands for.
#[inline]
fn resolve<'s, T, B>(
    snapshot: &'s Snapshot<T, B>,
    result: PickResult,
    cx: &PickContext<'_>,
) -> Result<(usize, &'s Node<T>), Missed> {
    let result = match result {
        PickResult::Any => rotate(cx, |ticket, n| ticket % n),
        other => other,
    };
    match result {
        PickResult::Member(index) => match snapshot.nodes.get(index) {
            Some(node) => Ok((index, node)),
            None => Err(Missed::Policy(out_of_range(index, snapshot.nodes.len()))),
        },
        PickResult::Refuse(reason) => Err(Missed::Policy(Error::policy(reason))),
        PickResult::Renew => Err(Missed::UsedUp(snapshot.generation)),
        PickResult::Any => Err(Missed::Nothing(snapshot.counts)),
    }
}

#[cold]
fn out_of_range(index: usize, members: usize) -> Error {
    Error::policy(format!("it named member {index} of {members}"))
}
