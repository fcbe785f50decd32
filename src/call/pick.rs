//! One choice: from the snapshot to an endpoint that takes the call.

use tokio::time::Instant;

use crate::call::{
    exclusions::Exclusions,
    look::Look,
    room::{has_room, has_room_to_try},
};
use crate::{
    call::guard::Guard,
    cluster::{
        Cluster,
        node::{Node, NodeState},
        snapshot::Snapshot,
    },
    error::{Counts, Error, ErrorKind},
    health::standing::Epoch,
    load::bounded::Loads,
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
        let held = self.loads.as_ref().map(Loads::lock);
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
        let accepts = |node: &NodeState| !exclusions.excludes(node);
        let (node, epoch) = self.attend(now, owner, accepts)?;
        let mut guard = Guard::new(&node, epoch, true, now);
        if let Some(loads) = &self.loads {
            loads.lock().add(node.state.id);
            guard.set_bounded();
        }
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
            && self.loads.is_none()
            && let Some(table) = &snapshot.table
        {
            let gate = |index| gate(snapshot, index);
            let look = Look { snapshot, gate, now };
            let turn = Turn::new(&snapshot.eligible, &look, &self.tickets);
            let (_, node) = named(snapshot, self.policy.pick(table, request, &turn), &turn)?;
            if let Some(epoch) = node.state.standing.admit(snapshot.panic) {
                return Ok((node, Guard::new(node, epoch, false, now)));
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
        let Some(loads) = &self.loads else {
            let (node, epoch) = self.pick_where(snapshot, request, exclusions, now, |_| true)?;
            return Ok((node, Guard::new(node, epoch, false, now)));
        };
        // One at a time, so that the bound is exact.
        let mut held = loads.lock();
        let has_room = |index| has_room(snapshot, &held, index);
        let (node, epoch) = self.pick_where(snapshot, request, exclusions, now, has_room)?;
        held.add(node.state.id);
        drop(held);
        let mut guard = Guard::new(node, epoch, false, now);
        guard.set_bounded();
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
        let table = snapshot.table.as_ref().ok_or_else(|| Missed::Policy(self.no_table()))?;
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
            let Some(epoch) = node.state.standing.admit(snapshot.panic) else { continue };
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
        if self.loads.is_some()
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
            let epoch = admitted.then(|| node.state.standing.admit(snapshot.panic))??;
            Some((&**node, epoch))
        });
        exclusions.stopped(sweep);
        found
    }

    fn no_table(&self) -> Error {
        let words = self.progress.last_panic().unwrap_or_default();
        Error::policy(format!("it panicked while compiling its table: {words}"))
    }

    /// Returns the error for a set of which nothing may be picked.
    pub(crate) fn shortage(&self, counts: Counts) -> Error {
        let finished = self.progress.has_finished();
        let kind = match counts {
            Counts { members: 0, .. } if self.progress.is_uncompiled() => return self.no_table(),
            Counts { members: 0, .. } if finished => ErrorKind::DiscoveryEnded,
            Counts { members: 0, .. } => ErrorKind::Empty,
            Counts { members, drained, .. } if members == drained => ErrorKind::Drained,
            Counts { ejected: 0, .. } if self.progress.is_uncompiled() => return self.no_table(),
            // All are in service; they have just not been ready for this call.
            Counts { ejected: 0, .. } => ErrorKind::ReadyTimeout,
            _ => ErrorKind::Ejected,
        };
        let cause = if counts.members == 0 { self.progress.last_error() } else { None };
        Error::unavailable(kind, counts, cause)
    }
}

/// Returns whether the gate of a member is open at this moment.
fn is_open<T, B>(snapshot: &Snapshot<T, B>, index: usize) -> bool {
    let node = snapshot.nodes.get(index);
    node.is_some_and(|node| node.state.standing.admit(snapshot.panic).is_some())
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
