//! The task that checks endpoints.

use std::{
    fmt,
    future::{Future, pending, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{Arc, Weak},
    task::{Context, Poll},
};

use futures_util::{FutureExt, StreamExt, future::Either, stream::FuturesUnordered};
use tokio::time::{Instant, sleep_until, timeout};

use crate::checks::{
    Checks, Probe,
    rounds::{Finding, Rounds},
};
use crate::{
    cluster::{Cluster, core::Input},
    error::ConfigError,
    policy::Policy,
};

/// Checks endpoints: a future that never ends while the balancer lives.
///
/// Made by [`Balance::check`](crate::Balance::check). It needs tokio's timers. Dropped, it
/// leaves everything as it is; endpoints that are out stay out until another checker finds
/// them well.
#[must_use = "endpoints are only checked while the checker is polled"]
pub struct Checker(Pin<Box<dyn Future<Output = ()> + Send>>);

/// A check that runs: whose, and whether it passes.
type Running = Pin<Box<dyn Future<Output = (u64, bool)> + Send>>;

/// Returns the future that checks the endpoints of a balancer, unless the settings make no
/// sense.
pub(crate) fn check<T, P, R>(
    cluster: &Arc<Cluster<T, P>>,
    checks: Checks<R>,
) -> Result<Checker, ConfigError>
where
    T: Send + Sync + 'static,
    P: Policy,
    R: Probe<T>,
{
    checks.validate()?;
    let rounds = Rounds::new(cluster.tickets.seed());
    let (cluster, running) = (Arc::downgrade(cluster), FuturesUnordered::new());
    let task = Task { cluster, checks, rounds, seen: None, running };
    Ok(Checker(Box::pin(run(task))))
}

struct Task<T, P: Policy, R> {
    cluster: Weak<Cluster<T, P>>,
    checks: Checks<R>,
    rounds: Rounds,
    /// The last change of the members that was seen.
    seen: Option<u64>,
    running: FuturesUnordered<Running>,
}

/// Checks until the balancer is gone.
async fn run<T, P, R>(mut task: Task<T, P, R>)
where
    T: Send + Sync + 'static,
    P: Policy,
    R: Probe<T>,
{
    while let Some(cluster) = task.cluster.upgrade() {
        // Heard since before the look at the members, so that no change is missed; rings for
        // the last time when the balancer goes.
        let mut bell = pin!(Arc::clone(&cluster.changed).notified_owned());
        bell.as_mut().enable();
        task.begin(&cluster);
        drop(cluster);
        let mut due = pin!(wait(task.next()));
        let ended = poll_fn(|cx| match task.running.poll_next_unpin(cx) {
            Poll::Ready(Some(ended)) => Poll::Ready(Some(ended)),
            _ if due.as_mut().poll(cx).is_ready() => Poll::Ready(None),
            _ => bell.as_mut().poll(cx).map(|()| None),
        });
        if let Some((id, passed)) = ended.await {
            task.end(id, passed);
        }
    }
}

/// Waits until an instant, or for ever.
async fn wait(until: Option<Instant>) {
    match until {
        Some(until) => Either::Left(sleep_until(until)),
        None => Either::Right(pending()),
    }
    .await;
}

impl<T, P, R> Task<T, P, R>
where
    T: Send + Sync + 'static,
    P: Policy,
    R: Probe<T>,
{
    /// Looks who the members are, and begins what is due.
    fn begin(&mut self, cluster: &Cluster<T, P>) {
        let (now, snapshot) = (Instant::now(), cluster.snapshot.load());
        if self.seen.replace(snapshot.roll) != Some(snapshot.roll) {
            let ids: Vec<_> = snapshot.nodes.iter().map(|node| node.state.id).collect();
            self.rounds.members(&ids, &self.checks, now);
        }
        while self.running.len() < self.checks.concurrency
            && let Some(id) = self.rounds.take(now)
        {
            let Some(node) = snapshot.nodes.find(id) else { continue };
            let probe = || self.checks.probe.probe(&node.state.name, &node.target);
            match catch_unwind(AssertUnwindSafe(probe)) {
                Ok(probe) => {
                    let probe = AssertUnwindSafe(timeout(self.checks.timeout, probe));
                    let passed =
                        probe.catch_unwind().map(|result| matches!(result, Ok(Ok(Ok(())))));
                    self.running.push(Box::pin(passed.map(move |passed| (id, passed))));
                }
                Err(_) => self.running.push(Box::pin(std::future::ready((id, false)))),
            }
        }
    }

    /// Returns when the next check is due, if there is room for it.
    fn next(&self) -> Option<Instant> {
        let has_room = self.running.len() < self.checks.concurrency;
        self.rounds.next().filter(|_| has_room)
    }

    /// Tells what a check has found.
    fn end(&mut self, id: u64, passed: bool) {
        let now = Instant::now();
        let finding = self.rounds.result(id, passed, &self.checks, now);
        let Some(cluster) = self.cluster.upgrade().filter(|_| finding != Finding::Nothing) else {
            return;
        };
        cluster.update(now, Input::Checked { id, passes: finding == Finding::Well });
        if finding == Finding::Well {
            // A call may try it now that waits.
            cluster.changed.notify_waiters();
        }
    }
}

impl Future for Checker {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Checker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checker").finish_non_exhaustive()
    }
}
