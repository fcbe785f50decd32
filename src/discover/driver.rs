//! The driver, which applies the changes of discovery to the cluster.

use std::{
    collections::HashMap,
    fmt,
    future::{Future, poll_fn},
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

use super::source::Source;
use crate::{
    cluster::{
        Cluster,
        batch::{Batch, Recorder},
        prepare::Prepared,
    },
    endpoint::Endpoint,
    error::BoxError,
    health::evidence::Limits,
    load::Meter,
    policy::Policy,
    util::is_roomy,
};

pin_project! {
    /// Applies the changes of discovery to a balancer: a future.
    ///
    /// [`BalanceLayer::new`](crate::BalanceLayer::new) spawns it;
    /// [`pair`](crate::BalanceLayer::pair) returns it, to be spawned or polled. It ends with the
    /// stream, or when the last balancer is dropped. If it is dropped early, or the stream or the
    /// `Display` of a key panics, the set stays unchanged from then on, and the
    /// [statistics](crate::Stats) show that.
    ///
    /// All changes that are ready, up to 65,536, are applied together and become one snapshot. One
    /// poll takes at most 1,024 changes.
    #[must_use = "endpoints are only discovered while the driver is polled"]
    pub struct Driver<D: Discover, T, P: Policy> {
        #[pin]
        stream: D,
        link: Link<T, P>,
        closed: oneshot::Receiver<()>,
        keys: HashMap<D::Key, u64>,
        batch: Batch<T>,
        preparing: Option<Preparing<T, P::Picker>>,
        interruption: Option<Interruption>,
    }
}

/// A batch whose picker is built on another thread.
struct Preparing<T, B> {
    batch: Batch<T>,
    picker: JoinHandle<Prepared<B>>,
}

/// An item of the stream that follows the batch and is no change.
enum Interruption {
    Error(BoxError),
    End,
}

/// The driver's reference to the cluster. Its drop ends discovery.
struct Link<T, P: Policy> {
    cluster: Weak<Cluster<T, P>>,
    meter: Option<Arc<Meter>>,
    limits: Limits,
    ended: bool,
}

/// The next item of the stream; none at its end.
type Next<D> =
    Option<Result<Change<<D as Discover>::Key, <D as Discover>::Service>, <D as Discover>::Error>>;

/// How many changes one poll takes at most from the stream, so that other tasks run in between.
const POLL: usize = 1_024;

/// How many changes are published together at most, so that the memory of a batch is bounded.
const BATCH: usize = 65_536;

impl<D: Discover, T, P: Policy> Driver<D, T, P> {
    pub(crate) fn new(
        stream: D,
        cluster: &Arc<Cluster<T, P>>,
        closed: oneshot::Receiver<()>,
    ) -> Self {
        let meter = cluster.meter.as_ref().map(Arc::clone);
        let limits = cluster.settings.health.limits();
        let link = Link {
            cluster: Arc::downgrade(cluster),
            meter,
            limits,
            ended: false,
        };
        let (keys, batch) = (HashMap::new(), Batch::new());
        Self {
            stream,
            link,
            closed,
            keys,
            batch,
            preparing: None,
            interruption: None,
        }
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
            if let Some(interruption) = this.interruption.take() {
                this.link.handle(interruption);
                if this.link.ended {
                    return Poll::Ready(());
                }
            }
            match poll_stream(this.stream.as_mut(), cx) {
                Poll::Ready(Some(Ok(change))) => {
                    this.link.push(change, this.batch, this.keys);
                    if this.batch.len() < BATCH {
                        continue;
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    *this.interruption = Some(Interruption::Error(error.into()));
                }
                Poll::Ready(None) => *this.interruption = Some(Interruption::End),
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

/// Polls the stream without tokio's budget, so that a channel does not end a batch early. The
/// bound of the poll keeps the task fair.
fn poll_stream<D: Discover>(mut stream: Pin<&mut D>, cx: &mut Context<'_>) -> Poll<Next<D>> {
    let next = poll_fn(|cx| stream.as_mut().poll_discover(cx));
    pin!(unconstrained(next)).poll(cx)
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

    /// Applies a batch, or starts the build of its picker on another thread if that is slow.
    fn start(&self, batch: Batch<T>) -> Option<Preparing<T, P::Picker>> {
        let cluster = self.cluster.upgrade()?;
        if batch.len() == 0 {
            return None;
        }
        let runtime = Handle::try_current().ok();
        let planned = runtime.and_then(|runtime| Some((cluster.plan(&batch)?, runtime)));
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
        let Some(Preparing { batch, picker }) = preparing else {
            return Poll::Ready(());
        };
        // Without a picker the batch is applied all the same, and the picker is built then.
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
    fn handle(&mut self, interruption: Interruption) {
        match interruption {
            Interruption::Error(error) => {
                if let Some(cluster) = self.cluster.upgrade() {
                    cluster.discovery_failed(error);
                }
            }
            Interruption::End => self.finish(false),
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
        f.debug_struct("Driver")
            .field("ended", &self.link.ended)
            .finish_non_exhaustive()
    }
}
