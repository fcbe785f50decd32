//! One choice: from the snapshot to an endpoint that takes the call.

use std::sync::Arc;

use tokio::time::Instant;

use super::{avoid::Avoid, in_flight::InFlight};
use crate::{
    bounds::Loads,
    error::{Counts, Error, ErrorKind},
    health::standing::Period,
    hub::Hub,
    node::{Node, NodeState},
    policy::{Choice, Pick, Policy, Turn, rotate},
    snapshot::Snapshot,
};

/// A call's place on an endpoint, with the service that will make it.
#[derive(Debug)]
pub(crate) struct Seat<S> {
    pub(crate) service: S,
    pub(crate) guard: InFlight,
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

impl<T, P: Policy> Hub<T, P> {
    /// Chooses an endpoint and takes a place on it.
    #[inline]
    pub(crate) fn choose<Req: ?Sized, S>(
        &self,
        request: &Req,
        avoid: &mut Avoid,
        now: Instant,
        attach: impl Fn(&T) -> S,
    ) -> Result<Seat<S>, Missed>
    where
        P: Pick<Req>,
    {
        if self.is_due(now)
            && let Some(seat) = self.try_out(request, avoid, now, &attach)
        {
            return Ok(seat);
        }
        let mut missed = Missed::Nothing(Counts::default());
        for _ in 0..ROUNDS {
            let snapshot = self.snapshot.load();
            missed = match self.pick(&snapshot, request, avoid, now) {
                Ok((node, guard)) => return Ok(seat(guard, &node.target, &attach)),
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
        for _ in 0..ROUNDS {
            let snapshot = self.snapshot.load();
            let welcome = |index| is_open(&snapshot, index);
            let turn = Turn::new(&snapshot.eligible, &welcome, &self.tickets);
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
        avoid: &Avoid,
        now: Instant,
        attach: impl Fn(&T) -> S,
    ) -> Option<Seat<S>>
    where
        P: Pick<Req>,
    {
        let snapshot = self.snapshot.load();
        // A request that has failed once is not put at risk again while it can go elsewhere.
        if avoid.is_retry(self.address()) && !snapshot.eligible.is_empty() {
            return None;
        }
        let open = |index| snapshot.nodes.get(index).is_some_and(|node| node.state.is_open());
        let table = snapshot.table.as_ref();
        let owner = table.and_then(|table| self.policy.owner(table, request, &open));
        let owner = owner.and_then(|index| snapshot.nodes.get(index)).map(|node| &node.state);
        let accepts = |node: &NodeState| !avoid.excludes(node);
        let (node, period) = self.attend(now, owner.map(|state| &**state), accepts)?;
        let guard = InFlight::new(Arc::clone(&node.state), period, true, now);
        Some(seat(guard, &node.target, attach))
    }

    #[inline]
    fn pick<'s, Req: ?Sized>(
        &self,
        snapshot: &'s Snapshot<T, P::Table>,
        request: &Req,
        avoid: &mut Avoid,
        now: Instant,
    ) -> Result<(&'s Node<T>, InFlight), Missed>
    where
        P: Pick<Req>,
    {
        if snapshot.eligible.is_empty() {
            return Err(Missed::Nothing(snapshot.counts));
        }
        let table = snapshot.table.as_ref().ok_or_else(|| Missed::Policy(self.no_table()))?;
        if let Some(loads) = &self.loads {
            return self.pick_bounded(snapshot, table, request, avoid, loads, now);
        }
        let avoided = &*avoid;
        let welcome = |index| {
            is_open(snapshot, index)
                && snapshot.nodes.get(index).is_some_and(|node| avoided.welcomes(&node.state))
        };
        for _ in 0..avoided.draws() {
            let turn = Turn::new(&snapshot.eligible, &welcome, &self.tickets);
            let node = named(snapshot, self.policy.pick(table, request, &turn), &turn)?;
            if avoided.welcomes(&node.state)
                && let Some(period) = node.state.standing.admit(snapshot.panic)
            {
                return Ok((node, InFlight::new(Arc::clone(&node.state), period, false, now)));
            }
        }
        let (node, period) =
            self.search(snapshot, avoid).ok_or(Missed::Exhausted(snapshot.counts))?;
        Ok((node, InFlight::new(Arc::clone(&node.state), period, false, now)))
    }

    /// Picks under the lock that keeps the bound exact.
    fn pick_bounded<'s, Req: ?Sized>(
        &self,
        snapshot: &'s Snapshot<T, P::Table>,
        table: &P::Table,
        request: &Req,
        avoid: &mut Avoid,
        loads: &Arc<Loads>,
        now: Instant,
    ) -> Result<(&'s Node<T>, InFlight), Missed>
    where
        P: Pick<Req>,
    {
        let mut held = loads.lock();
        let welcome = |index| {
            is_open(snapshot, index)
                && snapshot.nodes.get(index).is_some_and(|node| {
                    let share = snapshot.shares.get(index).copied().unwrap_or(0.0);
                    avoid.welcomes(&node.state) && held.has_room(node.state.id, share)
                })
        };
        let turn = Turn::new(&snapshot.eligible, &welcome, &self.tickets);
        let choice = self.policy.pick(table, request, &turn);
        let node = named(snapshot, choice, &turn)?;
        let admitted = !avoid.excludes(&node.state);
        let admitted = admitted.then(|| node.state.standing.admit(snapshot.panic)).flatten();
        let found = admitted.map(|period| (node, period)).or_else(|| self.search(snapshot, avoid));
        let (node, period) = found.ok_or(Missed::Exhausted(snapshot.counts))?;
        held.add(node.state.id);
        drop(held);
        let guard = InFlight::new(Arc::clone(&node.state), period, false, now);
        Ok((node, guard.holding(Arc::clone(loads))))
    }

    /// Looks at every eligible endpoint, from a place that moves on with each search.
    #[cold]
    fn search<'s>(
        &self,
        snapshot: &'s Snapshot<T, P::Table>,
        avoid: &mut Avoid,
    ) -> Option<(&'s Node<T>, Period)> {
        let length = snapshot.eligible.len();
        let start = || (self.tickets.draw() % length.max(1) as u64) as usize;
        let mut sweep = avoid.sweep(snapshot.generation, start);
        let found = std::iter::from_fn(|| sweep.next(length)).find_map(|(place, rank)| {
            let node = snapshot.nodes.get(*snapshot.eligible.get(place)? as usize)?;
            let welcome = !avoid.excludes(&node.state) && avoid.rank(&node.state) <= rank;
            let period = welcome.then(|| node.state.standing.admit(snapshot.panic))??;
            Some((&**node, period))
        });
        avoid.stopped(sweep);
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
            Counts { ejected: 0, .. } => ErrorKind::Unready,
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

/// Finds the node that the policy chose.
#[inline]
fn named<'s, T, B>(
    snapshot: &'s Snapshot<T, B>,
    choice: Choice,
    turn: &Turn<'_>,
) -> Result<&'s Node<T>, Missed> {
    let choice = match choice {
        Choice::Any => rotate(turn, |ticket, n| ticket % n),
        named => named,
    };
    match choice {
        Choice::Member(index) => match snapshot.nodes.get(index) {
            Some(node) => Ok(node),
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
fn seat<T, S>(mut guard: InFlight, target: &T, attach: impl Fn(&T) -> S) -> Seat<S> {
    let service = guard.inside(|| attach(target));
    Seat { service, guard }
}
