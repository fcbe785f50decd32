//! What all clones of a balancer share: the published snapshot, and the door through which
//! everything goes that changes it.

pub(crate) mod batch;
pub(crate) mod core;
mod deadlines;
pub(crate) mod discovery;
pub(crate) mod node;
pub(crate) mod nodes;
mod publish;
mod reports;
pub(crate) mod settings;
pub(crate) mod snapshot;
pub(crate) mod spawn;

use std::{
    fmt,
    sync::{Arc, Mutex, atomic::AtomicUsize},
    time::Duration,
};

use self::deadlines::Deadlines;
use arc_swap::ArcSwap;
use tokio::{sync::Notify, time::Instant};

use crate::{
    cluster::{
        core::Core,
        discovery::Progress,
        node::{Node, NodeState},
        nodes::Nodes,
        settings::Settings,
        snapshot::Snapshot,
        spawn::Spawner,
    },
    error::{BoxError, Counts, Error, ErrorKind},
    event::{Event, Events},
    health::{
        capacity::{self, CapacityChange},
        standing::Epoch,
    },
    load::{Meter, bounded::Loads},
    policy::{Policy, ticket::Tickets},
    util::{drop_users, lock},
};

/// The shared heart of a balancer.
pub(crate) struct Cluster<T, P: Policy> {
    pub(crate) snapshot: ArcSwap<Snapshot<T, P::Table>>,
    deadlines: Deadlines,
    pub(crate) policy: P,
    pub(crate) tickets: Tickets,
    pub(crate) settings: Settings,
    door: Mutex<Room<T>>,
    pub(crate) progress: Progress,
    events: Events,
    /// What is measured of calls, if anybody asks for it.
    pub(crate) meter: Option<Arc<Meter>>,
    spawner: Spawner,
    /// Calls that run, if the policy bounds their number per endpoint.
    pub(crate) loads: Option<Loads>,
    /// Calls that wait for an endpoint.
    pub(crate) waiting: AtomicUsize,
    /// Rings whenever a waiting call should look again.
    pub(crate) bell: Arc<Notify>,
}

/// What is behind the door.
#[derive(Debug)]
pub(crate) struct Room<T> {
    core: Core<T>,
    published: Instant,
    /// Whether too few were healthy then.
    panic: bool,
    /// Transitions that the published snapshot does not show yet.
    gathered: usize,
    /// Whether somebody was in service when events were last told.
    eligible: bool,
}

/// What was compiled ahead, if anything was; nothing if the policy panicked.
pub(crate) type Prepared<B> = Option<Option<B>>;

/// What a visit to the door has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Nothing,
    Health,
    Members,
}

impl Change {
    /// A change of somebody's health or capacity, if there was one.
    pub(crate) const fn health(changed: bool) -> Self {
        if changed { Self::Health } else { Self::Nothing }
    }
}

/// Up to this many members, every transition is compiled at once.
const SMALL: usize = 256;

/// How long the transitions of a large set are gathered. Gates close at once all the same.
const GATHER: Duration = Duration::from_millis(10);

impl<T, P: Policy> Cluster<T, P> {
    pub(crate) fn new(policy: P, settings: Settings, spawner: Spawner, now: Instant) -> Self {
        let (seed, first_ticket) = settings.draw();
        let mut core = Core::new(settings.health.clone(), settings.keep_last, seed, now);
        let events = Events::new(settings.listeners.clone());
        if events.is_heard() {
            core.listen();
        }
        let meter = Meter::new(policy.signals(), settings.health.compares(), now);
        let cluster = Self {
            snapshot: ArcSwap::from_pointee(Snapshot {
                generation: 0,
                roll: 0,
                nodes: Nodes::default(),
                eligible: Box::default(),
                shares: Box::default(),
                capacities: Box::default(),
                panic: false,
                counts: Counts::default(),
                table: None,
            }),
            deadlines: Deadlines::new(now),
            events,
            meter: meter.map(Arc::new),
            loads: policy.bound().map(Loads::new),
            policy,
            tickets: Tickets::new(first_ticket, seed),
            settings,
            door: Mutex::new(Room {
                core,
                published: now,
                panic: false,
                gathered: 0,
                eligible: false,
            }),
            progress: Progress::default(),
            spawner,
            waiting: AtomicUsize::new(0),
            bell: Arc::default(),
        };
        cluster.visit(now, |_| ((), Change::Members));
        cluster
    }

    /// Goes through the door: everything that changes what may be picked does.
    pub(crate) fn visit<R>(
        &self,
        now: Instant,
        work: impl FnOnce(&mut Core<T>) -> (R, Change),
    ) -> R {
        self.visit_with(None, now, work)
    }

    /// Goes through the door with a table that was compiled for the outcome.
    pub(crate) fn visit_with<R>(
        &self,
        table: Prepared<P::Table>,
        now: Instant,
        work: impl FnOnce(&mut Core<T>) -> (R, Change),
    ) -> R {
        let mut room = lock(&self.door);
        let (result, change) = work(&mut room.core);
        let former = self.settle(&mut room, change, table, now);
        let discarded = room.core.take_discarded();
        self.note_events(&mut room);
        drop(room);
        // Users' services are dropped here, and listeners told, outside the door.
        drop_users((former, discarded));
        if change != Change::Nothing {
            self.bell.notify_waiters();
        }
        self.events.tell();
        result
    }

    /// Sets what part of the weight counts, of the endpoints of this name.
    pub(crate) fn set_capacity(&self, name: &str, factor: f64, now: Instant) -> CapacityChange {
        let Some((capacity, change)) = capacity::fixed(factor) else {
            return CapacityChange::Refused;
        };
        let found = self.visit(now, |core| {
            let found = core.set_capacity(name, capacity, now);
            (found, if found { Change::Members } else { Change::Nothing })
        });
        if found { change } else { CapacityChange::Unknown }
    }

    /// Puts what has happened in line to be told: behind the door, so in order.
    fn note_events(&self, room: &mut Room<T>) {
        if !self.events.is_heard() {
            return;
        }
        self.events.add(room.core.take_events());
        let eligible = room.core.has_eligible();
        if std::mem::replace(&mut room.eligible, eligible) && !eligible {
            self.events.add([Event::NothingEligible { counts: room.core.counts() }]);
        }
    }

    /// Notes an error that discovery has yielded.
    pub(crate) fn discovery_failed(&self, error: BoxError) {
        let error: Arc<dyn std::error::Error + Send + Sync> = error.into();
        self.progress.failed(Arc::clone(&error));
        self.events.add([Event::DiscoveryFailed { error }]);
        self.events.tell();
    }

    /// Looks at the members and the snapshot that shows them, both of one moment.
    pub(crate) fn inspect<R>(&self, look: impl FnOnce(&Core<T>, &Snapshot<T, P::Table>) -> R) -> R {
        let room = lock(&self.door);
        look(&room.core, &self.snapshot.load())
    }

    /// Returns whether something is due at the door. Cost: one load while all are healthy.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.deadlines.is_due(now)
    }

    /// Returns when something is due at the door that was not due at an instant at which the
    /// call looked last: it may have been of no use to that call, and must hide nothing.
    pub(crate) fn next_due(&self, seen: Option<Instant>) -> Option<Instant> {
        let due = self.deadlines.next()?;
        let Some(seen) = seen.filter(|&seen| due <= seen) else { return Some(due) };
        let room = lock(&self.door);
        let publish = (room.gathered > 0).then(|| room.published + GATHER);
        let others = [publish, room.core.next_move()].into_iter().flatten();
        others.filter(|&at| at > seen).chain(room.core.next_trial_after(seen)).min()
    }

    /// Does what time has brought: moves capacities, compares endpoints with their peers,
    /// publishes what was gathered for long enough.
    pub(crate) fn catch_up(&self, now: Instant) {
        if self.deadlines.claim_moves(now) {
            self.visit(now, |core| ((), Change::health(core.advance(now))));
        } else {
            self.flush_due(now);
        }
    }

    /// Publishes what was gathered for long enough.
    pub(crate) fn flush_due(&self, now: Instant) {
        if self.deadlines.is_publication_due(now) {
            self.flush(now);
        }
    }

    /// Has the driver run, if it could not be spawned before.
    #[inline]
    pub(crate) fn launch(&self) {
        self.spawner.launch();
    }

    pub(crate) fn spawner(&self) -> &Spawner {
        &self.spawner
    }

    /// Waits until the set has `count` members.
    pub(crate) async fn ready_when(&self, count: usize) -> Result<(), Error> {
        loop {
            let heard = self.bell.notified();
            self.launch();
            // Before the snapshot, which is then at least as new.
            let (finished, cause) = (self.progress.has_finished(), self.progress.last_error());
            let counts = self.snapshot.load().counts;
            if counts.members >= count {
                return Ok(());
            }
            if finished {
                return Err(Error::unavailable(ErrorKind::DiscoveryEnded, counts, cause));
            }
            if let Some(cause) = cause {
                return Err(Error::unavailable(ErrorKind::Empty, counts, Some(cause)));
            }
            heard.await;
        }
    }

    /// Hands out the place of a trial that is due, of an endpoint that the call would take;
    /// with an owner, only of that one.
    pub(crate) fn attend(
        &self,
        now: Instant,
        owner: Option<&NodeState>,
        accepts: impl Fn(&NodeState) -> bool,
    ) -> Option<(Arc<Node<T>>, Epoch)> {
        // Not to the door for nothing: somebody may be compiling behind it.
        if !self.deadlines.is_trial_due(now)
            || owner.is_some_and(|owner| owner.standing.is_serving())
        {
            return None;
        }
        let accepts =
            |node: &NodeState| owner.is_none_or(|owner| owner.id == node.id) && accepts(node);
        self.visit(now, |core| (core.start_trial(now, accepts), Change::Nothing))
    }

    /// Tells this balancer from others.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).cast::<()>().addr()
    }

    /// Publishes what was gathered, whatever its age.
    pub(crate) fn flush(&self, now: Instant) {
        // Not to the door for nothing: a compile may be going on behind it.
        if self.deadlines.has_gathered() {
            self.publish_if(now, |room| room.gathered > 0);
        }
    }

    /// Compiles the table anew, if the one of this generation is still in use.
    pub(crate) fn renew(&self, generation: u64, now: Instant) {
        self.publish_if(now, |_| self.snapshot.load().generation == generation);
    }

    fn publish_if(&self, now: Instant, wanted: impl FnOnce(&Room<T>) -> bool) {
        let mut room = lock(&self.door);
        let former = wanted(&room).then(|| self.publish(&mut room, None, now));
        self.set_due(&room);
        drop(room);
        drop_users(former);
    }

    fn set_due(&self, room: &Room<T>) {
        let gathered = (room.gathered > 0).then(|| room.published + GATHER);
        let core = &room.core;
        self.deadlines.set(gathered, core.next_move(), core.next_trial());
    }
}

pub(crate) type Former<T, P> = Arc<Snapshot<T, <P as Policy>::Table>>;

impl<T, P: Policy> Drop for Cluster<T, P> {
    /// Has everybody who listens notice.
    fn drop(&mut self) {
        self.bell.notify_waiters();
    }
}

impl<T, P: Policy> fmt::Debug for Cluster<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("progress", &self.progress).finish_non_exhaustive()
    }
}
