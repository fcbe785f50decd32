//! Statistics of a balancer and its endpoints.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    cluster::{Cluster, core::Record, discovery::Discovery, node::Node},
    endpoint::Labels,
    error::{BoxError, Counts},
    health::{counters::Reading, ejection::Stage},
    policy::{Member, Policy},
};

/// The statistics of a balancer at one moment: the set that the next pick uses.
///
/// [`Balance::stats`](crate::Balance::stats) returns them, and does not affect picks. Their `Display`
/// form is a table.
///
/// After a panic of the policy, the next pick uses the set of the last build that succeeded: see
/// [`policy_panics`](Self::policy_panics). A comparison with peers that is due is not included,
/// because the next call makes it.
///
/// ```
/// use counterpoise::{discover, policy::RoundRobin, Balance, Direct, Endpoint};
///
/// let endpoints = discover::list([("a", Endpoint::new(Direct("a service")))]);
/// let stats = Balance::new(endpoints, RoundRobin::new()).stats();
/// assert_eq!(stats.endpoints.len(), 0, "discovery runs once there is a runtime");
/// println!("{stats}");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Stats {
    /// The number of the snapshot, which grows with each change.
    pub generation: u64,
    /// The endpoints, in the order in which they joined.
    pub endpoints: Vec<EndpointStats>,
    /// How many endpoints there are, and how many of them are ejected or drained.
    pub counts: Counts,
    /// Whether ejections are ignored because too few endpoints are healthy.
    pub panic: bool,
    /// How many calls wait for an endpoint.
    pub waiting: usize,
    /// The state of discovery.
    pub discovery: Discovery,
    /// How many errors discovery has yielded.
    pub discovery_errors: u64,
    /// The last error of discovery; none if a change has followed it.
    pub last_discovery_error: Option<BoxError>,
    /// How often a build of the policy has panicked. After a panic the former picker stays in use.
    pub policy_panics: u64,
    /// The message of the policy's last panic.
    pub last_policy_panic: Option<String>,
}

/// The statistics of an endpoint at one moment.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct EndpointStats {
    /// The `Display` form of the key.
    pub name: Arc<str>,
    /// The weight that discovery has set.
    pub weight: u32,
    /// The tier that discovery has set.
    pub tier: u32,
    /// The zone that discovery has set.
    pub zone: Option<Arc<str>>,
    /// The labels that discovery has set.
    pub labels: Labels,
    /// The weight times the capacity factor; zero while the endpoint is ejected.
    pub effective_weight: f64,
    /// Whether and why the endpoint is in service.
    pub state: EndpointState,
    /// The time until a trial of an ejected endpoint is due. Zero if the next call may be the trial,
    /// none if active checks have to pass first.
    pub returns_in: Option<Duration>,
    /// How many calls were sent here and have not ended. [`Builder::judge`](crate::Builder::judge)
    /// explains when a call ends.
    pub in_flight: u64,
    /// How many calls were sent here.
    pub picks: u64,
    /// How many calls ended in success.
    pub successes: u64,
    /// How many calls ended in failure, without drops.
    pub failures: u64,
    /// How many calls the endpoint pushed back.
    pub overloads: u64,
    /// How many calls ended with an outcome that does not concern the endpoint.
    pub neutrals: u64,
    /// How many calls were dropped before they ended, at any age.
    ///
    /// For health, a call that was dropped late and without a response counts as a failure.
    pub drops: u64,
    /// How many calls have failed since the last success, ejection or return: 0 right after an
    /// ejection.
    pub consecutive_failures: u32,
    /// How often the endpoint was ejected because of its calls.
    pub ejections: u64,
    /// Whether failed active checks keep the endpoint out of service.
    pub checked_out: bool,
    /// The moving average of the latency, if the policy needs it.
    pub latency: Option<Duration>,
}

/// Whether and why an endpoint is in service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndpointState {
    /// In service.
    Serving,
    /// In service, but its service was not ready when it was last polled.
    Unready,
    /// Out of service because its weight or capacity is zero.
    Drained,
    /// Out of service because its calls or checks have failed.
    Ejected,
    /// Out of service, except for one call: the trial.
    OnTrial,
    /// In service although discovery has removed it, because it was among the last endpoints.
    Kept,
}

impl Stats {
    pub(crate) fn of<T, P: Policy>(cluster: &Cluster<T, P>) -> Self {
        let now = Instant::now();
        // The next pick would publish the gathered transitions first. Nothing else is updated here,
        // so that readers do not affect when ramps and trials move.
        cluster.flush_due(now);
        let progress = &cluster.progress;
        cluster.inspect(|core, snapshot, shows_all| {
            let endpoint = |node: &Arc<Node<T>>| {
                let (member, record) = core.get(node.state.id)?;
                let member = &core.at(now, member, record);
                Some(EndpointStats::of(node, member, record, snapshot.panic, now))
            };
            Self {
                generation: snapshot.generation,
                endpoints: snapshot.nodes.iter().filter_map(endpoint).collect(),
                // Gathered ejections count at once, changes of members once they are published.
                counts: if shows_all {
                    core.counts()
                } else {
                    snapshot.counts
                },
                panic: snapshot.panic,
                waiting: cluster.waiting.load(Ordering::Relaxed),
                discovery: progress.discovery(),
                discovery_errors: progress.errors(),
                last_discovery_error: progress.last_error(),
                policy_panics: progress.policy_panics(),
                last_policy_panic: progress.last_panic(),
            }
        })
    }

    /// Returns the endpoint of this name.
    #[must_use]
    pub fn endpoint(&self, name: &str) -> Option<&EndpointStats> {
        self.endpoints
            .iter()
            .find(|endpoint| &*endpoint.name == name)
    }
}

impl EndpointStats {
    fn of<T>(node: &Node<T>, member: &Member, record: &Record, panic: bool, now: Instant) -> Self {
        let state = &node.state;
        let read = state.read();
        let Reading {
            in_flight,
            successes,
            failures,
            overloads,
            neutrals,
            drops,
        } = read;
        let counts = panic || member.healthy;
        Self {
            name: Arc::clone(&member.name),
            weight: member.weight,
            tier: member.traits.tier(),
            zone: member.traits.zone().cloned(),
            labels: member.traits.labels().clone(),
            effective_weight: if counts {
                member.effective_weight()
            } else {
                0.0
            },
            state: EndpointState::of(node, member, record),
            returns_in: returns_in(record, now),
            in_flight,
            picks: read.picks(),
            successes,
            failures,
            overloads,
            neutrals,
            drops,
            consecutive_failures: state.health.load().failures(),
            ejections: record.ejections.total(),
            checked_out: record.is_checked_out(),
            latency: state.latency(now),
        }
    }
}

/// Returns the time until a trial is due; none if checks have to pass first.
fn returns_in(record: &Record, now: Instant) -> Option<Duration> {
    match record.ejections.stage() {
        Stage::Out { until, .. } if !record.is_checked_out() => {
            Some(until.saturating_duration_since(now))
        }
        _ => None,
    }
}

impl EndpointState {
    fn of<T>(node: &Node<T>, member: &Member, record: &Record) -> Self {
        if !member.is_open() {
            return Self::Drained;
        }
        if record.is_checked_out() {
            return Self::Ejected;
        }
        match record.ejections.stage() {
            Stage::Out { .. } => Self::Ejected,
            Stage::Trial { .. } => Self::OnTrial,
            Stage::Serving if record.is_kept() => Self::Kept,
            Stage::Serving if node.state.is_unready() => Self::Unready,
            Stage::Serving => Self::Serving,
        }
    }
}

impl fmt::Display for EndpointState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Serving => "serving",
            Self::Unready => "unready",
            Self::Drained => "drained",
            Self::Ejected => "ejected",
            Self::OnTrial => "on trial",
            Self::Kept => "kept",
        })
    }
}
