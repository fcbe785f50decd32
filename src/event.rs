//! What happens to endpoints, told to whoever listens: each thing once, in order.

use std::{
    collections::VecDeque,
    error::Error as StdError,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, TryLockError},
    time::Duration,
};

use crate::{endpoint::Labels, error::Counts, util::lock};

/// Something that happened to an endpoint, or to the set.
///
/// Told to [`Builder::on_event`](crate::Builder::on_event). Of one endpoint in this order:
///
/// ```text
/// Joined ─ Ejected ─ OnTrial ─ Recovered ─ Left
///             ↑         │           │
///             └─────────┴───────────┘     at any time: WeightChanged, Left
/// ```
///
/// - `Ejected` comes again without `Recovered` before it when a trial has failed, and when checks
///   fail of an endpoint that is out for its calls.
/// - `OnTrial` comes for each trial: several times if more than one must succeed, or one said
///   nothing.
/// - `Recovered` comes once, whatever was told before, and without a trial if checks pass, a call
///   succeeds while health is ignored, or the limit of ejections has sunk.
/// - After `Left` nothing more is told, whether it was out or not.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// Discovery has added an endpoint.
    #[non_exhaustive]
    Joined {
        /// Its name: the `Display` form of its key.
        endpoint: Arc<str>,
        /// Its weight.
        weight: u32,
        /// Its tier.
        tier: u32,
        /// Its zone, if it has one.
        zone: Option<Arc<str>>,
        /// Its labels.
        labels: Labels,
    },
    /// An endpoint was taken out of service.
    #[non_exhaustive]
    Ejected {
        /// Its name.
        endpoint: Arc<str>,
        /// After what time a call may try it, if one comes then; none if checks have to pass
        /// first. It is back with [`Recovered`](Self::Recovered), not before.
        returns_in: Option<Duration>,
        /// What for.
        cause: Cause,
    },
    /// One call tries an ejected endpoint.
    #[non_exhaustive]
    OnTrial {
        /// Its name.
        endpoint: Arc<str>,
    },
    /// An ejected endpoint is back in service.
    #[non_exhaustive]
    Recovered {
        /// Its name.
        endpoint: Arc<str>,
    },
    /// An endpoint's weight has changed, or the part of it that counts. The steps of a slow
    /// start, and those in which the rest comes back after a push-back, are not told.
    #[non_exhaustive]
    WeightChanged {
        /// Its name.
        endpoint: Arc<str>,
        /// The weight that is set.
        weight: u32,
        /// The weight that counts.
        effective_weight: f64,
        /// Who changed it.
        cause: WeightCause,
    },
    /// Discovery has removed an endpoint.
    #[non_exhaustive]
    Left {
        /// Its name.
        endpoint: Arc<str>,
    },
    /// The stream of discovery yielded an error. The set stays as it is.
    #[non_exhaustive]
    DiscoveryFailed {
        /// The error.
        error: Arc<dyn StdError + Send + Sync>,
    },
    /// No endpoint is in service any more: there is none, or all are drained or ejected. What
    /// calls do then: see [`Health::panic_mode`](crate::Health::panic_mode). Told again only after
    /// one was in service.
    #[non_exhaustive]
    NothingEligible {
        /// How many there are, and what keeps them out.
        counts: Counts,
    },
}

/// Why an endpoint was ejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// It failed too many times in a row.
    ConsecutiveFailures,
    /// It failed more often than its peers.
    FailureRate,
    /// It was slow more often than its peers.
    Latency,
    /// The call that tried it failed.
    FailedTrial,
    /// Active checks failed.
    Checks,
}

/// What changed a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WeightCause {
    /// Discovery told another weight.
    Discovery,
    /// [`Balance::set_capacity`](crate::Balance::set_capacity).
    Capacity,
    /// The endpoint pushed back.
    Overload,
    /// The endpoint was slower than its peers for long, or no longer is.
    Latency,
}

/// Whoever listens.
#[derive(Clone)]
pub(crate) struct Listener(Arc<dyn Fn(&Event) + Send + Sync>);

/// Tells events in the order in which they came, one at a time, and never under a lock that
/// a listener could want.
#[derive(Debug, Default)]
pub(crate) struct Events {
    listeners: Vec<Listener>,
    queue: Mutex<VecDeque<Event>>,
    /// Held by whoever is delivering.
    delivering: Mutex<()>,
}

impl Listener {
    pub(crate) fn new(listener: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(listener))
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

impl Events {
    pub(crate) fn new(mut listeners: Vec<Listener>) -> Self {
        #[cfg(feature = "tracing")]
        listeners.insert(0, Listener::new(crate::observe::tracing::trace));
        listeners.shrink_to_fit();
        Self { listeners, ..Self::default() }
    }

    /// Returns whether anybody listens.
    pub(crate) const fn has_listeners(&self) -> bool {
        !self.listeners.is_empty()
    }

    /// Adds events behind all that came before. Called where their order is decided.
    pub(crate) fn add(&self, events: impl IntoIterator<Item = Event>) {
        if self.has_listeners() {
            lock(&self.queue).extend(events);
        }
    }

    /// Tells what was added, unless somebody is at it, who then tells this, too.
    pub(crate) fn deliver(&self) {
        while self.has_listeners() && !lock(&self.queue).is_empty() {
            let _delivering = match self.delivering.try_lock() {
                Ok(delivering) => delivering,
                Err(TryLockError::Poisoned(delivering)) => delivering.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            while let Some(event) = self.next() {
                for Listener(listener) in &self.listeners {
                    // The panic hook has reported it; the others want to hear all the same.
                    let _panicked = catch_unwind(AssertUnwindSafe(|| listener(&event)));
                }
            }
        }
    }

    fn next(&self) -> Option<Event> {
        lock(&self.queue).pop_front()
    }
}
