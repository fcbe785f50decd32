//! Events of endpoints and of the set, and their delivery to listeners.

use std::{
    collections::VecDeque,
    error::Error as StdError,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, TryLockError},
    time::Duration,
};

use crate::{endpoint::Labels, error::Counts, util::lock};

/// A change of an endpoint or of the set.
///
/// Each event is delivered once to the listeners of [`Builder::on_event`](crate::Builder::on_event).
/// The events of one endpoint come in this order:
///
/// ```text
/// Joined ─ Ejected ─ OnTrial ─ Recovered ─ Left
///             ↑         │           │
///             └─────────┴───────────┘     at any time: WeightChanged, Left
/// ```
///
/// - `Ejected` comes again, without `Recovered` in between, after a failed trial, and when active
///   checks fail for an endpoint that is already ejected for its calls.
/// - `OnTrial` comes for each trial. There are several if more than one trial must succeed, or if a
///   trial was neutral.
/// - `Recovered` comes once for any number of `Ejected`. There is no trial before it if checks pass,
///   if a call succeeds in panic mode, or if the limit of ejections has become lower.
/// - `Left` is the last event, also of an ejected endpoint.
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
    /// An endpoint was ejected, or its ejection was extended.
    #[non_exhaustive]
    Ejected {
        /// Its name.
        endpoint: Arc<str>,
        /// The time until a call may be the trial; none if active checks must pass first.
        ///
        /// The endpoint stays ejected until [`Recovered`](Self::Recovered).
        returns_in: Option<Duration>,
        /// Why it was ejected.
        cause: Cause,
    },
    /// A trial of an ejected endpoint begins.
    #[non_exhaustive]
    OnTrial {
        /// Its name.
        endpoint: Arc<str>,
    },
    /// An ejected endpoint has recovered.
    #[non_exhaustive]
    Recovered {
        /// Its name.
        endpoint: Arc<str>,
    },
    /// The weight or the effective weight of an endpoint has changed.
    ///
    /// There are no events for the steps of a slow start, and none for the steps in which the
    /// capacity rises after a push-back.
    #[non_exhaustive]
    WeightChanged {
        /// Its name.
        endpoint: Arc<str>,
        /// The set weight.
        weight: u32,
        /// The effective weight: the set weight times the capacity.
        effective_weight: f64,
        /// What changed it.
        cause: WeightCause,
    },
    /// Discovery has removed an endpoint.
    #[non_exhaustive]
    Left {
        /// Its name.
        endpoint: Arc<str>,
    },
    /// The source of endpoints has yielded an error. The set does not change.
    #[non_exhaustive]
    DiscoveryFailed {
        /// The error.
        error: Arc<dyn StdError + Send + Sync>,
    },
    /// No healthy endpoint is left: the set is empty, or all are drained or ejected.
    ///
    /// [`Health::panic_mode`](crate::Health::panic_mode) decides what happens to calls. The event comes
    /// again only after an endpoint was healthy.
    #[non_exhaustive]
    NothingEligible {
        /// How many members there are, and how many of them are ejected or drained.
        counts: Counts,
    },
}

/// Why an endpoint was ejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// Too many of its calls failed in a row.
    ConsecutiveFailures,
    /// A greater share of its calls failed than of its peers' calls.
    FailureRate,
    /// A greater share of its calls was slow than of its peers' calls.
    Latency,
    /// Its trial failed.
    FailedTrial,
    /// Active checks failed.
    Checks,
}

/// What changed a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WeightCause {
    /// Discovery has set another weight.
    Discovery,
    /// The program has called [`Balance::set_capacity`](crate::Balance::set_capacity).
    Capacity,
    /// The endpoint pushed back.
    Overload,
    /// The endpoint was slower than its peers for several intervals, or no longer is.
    Latency,
}

/// A function that takes events.
#[derive(Clone)]
pub(crate) struct Listener(Arc<dyn Fn(&Event) + Send + Sync>);

/// The queue of events, and the listeners to which they are delivered.
///
/// Events are delivered in the order of the queue, one at a time. A listener may call the balancer,
/// because the delivery holds no lock that a call needs.
#[derive(Debug, Default)]
pub(crate) struct Events {
    listeners: Vec<Listener>,
    queue: Mutex<VecDeque<Event>>,
    /// Held by the thread that delivers.
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
    pub(crate) fn new(listeners: Vec<Listener>) -> Self {
        Self {
            listeners,
            ..Self::default()
        }
    }

    /// Returns whether there is a listener.
    pub(crate) const fn has_listeners(&self) -> bool {
        !self.listeners.is_empty()
    }

    /// Adds events to the queue. The cluster calls it under its lock, which decides the order.
    pub(crate) fn add(&self, events: impl IntoIterator<Item = Event>) {
        if self.has_listeners() {
            lock(&self.queue).extend(events);
        }
    }

    /// Delivers the events of the queue, unless another thread is delivering them.
    pub(crate) fn deliver(&self) {
        while self.has_listeners() && !lock(&self.queue).is_empty() {
            let _delivering = match self.delivering.try_lock() {
                Ok(delivering) => delivering,
                Err(TryLockError::Poisoned(delivering)) => delivering.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            while let Some(event) = self.next() {
                self.deliver_one(&event);
            }
        }
    }

    /// Calls each listener, also after one has panicked: the panic hook has reported that.
    fn deliver_one(&self, event: &Event) {
        for Listener(listener) in &self.listeners {
            let _panicked = catch_unwind(AssertUnwindSafe(|| listener(event)));
        }
    }

    fn next(&self) -> Option<Event> {
        lock(&self.queue).pop_front()
    }
}
