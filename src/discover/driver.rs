//! Drains the discovery stream into the cluster.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    hash::Hash,
    pin::{Pin, pin},
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::{
    runtime::Handle,
    sync::oneshot,
    task::{JoinHandle, unconstrained},
    time::Instant,
};
use tower::discover::{Change, Discover};

use crate::{
    cluster::{
        Cluster, Prepared,
        batch::{Batch, Recorder},
    },
    discover::source::Source,
    endpoint::Endpoint,
    error::BoxError,
    health::evidence::Limits,
    load::Meter,
    policy::Policy,
    util::is_roomy,
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
        batch: Batch<T>,
        preparing: Option<Preparing<T, P::Picker>>,
        event: Option<Event>,
    }
}

/// A batch whose picker is built on another thread.
struct Preparing<T, B> {
    batch: Batch<T>,
    picker: JoinHandle<Prepared<B>>,
}

/// What the stream has yielded behind the batch.
enum Event {
    Error(BoxError),
    End,
}

/// The driver's end of the cluster. When it is dropped, discovery is over.
struct Link<T, P: Policy> {
    cluster: Weak<Cluster<T, P>>,
    meter: Option<Arc<Meter>>,
    limits: Limits,
    ended: bool,
}

/// How many changes one poll takes from the stream before it lets others run.
const POLL: usize = 1_024;

/// How many changes are gathered at most before they are published.
const BATCH: usize = 65_536;

impl<D: Discover, T, P: Policy> Driver<D, T, P> {
    pub(crate) fn new(
        stream: D,
        cluster: &Arc<Cluster<T, P>>,
        closed: oneshot::Receiver<()>,
    ) -> Self {
        let meter = cluster.meter.as_ref().map(Arc::clone);
        let limits = cluster.settings.health.limits();
        let link = Link { cluster: Arc::downgrade(cluster), meter, limits, ended: false };
        let (keys, batch) = (HashMap::new(), Batch::new());
        Self { stream, link, closed, keys, batch, preparing: None, event: None }
    }
}

impl<D, T, P> Future for Driver<D, T, P>
where
    D: Source<Target = T>,
    T: Send + Sync + 'static,
    P: Policy,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        if this.link.ended {
            return Poll::Ready(());
        }
        if Pin::new(&mut *this.closed).poll(cx).is_ready() {
            this.link.ended = true;
            return Poll::Ready(());
        }
        for _ in 0..POLL {
            ready!(this.link.poll_prepared(this.preparing, cx));
            match this.event.take() {
                Some(Event::Error(error)) => this.link.failed(error),
                Some(Event::End) => {
                    this.link.finish(false);
                    return Poll::Ready(());
                }
                None => {}
            }
            // Unconstrained: a channel that yields for fairness would cut batches short,
            // and the bound of this loop keeps the task fair.
            let next = pin!(unconstrained(std::future::poll_fn(|cx| {
                this.stream.as_mut().poll_discover(cx)
            })));
            match next.poll(cx) {
                Poll::Ready(Some(Ok(change))) => {
                    this.link.push(change, this.batch, this.keys);
                    if this.batch.len() < BATCH {
                        continue;
                    }
                }
                Poll::Ready(Some(Err(error))) => *this.event = Some(Event::Error(error.into())),
                Poll::Ready(None) => *this.event = Some(Event::End),
                Poll::Pending if this.batch.len() == 0 => return Poll::Pending,
                Poll::Pending => {}
            }
            *this.preparing = this.link.start(std::mem::replace(this.batch, Batch::new()));
            if is_roomy(this.keys.len(), this.keys.capacity()) {
                this.keys.shrink_to_fit();
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<T: Send + Sync + 'static, P: Policy> Link<T, P> {
    fn push<K: Hash + Eq + fmt::Display>(
        &self,
        change: Change<K, Endpoint<T>>,
        batch: &mut Batch<T>,
        keys: &mut HashMap<K, u64>,
    ) {
        let recorder = Recorder {
            cluster: self.cluster.clone(),
            meter: self.meter.clone(),
            limits: self.limits,
        };
        batch.push(change, keys, &recorder, Instant::now());
    }

    /// Applies a batch, or has its picker built first if that takes long.
    fn start(&self, batch: Batch<T>) -> Option<Preparing<T, P::Picker>> {
        let cluster = self.cluster.upgrade()?;
        if batch.len() == 0 {
            return None;
        }
        let planned = cluster.plan(&batch).zip(Handle::try_current().ok());
        let Some((members, runtime)) = planned else {
            cluster.update_members(batch, None, Instant::now());
            return None;
        };
        let picker = runtime.spawn_blocking(move || cluster.prepare(members));
        Some(Preparing { batch, picker })
    }

    /// Applies the batch whose picker is ready.
    fn poll_prepared(
        &self,
        preparing: &mut Option<Preparing<T, P::Picker>>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let Some(Preparing { batch, picker }) = preparing else { return Poll::Ready(()) };
        // The batch is applied also if the thread was never run.
        let picker = ready!(Pin::new(picker).poll(cx)).ok();
        let batch = std::mem::replace(batch, Batch::new());
        *preparing = None;
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.update_members(batch, picker, Instant::now());
        }
        Poll::Ready(())
    }
}

impl<T, P: Policy> Link<T, P> {
    fn failed(&self, error: BoxError) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.discovery_failed(error);
        }
    }

    fn finish(&mut self, stopped: bool) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.progress.finish(stopped);
            cluster.changed.notify_waiters();
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
