//! What can be seen of a balancer from outside.

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

/// A balancer at one moment: exactly the set that the next pick would use.
///
/// After a policy has panicked, that is the set before: see [`policy_panics`](Self::policy_panics).
///
/// A comparison with peers that is due by now is not in it: the next call makes it.
///
/// Its `Display` form is a table. Taking one changes nothing.
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
    /// The number of the snapshot; grows with each change.
    pub generation: u64,
    /// The endpoints, in the order in which they joined.
    pub endpoints: Vec<EndpointStats>,
    /// How many there are, are ejected, are drained.
    pub counts: Counts,
    /// Whether ejections are ignored, because too few endpoints are healthy.
    pub panic: bool,
    /// Calls that wait for an endpoint.
    pub waiting: usize,
    /// How discovery is doing.
    pub discovery: Discovery,
    /// Errors that discovery has yielded.
    pub discovery_errors: u64,
    /// The error that discovery yielded since its last change.
    pub last_discovery_error: Option<BoxError>,
    /// How often the policy panicked while compiling; the former snapshot stayed in use.
    pub policy_panics: u64,
    /// What the policy last panicked with.
    pub last_policy_panic: Option<String>,
}

/// One endpoint at one moment.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct EndpointStats {
    /// The `Display` form of the key.
    pub name: Arc<str>,
    /// The weight that was set.
    pub weight: u32,
    /// The tier that was set.
    pub tier: u32,
    /// The zone that was set.
    pub zone: Option<Arc<str>>,
    /// The labels that were set.
    pub labels: Labels,
    /// The weight that counts now: the set weight times the capacity factor, and zero while
    /// ejected.
    pub effective_weight: f64,
    /// Where the endpoint stands.
    pub state: EndpointState,
    /// Time until a call may try an ejected endpoint; zero if the next one may, none if active
    /// checks have to pass first.
    pub returns_in: Option<Duration>,
    /// Calls that run now: sent, and not over. When that is: see
    /// [`Builder::ends`](crate::Builder::ends).
    pub in_flight: u64,
    /// Calls that were sent here.
    pub picks: u64,
    /// Calls that ended in success.
    pub successes: u64,
    /// Calls that ended in failure; drops are not among them.
    pub failures: u64,
    /// Calls that the endpoint pushed back.
    pub overloads: u64,
    /// Calls that ended without saying anything about the endpoint.
    pub neutrals: u64,
    /// Calls that were dropped before they ended, whatever their age. Old ones count as
    /// failures for health all the same, if their response had not begun.
    pub drops: u64,
    /// Failures since the last success.
    pub consecutive_failures: u32,
    /// How often the endpoint was ejected for its calls.
    pub ejections: u64,
    /// Whether active checks keep it out.
    pub checked_out: bool,
    /// The moving latency of its calls, if the policy asks for it.
    pub latency: Option<Duration>,
}

/// Where an endpoint stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndpointState {
    /// In rotation.
    Serving,
    /// In rotation, but the last service that was polled was not ready.
    Unready,
    /// Listed, but with weight or capacity zero.
    Drained,
    /// Out of rotation for what its calls or checks have shown.
    Ejected,
    /// Out of rotation; one call is trying it.
    OnTrial,
    /// Removed by discovery, but kept because it was among the last; in rotation.
    Kept,
}

impl Stats {
    pub(crate) fn of<T, P: Policy>(cluster: &Cluster<T, P>) -> Self {
        let now = Instant::now();
        // The next pick would do that first. What time moves is only looked at: or readers would
        // decide when it moves.
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
                // Ejections that are gathered show at once; members only when published.
                counts: if shows_all { core.counts() } else { snapshot.counts },
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
        self.endpoints.iter().find(|endpoint| &*endpoint.name == name)
    }
}

impl EndpointStats {
    fn of<T>(node: &Node<T>, member: &Member, record: &Record, panic: bool, now: Instant) -> Self {
        let state = &node.state;
        let read = state.read();
        let Reading { in_flight, successes, failures, overloads, neutrals, drops } = read;
        let counts = panic || member.healthy;
        Self {
            name: Arc::clone(&member.name),
            weight: member.weight,
            tier: member.traits.tier(),
            zone: member.traits.zone().cloned(),
            labels: member.traits.labels().clone(),
            effective_weight: if counts { member.effective_weight() } else { 0.0 },
            state: EndpointState::of(node, member, record),
            returns_in: match record.ejections.stage() {
                _ if record.is_checked_out() => None,
                Stage::Out { until, .. } => Some(until.saturating_duration_since(now)),
                Stage::Serving | Stage::Trial { .. } => None,
            },
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

impl EndpointState {
    fn of<T>(node: &Node<T>, member: &Member, record: &Record) -> Self {
        match record.ejections.stage() {
            _ if !member.is_open() => Self::Drained,
            _ if record.is_checked_out() => Self::Ejected,
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

/// The set weight, and the effective one if that is another.
struct Weight<'a>(&'a EndpointStats);

impl fmt::Display for Weight<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (set, effective) = (self.0.weight, self.0.effective_weight);
        match effective == f64::from(set) || effective == 0.0 {
            true => f.pad(&set.to_string()),
            false => f.pad(&format!("{effective:.2}/{set}")),
        }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; discovery {:?}", self.counts, self.discovery)?;
        if self.panic {
            write!(f, "; health is ignored")?;
        }
        writeln!(f, "; {} calls wait", self.waiting)?;
        let total: u64 = self.endpoints.iter().map(|endpoint| endpoint.picks).sum();
        writeln!(
            f,
            "{:<20} {:>9} {:>9} {:>9} {:>10} {:>6} {:>8} {:>7} {:>9}",
            "endpoint",
            "state",
            "weight",
            "in flight",
            "picks",
            "share",
            "failures",
            "drops",
            "returns in"
        )?;
        for endpoint in &self.endpoints {
            let share = 100.0 * endpoint.picks as f64 / total.max(1) as f64;
            let returns = endpoint.returns_in.map(|left| format!("{:.1} s", left.as_secs_f64()));
            writeln!(
                f,
                "{:<20} {:>9} {:>9} {:>9} {:>10} {:>5.1}% {:>8} {:>7} {:>9}",
                endpoint.name,
                endpoint.state,
                Weight(endpoint),
                endpoint.in_flight,
                endpoint.picks,
                share,
                endpoint.failures,
                endpoint.drops,
                returns.unwrap_or_default(),
            )?;
        }
        Ok(())
    }
}
