//! The task that checks endpoints.

use std::{
    fmt,
    future::{Future, pending, poll_fn, ready},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{Arc, Weak},
    task::{Context, Poll},
};

use futures_util::{FutureExt, StreamExt, future::Either, stream::FuturesUnordered};
use tokio::time::{Instant, sleep_until, timeout};

use super::{
    Checks, Probe,
    rounds::{Finding, Rounds},
};
use crate::{
    cluster::{Cluster, core::Input},
    error::ConfigError,
    policy::Policy,
};

/// A future that checks the endpoints, and ends with the balancer.
///
/// [`Balance::check`](crate::Balance::check) makes it. It needs tokio's timers. Its drop changes
/// nothing: ejected endpoints stay ejected until their checks pass under another checker.
#[must_use = "endpoints are only checked while the checker is polled"]
pub struct Checker(Pin<Box<dyn Future<Output = ()> + Send>>);

/// A running check. It yields the id of the endpoint, and whether the check has passed.
type Running = Pin<Box<dyn Future<Output = (u64, bool)> + Send>>;

/// Returns the future that checks the endpoints of a balancer, or an error about a setting.
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
    let task = Task {
        cluster,
        checks,
        rounds,
        seen: None,
        running,
    };
    Ok(Checker(Box::pin(run(task))))
}

struct Task<T, P: Policy, R> {
    cluster: Weak<Cluster<T, P>>,
    checks: Checks<R>,
    rounds: Rounds,
    /// The change of the members that the rounds have taken last.
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
        // Enabled before the members are read, so that no change is missed. The drop of the balancer
        // notifies, too.
        let mut changed = pin!(Arc::clone(&cluster.changed).notified_owned());
        changed.as_mut().enable();
        task.begin(&cluster);
        drop(cluster);
        let mut due = pin!(wait(task.next()));
        let ended = poll_fn(|cx| {
            if let Poll::Ready(Some(ended)) = task.running.poll_next_unpin(cx) {
                return Poll::Ready(Some(ended));
            }
            if due.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            changed.as_mut().poll(cx).map(|()| None)
        });
        if let Some((id, passed)) = ended.await {
            task.end(id, passed);
        }
    }
}

/// Waits until an instant, or without end.
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
    /// Takes the members if they have changed, and begins the checks that are due.
    fn begin(&mut self, cluster: &Cluster<T, P>) {
        let (now, snapshot) = (Instant::now(), cluster.snapshot.load());
        if self.seen.replace(snapshot.roll) != Some(snapshot.roll) {
            let ids: Vec<_> = snapshot.nodes.iter().map(|node| node.state.id).collect();
            self.rounds.members(&ids, &self.checks, now);
        }
        while self.running.len() < self.checks.concurrency
            && let Some(id) = self.rounds.take(now)
        {
            let Some(node) = snapshot.nodes.find(id) else {
                continue;
            };
            let check = self.probe(id, &node.state.name, &node.target);
            self.running.push(check);
        }
    }

    /// Starts the probe of an endpoint. An error, a panic and the timeout are failures.
    fn probe(&self, id: u64, name: &str, target: &T) -> Running {
        let start = || self.checks.probe.probe(name, target);
        let Ok(probe) = catch_unwind(AssertUnwindSafe(start)) else {
            return Box::pin(ready((id, false)));
        };
        let result = AssertUnwindSafe(timeout(self.checks.timeout, probe)).catch_unwind();
        Box::pin(result.map(move |result| (id, matches!(result, Ok(Ok(Ok(())))))))
    }

    /// Returns when the next check is due; none while the greatest number of checks runs.
    fn next(&self) -> Option<Instant> {
        if self.running.len() < self.checks.concurrency {
            self.rounds.next()
        } else {
            None
        }
    }

    /// Reports the finding of a check to the cluster.
    fn end(&mut self, id: u64, passed: bool) {
        let now = Instant::now();
        let finding = self.rounds.result(id, passed, &self.checks, now);
        if finding == Finding::Nothing {
            return;
        }
        let Some(cluster) = self.cluster.upgrade() else {
            return;
        };
        cluster.update(
            now,
            Input::Checked {
                id,
                passes: finding == Finding::Passing,
            },
        );
        if finding == Finding::Passing {
            // A call that waits may be the trial now.
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
