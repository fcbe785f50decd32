//! The set of endpoints and everything that changes it: what all clones of a balancer share.
//!
//! The [core] decides under one lock; the cluster applies its effects, publishes the next
//! snapshot by one atomic store, and wakes the calls that wait. It knows no source of endpoints,
//! no check and no client.

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
mod update;

use std::{
    fmt,
    sync::{Arc, Mutex, atomic::AtomicUsize},
};

use arc_swap::ArcSwap;
use tokio::{sync::Notify, time::Instant};

pub(crate) use self::publish::Prepared;
use self::{
    core::Core, deadlines::Deadlines, discovery::Progress, node::Node, nodes::Changes,
    publish::GATHER, settings::Settings, snapshot::Snapshot, spawn::Spawner,
};
use crate::{
    error::{BoxError, Counts, Error, ErrorKind},
    event::{Event, Events},
    load::{Meter, bounded::Bounded},
    policy::{Needs, Policy, ticket::Tickets},
    util::lock,
};

/// What all clones of a balancer share.
pub(crate) struct Cluster<T, P: Policy> {
    pub(crate) snapshot: ArcSwap<Snapshot<T, P::Picker>>,
    deadlines: Deadlines,
    pub(crate) policy: P,
    needs: Needs,
    pub(crate) tickets: Tickets,
    pub(crate) settings: Settings,
    locked: Mutex<Locked<T>>,
    pub(crate) progress: Progress,
    events: Events,
    /// What is measured of calls, if anything is.
    pub(crate) meter: Option<Arc<Meter>>,
    spawner: Spawner,
    /// Calls that run, if the policy bounds their number for each endpoint.
    pub(crate) bounded: Option<Arc<Bounded>>,
    /// Calls that wait for an endpoint.
    pub(crate) waiting: AtomicUsize,
    /// Wakes calls that wait, when they may find an endpoint or an error.
    pub(crate) changed: Arc<Notify>,
}

/// What is under the lock.
#[derive(Debug)]
struct Locked<T> {
    core: Core,
    /// The members' nodes, in the order of the core's members.
    nodes: Vec<Arc<Node<T>>>,
    /// How the nodes differ from those of the published snapshot.
    unpublished: Changes,
    /// Nodes that have left or were replaced: their services are dropped outside the lock.
    discarded: Vec<Arc<Node<T>>>,
    /// When the snapshot was published.
    published: Instant,
    /// Whether too few endpoints were healthy then.
    panic: bool,
    /// Transitions that the published snapshot does not show yet.
    gathered: usize,
}

impl<T, P: Policy> Cluster<T, P> {
    pub(crate) fn new(policy: P, settings: Settings, spawner: Spawner, now: Instant) -> Self {
        let (seed, first_ticket) = settings.draw();
        let events = Events::new(settings.listeners.clone());
        let health = settings.health.clone();
        let needs = policy.needs();
        let meter = Meter::new(needs.signals, health.compares(), now);
        let cluster = Self {
            snapshot: ArcSwap::from_pointee(Snapshot::empty()),
            deadlines: Deadlines::new(now),
            meter: meter.map(Arc::new),
            bounded: needs.bound.map(|factor| Arc::new(Bounded::new(factor))),
            needs,
            policy,
            tickets: Tickets::new(first_ticket, seed),
            locked: Mutex::new(Locked {
                core: Core::new(health, settings.keep_last, seed, events.has_listeners(), now),
                nodes: Vec::new(),
                unpublished: Changes::default(),
                discarded: Vec::new(),
                published: now,
                panic: false,
                gathered: 0,
            }),
            events,
            settings,
            progress: Progress::default(),
            spawner,
            waiting: AtomicUsize::new(0),
            changed: Arc::default(),
        };
        cluster.publish_first(now);
        cluster
    }

    /// Returns a number that tells this balancer from others.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).cast::<()>().addr()
    }

    /// Spawns the driver, if that could not be done before.
    #[inline]
    pub(crate) fn spawn_driver(&self) {
        self.spawner.spawn_pending();
    }

    pub(crate) fn spawner(&self) -> &Spawner {
        &self.spawner
    }

    /// Notes an error that discovery has yielded.
    pub(crate) fn discovery_failed(&self, error: BoxError) {
        let error: Arc<dyn std::error::Error + Send + Sync> = error.into();
        self.progress.failed(Arc::clone(&error));
        self.events.add([Event::DiscoveryFailed { error }]);
        self.events.deliver();
        self.changed.notify_waiters();
    }

    /// Reads the core and the snapshot that shows it, both of one moment. Also says whether the
    /// snapshot shows all members.
    pub(crate) fn inspect<R>(
        &self,
        read: impl FnOnce(&Core, &Snapshot<T, P::Picker>, bool) -> R,
    ) -> R {
        let locked = lock(&self.locked);
        read(&locked.core, &self.snapshot.load(), locked.unpublished.is_empty())
    }

    /// Returns when something is due that was not due at an instant at which the call looked
    /// last: that may have been of no use to it, and hides nothing.
    pub(crate) fn next_due(&self, seen: Option<Instant>) -> Option<Instant> {
        let due = self.deadlines.next()?;
        let Some(seen) = seen.filter(|&seen| due <= seen) else { return Some(due) };
        let locked = lock(&self.locked);
        let publication = (locked.gathered > 0).then(|| locked.published + GATHER);
        let others = [publication, locked.core.next_move()].into_iter().flatten();
        others.filter(|&at| at > seen).chain(locked.core.next_trial_after(seen)).min()
    }

    /// Waits until the set has `count` members.
    pub(crate) async fn ready_when(&self, count: usize) -> Result<(), Error> {
        loop {
            let changed = self.changed.notified();
            self.spawn_driver();
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
            changed.await;
        }
    }

    /// Returns the error for a set of which nothing may be picked.
    pub(crate) fn shortage(&self, counts: Counts) -> Error {
        let Counts { members, ejected, drained, .. } = counts;
        let kind = if members == 0 && !self.progress.is_unbuilt() {
            let finished = self.progress.has_finished();
            if finished { ErrorKind::DiscoveryEnded } else { ErrorKind::Empty }
        } else if members > 0 && members == drained {
            ErrorKind::Drained
        } else if ejected > 0 {
            ErrorKind::Ejected
        } else if self.progress.is_unbuilt() {
            return self.no_picker();
        } else {
            // All are in service; none was ready for this call.
            ErrorKind::ReadyTimeout
        };
        let cause = if members == 0 { self.progress.last_error() } else { None };
        Error::unavailable(kind, counts, cause)
    }

    /// Returns the error for a policy that has built no picker yet.
    pub(crate) fn no_picker(&self) -> Error {
        let words = self.progress.last_panic().unwrap_or_default();
        Error::policy(format!("it panicked while building its picker: {words}"))
    }
}

impl<T, P: Policy> Drop for Cluster<T, P> {
    /// Ends the futures that follow the balancer.
    fn drop(&mut self) {
        self.changed.notify_waiters();
    }
}

impl<T, P: Policy> fmt::Debug for Cluster<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("progress", &self.progress).finish_non_exhaustive()
    }
}
