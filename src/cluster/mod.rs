//! The state that all clones of a balancer share: the set of endpoints, and its updates.
//!
//! The [core] decides under one lock. The cluster applies its effects, publishes the next snapshot
//! by one atomic store, and wakes the calls that wait. It does not depend on sources of endpoints,
//! checks or clients.

pub(crate) mod batch;
pub(crate) mod core;
mod deadlines;
pub(crate) mod discovery;
pub(crate) mod node;
pub(crate) mod nodes;
pub(crate) mod prepare;
pub(crate) mod publish;
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

use self::{
    core::Core, deadlines::Deadlines, discovery::Progress, node::Node, nodes::Changes,
    settings::Settings, snapshot::Snapshot, spawn::Spawner,
};
use crate::{
    error::{BoxError, Counts, Error, ErrorKind},
    event::{Event, Events},
    load::{Meter, bounded::Bounded},
    policy::{Needs, Policy, ticket::Tickets},
    util::lock,
};

/// The state that all clones of a balancer share.
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
    /// Measures calls, if the policy or health needs it.
    pub(crate) meter: Option<Arc<Meter>>,
    spawner: Spawner,
    /// The running calls of each endpoint, if the policy bounds them.
    pub(crate) bounded: Option<Arc<Bounded>>,
    /// How many calls wait for an endpoint.
    pub(crate) waiting: AtomicUsize,
    /// Wakes the calls that wait, after each change.
    pub(crate) changed: Arc<Notify>,
}

/// The state under the lock.
#[derive(Debug)]
struct Locked<T> {
    core: Core,
    /// The members' nodes, in the order of the core's members.
    nodes: Vec<Arc<Node<T>>>,
    /// How the nodes differ from those of the published snapshot.
    unpublished: Changes,
    /// Nodes that have left or were replaced. Their targets are dropped outside the lock.
    discarded: Vec<Arc<Node<T>>>,
    /// When the last snapshot was published.
    published: Instant,
    /// Whether too few endpoints were healthy at that instant.
    panic: bool,
    /// How many transitions are not in the published snapshot yet.
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
                core: Core::new(
                    health,
                    settings.keep_last,
                    seed,
                    events.has_listeners(),
                    now,
                ),
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

    /// Returns a number that is unique to this balancer.
    pub(crate) fn balancer(&self) -> usize {
        std::ptr::from_ref(self).cast::<()>().addr()
    }

    /// Spawns the driver, if there was no runtime before.
    #[inline]
    pub(crate) fn spawn_driver(&self) {
        self.spawner.spawn_pending();
    }

    pub(crate) fn spawner(&self) -> &Spawner {
        &self.spawner
    }

    /// Records an error of the discovery stream.
    pub(crate) fn discovery_failed(&self, error: BoxError) {
        let error: Arc<dyn std::error::Error + Send + Sync> = error.into();
        self.progress.failed(Arc::clone(&error));
        self.events.add([Event::DiscoveryFailed { error }]);
        self.events.deliver();
        self.changed.notify_waiters();
    }

    /// Reads the core and the snapshot under the lock, and whether the snapshot has all members.
    pub(crate) fn inspect<R>(
        &self,
        read: impl FnOnce(&Core, &Snapshot<T, P::Picker>, bool) -> R,
    ) -> R {
        let locked = lock(&self.locked);
        read(
            &locked.core,
            &self.snapshot.load(),
            locked.unpublished.is_empty(),
        )
    }

    /// Waits until the set has at least `count` members.
    pub(crate) async fn ready_when(&self, count: usize) -> Result<(), Error> {
        loop {
            let changed = self.changed.notified();
            self.spawn_driver();
            // Read before the snapshot, which is then at least as new.
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

    /// Returns the error for a set without an endpoint that takes the call.
    pub(crate) fn shortage(&self, counts: Counts) -> Error {
        if counts.members == 0 {
            return self.no_endpoints(counts);
        }
        let kind = if counts.drained == counts.members {
            ErrorKind::Drained
        } else if counts.ejected > 0 {
            ErrorKind::Ejected
        } else if self.progress.is_unbuilt() {
            return self.no_picker();
        } else {
            // All endpoints are in service, and none was ready for the call.
            ErrorKind::ReadyTimeout
        };
        Error::unavailable(kind, counts, None)
    }

    fn no_endpoints(&self, counts: Counts) -> Error {
        if self.progress.is_unbuilt() {
            return self.no_picker();
        }
        let kind = if self.progress.has_finished() {
            ErrorKind::DiscoveryEnded
        } else {
            ErrorKind::Empty
        };
        Error::unavailable(kind, counts, self.progress.last_error())
    }

    /// Returns the error of a policy that has not built a picker yet.
    pub(crate) fn no_picker(&self) -> Error {
        let message = self.progress.last_panic().unwrap_or_default();
        Error::policy(format!("it panicked while building its picker: {message}"))
    }
}

impl<T, P: Policy> Drop for Cluster<T, P> {
    /// Wakes the futures that hold a weak reference, so that they end.
    fn drop(&mut self) {
        self.changed.notify_waiters();
    }
}

impl<T, P: Policy> fmt::Debug for Cluster<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("progress", &self.progress)
            .finish_non_exhaustive()
    }
}
