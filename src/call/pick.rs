//! One choice: from the snapshot to an endpoint that takes the call.

use tokio::time::Instant;

use crate::call::{
    exclusions::Exclusions,
    look::Look,
    room::{has_room, has_room_to_try},
};
use crate::{
    call::guard::Guard,
    cluster::{Cluster, node::Node, snapshot::Snapshot},
    error::{Counts, Error},
    health::evidence::{Admission, AdmissionKind, Epoch, State},
    policy::{Choice, Claim, Gate, Pick, Policy, Turn, rotate},
};

/// A call's place on an endpoint, with the service that will make it.
#[derive(Debug)]
pub(crate) struct Placed<S> {
    pub(crate) service: S,
    pub(crate) guard: Guard,
}

/// Why no endpoint was chosen.
#[derive(Debug)]
pub(crate) enum Missed {
    /// The policy did not name one.
    Policy(Error),
    /// None may be picked.
    Nothing(Counts),
    /// All that may be picked are excluded, or their gates have closed meanwhile.
    Exhausted(Counts),
    /// The table of this generation is used up, also when it was compiled anew.
    UsedUp(u64),
}

/// How often a newer snapshot is taken, when gates have closed meanwhile or a table is used
/// up.
const ROUNDS: usize = 3;

impl<T, P: Policy> Cluster<T, P> {
    /// Chooses an endpoint and takes a place on it.
    #[inline]
    pub(crate) fn choose<Req: ?Sized, S>(
        &self,
        request: &Req,
        exclusions: &mut Exclusions,
        now: Instant,
        attach: impl Fn(&T) -> S,
    ) -> Result<Placed<S>, Missed>
    where
        P: Pick<Req>,
    {
        if self.is_due(now)
            && let Some(placed) = self.try_out(request, exclusions, now, &attach)
        {
            return Ok(placed);
        }
        let mut missed = Missed::Nothing(Counts::default());
        for _ in 0..ROUNDS {
            let snapshot = self.snapshot.load();
            missed = match self.pick(&snapshot, request, exclusions, now) {
                Ok((node, guard)) => return Ok(placed(guard, &node.target, &attach)),
                Err(missed) => missed,
            };
            drop(snapshot);
            match missed {
                Missed::Policy(_) | Missed::Nothing(_) => break,
                Missed::Exhausted(_) => self.flush(now),
                Missed::UsedUp(generation) => self.renew(generation, now),
            }
        }
        Err(missed)
    }

    /// Returns the index that the policy names next; takes no place.
    pub(crate) fn preview<Req: ?Sized>(&self, request: &Req) -> Option<usize>
    where
        P: Pick<Req>,
    {
        // Only what is measured needs to know the time.
        let now = self.meter.as_ref().map_or(self.origin, |_| Instant::now());
        for _ in 0..ROUNDS {
            let snapshot = self.snapshot.load();
            let gate = |index| gate(&snapshot, index);
            let look = Look { snapshot: &snapshot, gate, now };
            let turn = Turn::new(&snapshot.eligible, &look, &self.tickets);
            match self.policy.pick(snapshot.table.as_ref()?, request, &turn) {
                Choice::Member(index) => return Some(index),
                Choice::Renew => self.renew(snapshot.generation, Instant::now()),
                Choice::Any | Choice::Refuse(_) => return None,
            }
        }
        None
    }

    /// Takes the place of the trial that is due, if there is one for this request.
    fn try_out<Req: ?Sized, S>(
        &self,
        request: &Req,
        exclusions: &Exclusions,
        now: Instant,
        attach: impl Fn(&T) -> S,
    ) -> Option<Placed<S>>
    where
        P: Pick<Req>,
    {
        self.catch_up(now);
        let snapshot = self.snapshot.load();
        // A request that has failed once is not put at risk again while it can go elsewhere.
        if exclusions.is_retry(self.address()) && !snapshot.eligible.is_empty() {
            return None;
        }
        let held = self.bounded.as_ref().map(|bounded| bounded.lock());
        let open = |index| {
            let has_room = held.as_ref().is_none_or(|held| has_room_to_try(&snapshot, held, index));
            has_room && snapshot.nodes.get(index).is_some_and(|node| node.state.is_open())
        };
        let table = snapshot.table.as_ref()?;
        let owner = match self.policy.claim(table, request, &open) {
            Claim::Any => None,
            Claim::Only(index) => Some(&*snapshot.nodes.get(index)?.state),
            Claim::None => return None,
        };
        drop(held);
        if !self.is_trial_due(now)
            || owner.is_some_and(|owner| owner.health.load().state() == State::Serving)
        {
            return None;
        }
        let (node, epoch) =
            self.start_trial(owner.map(|owner| owner.id), exclusions.excluded(), now)?;
        let permit =
            self.bounded.as_ref().map(|bounded| bounded.lock().start(bounded, node.state.id));
        let guard = Guard::new(&node, Admission { epoch, kind: AdmissionKind::Trial }, permit, now);
        Some(placed(guard, &node.target, attach))
    }

    #[inline]
    fn pick<'s, Req: ?Sized>(
        &self,
        snapshot: &'s Snapshot<T, P::Table>,
        request: &Req,
        exclusions: &mut Exclusions,
        now: Instant,
    ) -> Result<(&'s Node<T>, Guard), Missed>
    where
        P: Pick<Req>,
    {
        if snapshot.eligible.is_empty() {
            return Err(Missed::Nothing(snapshot.counts));
        }
        // The healthy path: nothing to exclusions, no bound, and the gate is open.
        if exclusions.is_fresh()
            && self.bounded.is_none()
            && let Some(table) = &snapshot.table
        {
            let gate = |index| gate(snapshot, index);
            let look = Look { snapshot, gate, now };
            let turn = Turn::new(&snapshot.eligible, &look, &self.tickets);
            let (_, node) = named(snapshot, self.policy.pick(table, request, &turn), &turn)?;
            if let Some(epoch) = node.state.health.admit(snapshot.panic) {
                return Ok((
                    node,
                    Guard::new(node, Admission { epoch, kind: AdmissionKind::Eligible }, None, now),
                ));
            }
        }
        self.pick_carefully(snapshot, request, exclusions, now)
    }

    /// Picks an endpoint for a call that has been through something, or under a bound.
    #[cold]
    fn pick_carefully<'s, Req: ?Sized>(
        &self,
        snapshot: &'s Snapshot<T, P::Table>,
        request: &Req,
        exclusions: &mut Exclusions,
        now: Instant,
    ) -> Result<(&'s Node<T>, Guard), Missed>
    where
        P: Pick<Req>,
    {
        let Some(bounded) = &self.bounded else {
            let (node, epoch) = self.pick_where(snapshot, request, exclusions, now, |_| true)?;
            return Ok((
                node,
                Guard::new(node, Admission { epoch, kind: AdmissionKind::Eligible }, None, now),
            ));
        };
        // One at a time, so that the bound is exact.
        let mut held = bounded.lock();
        let has_room = |index| has_room(snapshot, &held, index);
        let (node, epoch) = self.pick_where(snapshot, request, exclusions, now, has_room)?;
        let permit = held.start(bounded, node.state.id);
        drop(held);
        let guard =
            Guard::new(node, Admission { epoch, kind: AdmissionKind::Eligible }, Some(permit), now);
        Ok((node, guard))
    }

    /// Picks an endpoint, one that has room if there is any.
    fn pick_where<'s, Req: ?Sized>(
        &self,
        snapshot: &'s Snapshot<T, P::Table>,
        request: &Req,
        exclusions: &mut Exclusions,
        now: Instant,
        has_room: impl Fn(usize) -> bool,
    ) -> Result<(&'s Node<T>, Epoch), Missed>
    where
        P: Pick<Req>,
    {
        let table = snapshot.table.as_ref().ok_or_else(|| Missed::Policy(self.no_picker()))?;
        let avoided = &*exclusions;
        let gate = |index| match snapshot.nodes.get(index) {
            Some(node) if is_open(snapshot, index) => match avoided.gate(&node.state) {
                stands if has_room(index) => stands,
                Gate::Welcome => Gate::Full,
                Gate::Tried => Gate::FullTried,
                other => other,
            },
            _ => Gate::Closed,
        };
        let look = Look { snapshot, gate, now };
        let mut second_best = None;
        for _ in 0..avoided.draws() {
            let turn = Turn::new(&snapshot.eligible, &look, &self.tickets);
            let (index, node) = named(snapshot, self.policy.pick(table, request, &turn), &turn)?;
            let stands = avoided.gate(&node.state);
            if stands == Gate::Closed {
                continue;
            }
            let Some(epoch) = node.state.health.admit(snapshot.panic) else { continue };
            if stands == Gate::Welcome && has_room(index) {
                return Ok((node, epoch));
            }
            second_best.get_or_insert((node, epoch));
        }
        self.search_where(snapshot, exclusions, second_best, has_room)
    }

    /// Looks for an endpoint that the policy has not named; if there is none that the request
    /// has not tried, or that has room, what the policy named will do.
    #[cold]
    fn search_where<'s>(
        &self,
        snapshot: &'s Snapshot<T, P::Table>,
        exclusions: &mut Exclusions,
        named: Option<(&'s Node<T>, Epoch)>,
        has_room: impl Fn(usize) -> bool,
    ) -> Result<(&'s Node<T>, Epoch), Missed> {
        let tried =
            |exclusions: &Exclusions, (node, _): (&Node<T>, _)| exclusions.was_tried(&node.state);
        let mut found = self.search(snapshot, exclusions, &has_room);
        if self.bounded.is_some()
            && found.is_none()
            && named.is_none_or(|named| tried(exclusions, named))
        {
            // Nobody has room: somebody takes it all the same.
            exclusions.search_anew();
            found = self.search(snapshot, exclusions, &|_| true);
            exclusions.search_anew();
        }
        let found = match (found, named) {
            (Some(found), Some(named)) if tried(exclusions, found) => Some(named),
            (found, named) => found.or(named),
        };
        found.ok_or(Missed::Exhausted(snapshot.counts))
    }

    /// Looks at every eligible endpoint, from a place that moves on with each search.
    fn search<'s>(
        &self,
        snapshot: &'s Snapshot<T, P::Table>,
        exclusions: &mut Exclusions,
        has_room: &dyn Fn(usize) -> bool,
    ) -> Option<(&'s Node<T>, Epoch)> {
        let length = snapshot.eligible.len();
        let start = || (self.tickets.draw() % length.max(1) as u64) as usize;
        let mut sweep = exclusions.sweep(snapshot.generation, start);
        let found = std::iter::from_fn(|| sweep.next(length)).find_map(|(place, rank)| {
            let index = *snapshot.eligible.get(place)? as usize;
            let node = snapshot.nodes.get(index)?;
            let welcome = !exclusions.excludes(&node.state) && exclusions.rank(&node.state) <= rank;
            let admitted = welcome && has_room(index);
            let epoch = admitted.then(|| node.state.health.admit(snapshot.panic))??;
            Some((&**node, epoch))
        });
        exclusions.stopped(sweep);
        found
    }
}

/// Returns whether the gate of a member is open at this moment.
fn is_open<T, B>(snapshot: &Snapshot<T, B>, index: usize) -> bool {
    let node = snapshot.nodes.get(index);
    node.is_some_and(|node| node.state.health.admit(snapshot.panic).is_some())
}

/// Returns how a member stands to a call that avoids nobody.
fn gate<T, B>(snapshot: &Snapshot<T, B>, index: usize) -> Gate {
    if is_open(snapshot, index) { Gate::Welcome } else { Gate::Closed }
}

/// Finds the node that the policy chose.
#[inline]
fn named<'s, T, B>(
    snapshot: &'s Snapshot<T, B>,
    choice: Choice,
    turn: &Turn<'_>,
) -> Result<(usize, &'s Node<T>), Missed> {
    let choice = match choice {
        Choice::Any => rotate(turn, |ticket, n| ticket % n),
        named => named,
    };
    match choice {
        Choice::Member(index) => match snapshot.nodes.get(index) {
            Some(node) => Ok((index, node)),
            None => Err(Missed::Policy(out_of_range(index, snapshot.nodes.len()))),
        },
        Choice::Refuse(reason) => Err(Missed::Policy(Error::policy(reason))),
        Choice::Renew => Err(Missed::UsedUp(snapshot.generation)),
        Choice::Any => Err(Missed::Nothing(snapshot.counts)),
    }
}

#[cold]
fn out_of_range(index: usize, members: usize) -> Error {
    Error::policy(format!("it named member {index} of {members}"))
}

#[inline]
fn placed<T, S>(mut guard: Guard, target: &T, attach: impl Fn(&T) -> S) -> Placed<S> {
    let service = guard.inside(|| attach(target));
    Placed { service, guard }
}
