//! Drains the discovery stream into the roster.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    hash::Hash,
    pin::{Pin, pin},
    sync::{Arc, Weak},
    task::{Context, Poll},
};

use pin_project_lite::pin_project;
use tokio::{sync::oneshot, task::unconstrained, time::Instant};
use tower::discover::{Change, Discover};

use crate::{
    discover::roster::Roster,
    endpoint::Endpoint,
    error::BoxError,
    hub::{self, Hub},
    node::Door,
    policy::Policy,
};

pin_project! {
    /// Follows discovery: a future that applies every change as it comes.
    ///
    /// [`BalanceLayer::new`](crate::BalanceLayer::new) spawns it; those who called
    /// [`pair`](crate::BalanceLayer::pair) have to. It ends when the stream does, or when
    /// the last balancer is dropped. Dropped early, or ended by a panic of the stream or of a
    /// key's `Display`, it leaves the set as it is, which the
    /// [statistics](crate::Stats) show.
    ///
    /// Changes are applied in batches: all that are ready, up to 65,536, become one
    /// snapshot; and no poll takes more than 1,024 of them.
    #[must_use = "endpoints are only discovered while the driver is polled"]
    pub struct Driver<D: Discover, T, P: Policy> {
        #[pin]
        stream: D,
        link: Link<T, P>,
        closed: oneshot::Receiver<()>,
        keys: HashMap<D::Key, u64>,
        batch: Vec<Change<D::Key, Named<T>>>,
    }
}

/// The driver's end of the hub. When it is dropped, discovery is over.
struct Link<T, P: Policy> {
    hub: Weak<Hub<T, P>>,
    ended: bool,
}

/// An endpoint with its name, which is made outside the door: it is the user's code.
type Named<T> = (Arc<str>, Endpoint<T>);

/// How many changes one poll takes from the stream before it lets others run.
const POLL: usize = 1_024;

/// How many changes are gathered at most before they are published.
const BATCH: usize = 65_536;

impl<D: Discover, T, P: Policy> Driver<D, T, P> {
    pub(crate) fn new(stream: D, hub: &Arc<Hub<T, P>>, closed: oneshot::Receiver<()>) -> Self {
        let link = Link { hub: Arc::downgrade(hub), ended: false };
        Self { stream, link, closed, keys: HashMap::new(), batch: Vec::new() }
    }
}

impl<D, K, T, P> Future for Driver<D, T, P>
where
    D: Discover<Key = K, Service = Endpoint<T>>,
    D::Error: Into<BoxError>,
    K: Hash + Eq + Clone + fmt::Display,
    T: Send + Sync + 'static,
    P: Policy,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        if this.link.ended || Pin::new(&mut *this.closed).poll(cx).is_ready() {
            return Poll::Ready(());
        }
        for _ in 0..POLL {
            // Unconstrained: a channel that yields for fairness would cut batches short,
            // and the bound of this loop keeps the task fair.
            let next = pin!(unconstrained(std::future::poll_fn(|cx| {
                this.stream.as_mut().poll_discover(cx)
            })));
            match next.poll(cx) {
                Poll::Ready(Some(Ok(change))) => {
                    this.batch.push(named(change));
                    if this.batch.len() >= BATCH {
                        this.link.apply(this.keys, this.batch);
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    this.link.apply(this.keys, this.batch);
                    this.link.failed(error.into());
                }
                Poll::Ready(None) => {
                    this.link.apply(this.keys, this.batch);
                    this.link.finish(false);
                    return Poll::Ready(());
                }
                Poll::Pending => {
                    this.link.apply(this.keys, this.batch);
                    return Poll::Pending;
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<T: Send + Sync + 'static, P: Policy> Link<T, P> {
    /// Applies a batch as if its changes came one by one, and publishes once.
    fn apply<K>(&self, keys: &mut HashMap<K, u64>, batch: &mut Vec<Change<K, Named<T>>>)
    where
        K: Hash + Eq,
    {
        let Some(hub) = self.hub.upgrade().filter(|_| !batch.is_empty()) else { return };
        let door = Arc::downgrade(&hub) as Weak<dyn Door>;
        let now = Instant::now();
        hub.visit(now, |roster| {
            for change in batch.drain(..) {
                apply(roster, keys, change, &door, now);
            }
            roster.settle(now);
            ((), hub::Change::Members)
        });
        // After the publication, so that whoever knows of the update sees what it brought.
        hub.progress.updated();
        hub.bell.notify_waiters();
        batch.shrink_to(POLL);
    }
}

fn named<K: fmt::Display, T>(change: Change<K, Endpoint<T>>) -> Change<K, Named<T>> {
    match change {
        Change::Insert(key, endpoint) => {
            let name = key.to_string().into();
            Change::Insert(key, (name, endpoint))
        }
        Change::Remove(key) => Change::Remove(key),
    }
}

fn apply<K: Hash + Eq, T>(
    roster: &mut Roster<T>,
    keys: &mut HashMap<K, u64>,
    change: Change<K, Named<T>>,
    door: &Weak<dyn Door>,
    now: Instant,
) {
    match change {
        Change::Insert(key, (name, endpoint)) => match keys.get(&key) {
            Some(&id) => roster.replace(id, endpoint),
            None => {
                let id = roster.insert(name, endpoint, Weak::clone(door), now);
                keys.insert(key, id);
            }
        },
        Change::Remove(key) => {
            if let Some(id) = keys.remove(&key) {
                roster.remove(id);
            }
        }
    }
}

impl<T, P: Policy> Link<T, P> {
    fn failed(&self, error: BoxError) {
        if let Some(hub) = self.hub.upgrade() {
            hub.progress.failed(error);
            hub.bell.notify_waiters();
        }
    }

    fn finish(&mut self, stopped: bool) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        if let Some(hub) = self.hub.upgrade() {
            hub.progress.finish(stopped);
            hub.bell.notify_waiters();
        }
    }
}

impl<T, P: Policy> Drop for Link<T, P> {
    fn drop(&mut self) {
        self.finish(true);
    }
}

impl<D: Discover, T, P: Policy> fmt::Debug for Driver<D, T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("ended", &self.link.ended).finish_non_exhaustive()
    }
}
