//! Statistics as counters and gauges of the `metrics` crate.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::{Either, select};
use metrics::{SharedString, counter, gauge};
use tokio::time::sleep;

use crate::{
    cluster::Cluster,
    observe::stats::{EndpointState, EndpointStats, Stats},
    policy::Policy,
};

/// Reports statistics as metrics of the `metrics` crate.
///
/// The numbers are those of [`Stats`], so gauges cannot drift:
///
/// | metric | kind | labels |
/// |---|---|---|
/// | `counterpoise_calls_total` | counter | `balancer`, `endpoint`, `outcome` (success, failure, overload, neutral, dropped) |
/// | `counterpoise_ejections_total` (without ejections by checks) | counter | `balancer`, `endpoint` |
/// | `counterpoise_in_flight` | gauge | `balancer`, `endpoint` |
/// | `counterpoise_effective_weight` | gauge | `balancer`, `endpoint` |
/// | `counterpoise_endpoints` | gauge | `balancer`, `state` (serving, unready, drained, ejected, on_trial, kept) |
/// | `counterpoise_waiting` | gauge | `balancer` |
/// | `counterpoise_panic` | gauge, 0 or 1 | `balancer` |
/// | `counterpoise_discovery_errors_total` | counter | `balancer` |
///
/// The gauges of an endpoint that has left are set to zero once. Calls that ended after the last
/// report before it left are not counted.
///
/// ```
/// use counterpoise::{discover, observe::Metrics, policy::RoundRobin, Balance, Direct, Endpoint};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let endpoints = discover::list([("a", Endpoint::new(Direct("a service")))]);
/// let balance = Balance::new(endpoints, RoundRobin::new());
/// tokio::spawn(balance.report(Metrics::new("users"), Duration::from_secs(10)));
/// # }
/// ```
#[derive(Debug)]
pub struct Metrics {
    balancer: SharedString,
    /// The totals of the last report, by name.
    last: HashMap<Arc<str>, Totals>,
    discovery_errors: u64,
}

/// The sums over all endpoints of one name.
#[derive(Debug, Default, Clone, Copy)]
struct Totals {
    /// In the order of [`OUTCOMES`].
    ends: [u64; 5],
    ejections: u64,
    in_flight: u64,
    effective_weight: f64,
}

const OUTCOMES: [&str; 5] = ["success", "failure", "overload", "neutral", "dropped"];

const STATES: [EndpointState; 6] = [
    EndpointState::Serving,
    EndpointState::Unready,
    EndpointState::Drained,
    EndpointState::Ejected,
    EndpointState::OnTrial,
    EndpointState::Kept,
];

/// A future that reports the statistics of a balancer regularly, and ends with it.
///
/// [`Balance::report`](crate::Balance::report) makes it.
#[must_use = "nothing is reported while the reporter is not polled"]
pub struct Reporter(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Metrics {
    /// Creates a reporter for one balancer. The name is the label `balancer`.
    #[must_use]
    pub fn new(balancer: impl Into<String>) -> Self {
        let balancer = SharedString::from(balancer.into());
        Self {
            balancer,
            last: HashMap::new(),
            discovery_errors: 0,
        }
    }

    /// Reports statistics. All must be of one balancer, and each later than the one before.
    pub fn report(&mut self, stats: &Stats) {
        let mut totals: HashMap<Arc<str>, Totals> = HashMap::new();
        for endpoint in &stats.endpoints {
            totals
                .entry(Arc::clone(&endpoint.name))
                .or_default()
                .add(endpoint);
        }
        for (name, now) in &totals {
            let before = self.last.get(name).copied().unwrap_or_default();
            self.endpoint(name, &before, now);
        }
        for name in self.last.keys().filter(|name| !totals.contains_key(*name)) {
            self.gauges(name, &Totals::default());
        }
        self.last = totals;
        self.set(stats);
    }

    /// Reports the numbers of the whole set.
    fn set(&mut self, stats: &Stats) {
        let balancer = &self.balancer;
        for state in STATES {
            let count = stats
                .endpoints
                .iter()
                .filter(|endpoint| endpoint.state == state)
                .count();
            let labels = [
                ("balancer", balancer.clone()),
                ("state", state.to_string().replace(' ', "_").into()),
            ];
            gauge!("counterpoise_endpoints", &labels).set(count as f64);
        }
        let labels = [("balancer", balancer.clone())];
        gauge!("counterpoise_waiting", &labels).set(stats.waiting as f64);
        gauge!("counterpoise_panic", &labels).set(f64::from(u8::from(stats.panic)));
        let more = stats.discovery_errors.saturating_sub(self.discovery_errors);
        counter!("counterpoise_discovery_errors_total", &labels).increment(more);
        self.discovery_errors = stats.discovery_errors;
    }

    fn endpoint(&self, name: &Arc<str>, before: &Totals, now: &Totals) {
        for (outcome, (&before, &now)) in OUTCOMES.iter().zip(before.ends.iter().zip(&now.ends)) {
            let [balancer, endpoint] = self.labels(name);
            let labels = [
                balancer,
                endpoint,
                ("outcome", SharedString::from(*outcome)),
            ];
            counter!("counterpoise_calls_total", &labels).increment(since(before, now));
        }
        let more = since(before.ejections, now.ejections);
        counter!("counterpoise_ejections_total", &self.labels(name)).increment(more);
        self.gauges(name, now);
    }

    fn gauges(&self, name: &Arc<str>, now: &Totals) {
        let labels = self.labels(name);
        gauge!("counterpoise_in_flight", &labels).set(now.in_flight as f64);
        gauge!("counterpoise_effective_weight", &labels).set(now.effective_weight);
    }

    fn labels(&self, name: &Arc<str>) -> [(&'static str, SharedString); 2] {
        let endpoint = SharedString::from_shared(Arc::clone(name));
        [("balancer", self.balancer.clone()), ("endpoint", endpoint)]
    }
}

/// Returns how much a count has grown. A count that is less than before belongs to an endpoint that
/// has left and joined again, and began at zero.
const fn since(before: u64, now: u64) -> u64 {
    if now >= before { now - before } else { now }
}

impl Totals {
    fn add(&mut self, endpoint: &EndpointStats) {
        let EndpointStats {
            successes,
            failures,
            overloads,
            neutrals,
            drops,
            ..
        } = *endpoint;
        let ends = [successes, failures, overloads, neutrals, drops];
        self.ends
            .iter_mut()
            .zip(ends)
            .for_each(|(sum, more)| *sum += more);
        self.ejections += endpoint.ejections;
        self.in_flight += endpoint.in_flight;
        self.effective_weight += endpoint.effective_weight;
    }
}

/// Returns the future that reports a balancer's statistics.
pub(crate) fn report<T, P>(
    cluster: &Arc<Cluster<T, P>>,
    metrics: Metrics,
    interval: Duration,
) -> Reporter
where
    T: Send + Sync + 'static,
    P: Policy,
{
    Reporter(Box::pin(run(Arc::downgrade(cluster), metrics, interval)))
}

/// Reports until the balancer is dropped.
async fn run<T, P: Policy>(cluster: Weak<Cluster<T, P>>, mut metrics: Metrics, interval: Duration) {
    while let Some(stats) = cluster.upgrade().map(|cluster| Stats::of(&cluster)) {
        metrics.report(&stats);
        let mut pause = Box::pin(sleep(interval.max(Duration::from_millis(1))));
        loop {
            let Some(changed) = cluster
                .upgrade()
                .map(|cluster| Arc::clone(&cluster.changed).notified_owned())
            else {
                return;
            };
            // Only the drop of the balancer ends the pause early.
            match select(pause, Box::pin(changed)).await {
                Either::Left(_) => break,
                Either::Right((_, rest)) => pause = rest,
            }
        }
    }
}

impl Future for Reporter {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter").finish_non_exhaustive()
    }
}
