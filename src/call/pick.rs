//! From the snapshot to an endpoint that takes the call.
//!
//! The first choice is one pick of the policy. If the call cannot use it, further candidates come
//! from one lazy [sequence](super::sequence), which also holds the one order of preference.

use tokio::time::Instant;

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
    load::bounded::Held,
    policy::{PickContext, PickResult, Picker, Policy, rotate},
};

/// An endpoint that was picked: the call's place there, and the service that will make it.
#[derive(Debug)]
pub(crate) struct Picked<S> {
    pub(crate) service: S,
    pub(crate) guard: Guard,
}

/// Why no endpoint was picked.
#[derive(Debug)]
pub(crate) enum Missed {
    /// The policy did not name one.
    Policy(Error),
    /// None may be picked.
    Nothing(Counts),
    /// All that may be picked are excluded, or have left service since the snapshot.
    Closed(Counts),
    /// The picker of this generation is used up.
    UsedUp(u64),
}

/// How many snapshots a pick reads at most: a newer one may serve where the last did not.
const SNAPSHOTS: usize = 3;

/// Picks an endpoint and counts the call in there.
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
        return Ok(attached(guard, &node.target, attach));
    }
    let mut missed = Missed::Nothing(Counts::default());
    for _ in 0..SNAPSHOTS {
        let snapshot = cluster.snapshot.load();
        missed = match choose(cluster, &snapshot, request, exclusions, now) {
            Ok((node, guard)) => return Ok(attached(guard, &node.target, attach)),
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
fn attached<T, S>(mut guard: Guard, target: &T, attach: impl Fn(&T) -> S) -> Picked<S> {
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
    // The healthy path: nothing is excluded, there is no bound, and the endpoint is open.
    if exclusions.is_fresh()
        && cluster.bounded.is_none()
        && let Some(picker) = &snapshot.picker
    {
        let view = View { snapshot, accepts: |index| snapshot.is_open(index), now };
        let cx = PickContext::new(&snapshot.eligible, &view, &cluster.tickets, 0);
        let (_, node) = named(snapshot, picker.pick(request, &cx), &cx)?;
        if let Some(epoch) = node.state.health.admit(snapshot.panic) {
            let call = Admission { epoch, kind: AdmissionKind::Eligible };
            return Ok((node, Guard::new(node, call, None, now)));
        }
    }
    choose_among(cluster, snapshot, request, exclusions, now)
}

/// Chooses for a call that excludes endpoints, or under a bound, or after its first choice has
/// left service.
#[cold]
fn choose_among<'s, T, P, Req>(
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
    let picker = snapshot.picker.as_ref().ok_or_else(|| Missed::Policy(cluster.no_picker()))?;
    // One call at a time, so that the bound is exact.
    let mut held = cluster.bounded.as_ref().map(|bounded| bounded.lock());
    let mut sequence = std::mem::take(&mut exclusions.sequence);
    let seed = sequence.seed(|| cluster.tickets.draw_seed());
    let search = Search { snapshot, exclusions, held: held.as_deref() };
    let view = View { snapshot, accepts: |index| search.accepts(index), now };
    let cx = PickContext::new(&snapshot.eligible, &view, &cluster.tickets, seed);
    let index = search.run(picker, request, &cx, &mut sequence);
    exclusions.sequence = sequence;
    let node = snapshot.nodes.get(index?).ok_or(Missed::Closed(snapshot.counts))?;
    let epoch = node.state.health.admit(snapshot.panic).ok_or(Missed::Closed(snapshot.counts))?;
    let permit = cluster.bounded.as_ref().zip(held.as_mut());
    let permit = permit.map(|(bounded, held)| held.start(bounded, node.state.id));
    let call = Admission { epoch, kind: AdmissionKind::Eligible };
    Ok((node, Guard::new(node, call, permit, now)))
}

/// One search for an endpoint that takes the call.
struct Search<'a, T, B> {
    snapshot: &'a Snapshot<T, B>,
    exclusions: &'a Exclusions,
    /// The calls that run, under a bound.
    held: Option<&'a Held>,
}

impl<T, B> Search<'_, T, B> {
    /// Returns the index of the best member: the one that the caller prefers, the policy's first
    /// choice if the call can use it, else the next candidate.
    fn run<Req: ?Sized>(
        &self,
        picker: &B,
        request: &Req,
        cx: &PickContext<'_>,
        sequence: &mut Sequence,
    ) -> Result<usize, Missed>
    where
        B: Picker<Req>,
    {
        if sequence.begin(self.snapshot.generation) {
            if let Some(index) = self.preferred() {
                return Ok(index);
            }
            let (index, _) = named(self.snapshot, picker.pick(request, cx), cx)?;
            if self.accepts(index) {
                return Ok(index);
            }
        }
        let fill = |skip, out: &mut _| picker.candidates(request, cx, skip, out);
        let (generation, most) = (self.snapshot.generation, self.snapshot.nodes.len());
        let found = sequence.next(generation, most, fill, |index| self.rank(index));
        found.ok_or(Missed::Closed(self.snapshot.counts))
    }

    /// Returns the member that the caller prefers, if the call can use it.
    fn preferred(&self) -> Option<usize> {
        let name = self.exclusions.attempts()?.preferred()?;
        let index = self.snapshot.nodes.iter().position(|node| node.state.name == name)?;
        self.accepts(index).then_some(index)
    }

    /// Returns whether the call can use a first choice. Whether that was ready last time plays no
    /// part: the call finds out.
    fn accepts(&self, index: usize) -> bool {
        self.rank(index).is_some_and(|rank| rank <= Rank::new(false, false, true))
    }

    /// Returns how well a member suits the call; none if it cannot take it.
    fn rank(&self, index: usize) -> Option<Rank> {
        let node = self.snapshot.nodes.get(index)?;
        let state = &node.state;
        if !self.snapshot.is_open(index) || self.exclusions.excludes(state) {
            return None;
        }
        let full = self.held.is_some_and(|held| !has_room(self.snapshot, held, index));
        Some(Rank::new(full, self.exclusions.was_tried(state), state.is_unready()))
    }
}

/// Returns whether a member may hold one more call: one without a share, if it holds none.
pub(super) fn has_room<T, B>(snapshot: &Snapshot<T, B>, held: &Held, index: usize) -> bool {
    let share = snapshot.shares.get(index).copied().unwrap_or(0.0);
    let node = snapshot.nodes.get(index);
    node.is_some_and(|node| held.has_room(node.state.id, share))
}

/// Finds the member that the policy chose.
#[inline]
fn named<'s, T, B>(
    snapshot: &'s Snapshot<T, B>,
    result: PickResult,
    cx: &PickContext<'_>,
) -> Result<(usize, &'s Node<T>), Missed> {
    let result = match result {
        PickResult::Any => rotate(cx, |ticket, n| ticket % n),
        named => named,
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
