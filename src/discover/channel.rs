//! A set of endpoints that the program changes.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    convert::Infallible,
    fmt,
    hash::Hash,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use futures_core::Stream;
use tower::discover::Change;

use crate::{
    endpoint::Endpoint,
    util::{is_roomy, lock},
};

/// Creates a set of endpoints that the program changes through a handle.
///
/// Changes do not block and are not lost. Pending changes are merged by key, so that memory is
/// bounded by the number of keys in use. A change takes effect when the driver's task runs next,
/// not before the method returns. The stream ends when the last handle is dropped.
///
/// ```
/// use counterpoise::{discover, Direct, Endpoint};
///
/// let (handle, changes) = discover::channel();
/// handle.insert("a", Endpoint::new(Direct("service a")));
/// handle.set([("b", Endpoint::new(Direct("service b")).weight(2))]);
/// handle.remove(&"b");
/// # drop(changes);
/// ```
#[must_use]
pub fn channel<K: Hash + Eq + Clone, T>() -> (Handle<K, T>, Changes<K, T>) {
    let shared = Arc::new(Mutex::new(Shared {
        members: HashSet::new(),
        yielded: HashSet::new(),
        pending: HashMap::new(),
        order: BTreeMap::new(),
        changes: 0,
        handles: 1,
        closed: false,
        waker: None,
    }));
    (
        Handle {
            shared: Arc::clone(&shared),
        },
        Changes { shared },
    )
}

/// Changes the set of endpoints of a [`channel`]; clones change the same set.
pub struct Handle<K: Hash + Eq + Clone, T> {
    shared: Arc<Mutex<Shared<K, T>>>,
}

/// The stream of changes of a [`channel`].
pub struct Changes<K, T> {
    shared: Arc<Mutex<Shared<K, T>>>,
}

struct Shared<K, T> {
    /// The set after all pending changes.
    members: HashSet<K>,
    /// The set after the changes that the stream has yielded.
    yielded: HashSet<K>,
    /// The changes that the stream has not yielded yet, by key.
    pending: HashMap<K, Pending<T>>,
    /// The keys of `pending`, by the number of their first change.
    order: BTreeMap<u64, K>,
    /// The number of the last change.
    changes: u64,
    handles: usize,
    /// Whether the stream was dropped.
    closed: bool,
    waker: Option<Waker>,
}

/// The pending changes of one key: a removal, then an insertion, or one of them.
struct Pending<T> {
    number: u64,
    remove: bool,
    insert: Option<Endpoint<T>>,
}

impl<K: Hash + Eq + Clone, T> Handle<K, T> {
    /// Inserts an endpoint.
    ///
    /// If the set has the key, the endpoint's target, weight, tier, zone and labels are replaced;
    /// its health and load stay.
    pub fn insert(&self, key: K, endpoint: Endpoint<T>) {
        self.change(|shared| Vec::from_iter(shared.insert(key, endpoint)));
    }

    /// Removes an endpoint; its running calls may finish.
    pub fn remove(&self, key: &K) {
        self.change(|shared| Vec::from_iter(shared.remove(key)));
    }

    /// Replaces the whole set: inserts these endpoints and removes all others.
    ///
    /// Keys that stay are replaced as by [`insert`](Self::insert), so their health and load stay.
    /// Cost: O(n) of the old and the new set.
    pub fn set(&self, endpoints: impl IntoIterator<Item = (K, Endpoint<T>)>) {
        let endpoints: Vec<_> = endpoints.into_iter().collect();
        self.change(|shared| {
            let staying: HashSet<_> = endpoints.iter().map(|(key, _)| key.clone()).collect();
            let leaving: Vec<_> = shared.members.difference(&staying).cloned().collect();
            let mut replaced: Vec<_> = leaving
                .iter()
                .filter_map(|key| shared.remove(key))
                .collect();
            for (key, endpoint) in endpoints {
                replaced.extend(shared.insert(key, endpoint));
            }
            replaced
        });
    }

    /// Returns whether the stream was dropped, as it is after the balancer. Changes then have no
    /// effect.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        lock(&self.shared).closed
    }

    /// Applies a change and wakes the stream. Replaced endpoints are dropped outside the lock,
    /// because their drop is user code.
    fn change(&self, change: impl FnOnce(&mut Shared<K, T>) -> Vec<Endpoint<T>>) {
        let mut shared = lock(&self.shared);
        if shared.closed {
            return;
        }
        let replaced = change(&mut shared);
        shared.trim();
        let waker = shared.waker.take();
        drop(shared);
        drop(replaced);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<K: Hash + Eq + Clone, T> Shared<K, T> {
    fn insert(&mut self, key: K, endpoint: Endpoint<T>) -> Option<Endpoint<T>> {
        self.members.insert(key.clone());
        let number = self.changes + 1;
        let pending = self.pending(&key);
        let replaced = pending.insert.replace(endpoint);
        if pending.remove && replaced.is_none() {
            // The key joins again, after all keys that have joined since its removal.
            let former = std::mem::replace(&mut pending.number, number);
            self.order.remove(&former);
            self.order.insert(number, key);
            self.changes = number;
        }
        replaced
    }

    fn remove(&mut self, key: &K) -> Option<Endpoint<T>> {
        if !self.members.remove(key) {
            return None;
        }
        if self.yielded.contains(key) {
            let pending = self.pending(key);
            pending.remove = true;
            return pending.insert.take();
        }
        // The stream has not yielded the insertion, so it yields neither change.
        let unseen = self.pending.remove(key)?;
        self.order.remove(&unseen.number);
        unseen.insert
    }

    /// Frees memory that the present set does not need.
    fn trim(&mut self) {
        if is_roomy(self.members.len(), self.members.capacity()) {
            self.members.shrink_to_fit();
        }
        if is_roomy(self.yielded.len(), self.yielded.capacity()) {
            self.yielded.shrink_to_fit();
        }
        if is_roomy(self.pending.len(), self.pending.capacity()) {
            self.pending.shrink_to_fit();
        }
    }

    fn pending(&mut self, key: &K) -> &mut Pending<T> {
        self.pending.entry(key.clone()).or_insert_with(|| {
            self.changes += 1;
            self.order.insert(self.changes, key.clone());
            Pending {
                number: self.changes,
                remove: false,
                insert: None,
            }
        })
    }

    /// Takes the next change; a removal comes before the insertion of the same key.
    fn next(&mut self) -> Option<Change<K, Endpoint<T>>> {
        loop {
            let entry = self.order.first_entry()?;
            let key = entry.get().clone();
            let Some(pending) = self.pending.get_mut(&key) else {
                entry.remove();
                continue;
            };
            if std::mem::take(&mut pending.remove) {
                self.yielded.remove(&key);
                return Some(Change::Remove(key));
            }
            entry.remove();
            if let Some(endpoint) = self.pending.remove(&key).and_then(|last| last.insert) {
                self.yielded.insert(key.clone());
                return Some(Change::Insert(key, endpoint));
            }
        }
    }
}

impl<K: Hash + Eq + Clone, T> Stream for Changes<K, T> {
    type Item = Result<Change<K, Endpoint<T>>, Infallible>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut shared = lock(&self.shared);
        if let Some(change) = shared.next() {
            return Poll::Ready(Some(Ok(change)));
        }
        shared.trim();
        if shared.handles == 0 {
            return Poll::Ready(None);
        }
        shared.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<K: Hash + Eq + Clone, T> Clone for Handle<K, T> {
    fn clone(&self) -> Self {
        lock(&self.shared).handles += 1;
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<K: Hash + Eq + Clone, T> Drop for Handle<K, T> {
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        shared.handles -= 1;
        let waker = if shared.handles == 0 {
            shared.waker.take()
        } else {
            None
        };
        drop(shared);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<K, T> Drop for Changes<K, T> {
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        shared.closed = true;
        let pending = std::mem::take(&mut shared.pending);
        (shared.members, shared.yielded) = (HashSet::new(), HashSet::new());
        shared.order = BTreeMap::new();
        drop(shared);
        drop(pending);
    }
}

impl<K: Hash + Eq + Clone, T> fmt::Debug for Handle<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pending = lock(&self.shared).pending.len();
        f.debug_struct("Handle")
            .field("pending", &pending)
            .finish_non_exhaustive()
    }
}

impl<K, T> fmt::Debug for Changes<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pending = lock(&self.shared).pending.len();
        f.debug_struct("Changes")
            .field("pending", &pending)
            .finish_non_exhaustive()
    }
}
