//! One contract over every policy: whatever happens to the set, nobody gets more than twice its
//! share of the calls of a phase. (After Finagle's load distribution suite.)

use std::any::type_name;

use counterpoise::{
    Builder,
    policy::{
        LeastRequest, ModuloRoundRobin, PeakEwma, Picker, Policy, Random, RoundRobin,
        SmoothWeighted, WeightedRandom,
    },
};
use tokio::time::advance;

use crate::{
    bed::{MILLISECOND, eject1},
    fleet::{Fleet, Job, Push, Sharing, each_policy},
    probes::name,
};

/// So many servers at the start, and calls a phase.
const SERVERS: usize = 12;
const CALLS: usize = 1_152;

fn names(range: std::ops::Range<usize>) -> Vec<(&'static str, u32)> {
    thread_local! {
        static NAMES: Vec<&'static str> = (0..64).map(|n| name("server-", n)).collect();
    }
    NAMES.with(|names| names[range].iter().map(|&name| (name, 1)).collect())
}

/// What a site had got before the phase.
type Before = std::collections::BTreeMap<&'static str, usize>;

/// A phase: calls, among which the set changes at regular distances.
struct Phase<P: Policy<Picker: Picker<Job>>> {
    fleet: Fleet<P>,
    before: Before,
    calls: usize,
    /// The sum of the shares that each endpoint should have got.
    optimal: std::collections::BTreeMap<&'static str, f64>,
}

impl<P: Policy<Picker: Picker<Job>>> Phase<P> {
    async fn new(policy: P, servers: usize) -> Self {
        let builder = Builder::new().health(eject1());
        let fleet = Fleet::new(builder, policy, &names(0..servers)).await;
        let mut phase = Self {
            fleet,
            before: Before::new(),
            calls: 0,
            optimal: Default::default(),
        };
        phase.calls(CALLS).await;
        phase.check("at the start");
        phase
    }

    /// Makes calls, and notes what is due to everybody.
    async fn calls(&mut self, calls: usize) {
        let members: Vec<_> = self
            .fleet
            .balance
            .stats()
            .endpoints
            .iter()
            .map(|e| e.name.to_string())
            .collect();
        for name in &members {
            let (name, _) = self.fleet.sites.get_key_value(&**name).unwrap();
            *self.optimal.entry(name).or_default() += calls as f64 / members.len() as f64;
        }
        for _ in 0..calls / 4 {
            // Four at a time, as clients do.
            let four: Vec<_> = (0..4).map(|_| self.fleet.start()).collect();
            for call in four {
                call.await.unwrap();
            }
            advance(MILLISECOND).await;
        }
        self.calls += calls;
    }

    /// Ends the phase.
    fn check(&mut self, phase: &str) {
        let mut total = 0;
        for (name, optimal) in std::mem::take(&mut self.optimal) {
            let calls = self.fleet.calls(name);
            let got = calls - self.before.insert(name, calls).unwrap_or(0);
            total += got;
            let said = format!(
                "{}, {phase}: {name} got {got} for {optimal}",
                type_name::<P>()
            );
            assert!(got as f64 <= 2.0 * optimal, "{said}");
        }
        assert_eq!(total, std::mem::take(&mut self.calls), "{phase}");
    }
}

async fn servers_deploy<P: Policy<Picker: Picker<Job>>>(_: Sharing, policy: P) {
    let mut phase = Phase::new(policy, SERVERS).await;
    // In thirds: new ones come, old ones go.
    for third in 0..3 {
        let (old, new) = (third * 4, SERVERS + third * 4);
        phase.fleet.join_all(&names(new..new + 4)).await;
        phase.calls(CALLS / 6).await;
        for (name, _) in names(old..old + 4) {
            phase.fleet.leave(name).await;
        }
        phase.calls(CALLS / 6).await;
    }
    phase.check("a deploy");
    phase.calls(CALLS).await;
    phase.check("after a deploy");
}

async fn servers_restart<P: Policy<Picker: Picker<Job>>>(_: Sharing, policy: P) {
    let mut phase = Phase::new(policy, SERVERS).await;
    // Each leaves and joins again, under its name.
    for (name, weight) in names(0..SERVERS) {
        phase.fleet.leave(name).await;
        phase.calls(CALLS / 24).await;
        phase.fleet.join(name, weight).await;
        phase.calls(CALLS / 24).await;
    }
    phase.check("restarts");
}

async fn set_shrinks<P: Policy<Picker: Picker<Job>>>(_: Sharing, policy: P) {
    let mut phase = Phase::new(policy, SERVERS).await;
    for (name, _) in names(0..SERVERS - 3) {
        phase.fleet.leave(name).await;
        phase.calls(CALLS / 12).await;
    }
    phase.check("a shrink");
    phase.calls(CALLS).await;
    phase.check("after a shrink");
}

async fn set_expands<P: Policy<Picker: Picker<Job>>>(_: Sharing, policy: P) {
    let mut phase = Phase::new(policy, 3).await;
    for (name, weight) in names(3..SERVERS) {
        phase.fleet.join(name, weight).await;
        phase.calls(CALLS / 12).await;
    }
    phase.check("an expansion");
    phase.calls(CALLS).await;
    phase.check("after an expansion");
}

async fn failures_and_returns<P: Policy<Picker: Picker<Job>>>(_: Sharing, policy: P) {
    let mut phase = Phase::new(policy, SERVERS).await;
    // One fails for a while: its share goes to all others, not to a neighbour.
    let (victim, _) = names(4..5)[0];
    phase.fleet.eject(victim).await;
    phase.before = phase
        .fleet
        .sites
        .keys()
        .map(|&name| (name, phase.fleet.calls(name)))
        .collect();
    phase.calls(CALLS).await;
    phase.check("with one out");
    assert_eq!(phase.fleet.stats(victim).ejections, 1);
}

macro_rules! contract {
    ($($name:ident => $case:ident,)*) => {$(
        #[tokio::test(start_paused = true)]
        async fn $name() {
            each_policy!($case);
        }
    )*};
}

contract! {
    a_rolling_deploy_overloads_nobody => servers_deploy,
    rolling_restarts_overload_nobody => servers_restart,
    a_shrink_overloads_nobody => set_shrinks,
    an_expansion_overloads_nobody => set_expands,
    an_ejection_overloads_nobody => failures_and_returns,
}

/// A hundred clients with few calls each start up at once, as in B16: together they are fair.
async fn clients_deploy<P: Policy<Picker: Picker<Job>>>(policy: impl Fn() -> P) {
    let (mut first, mut all) = (Before::new(), Before::new());
    let servers = names(0..4);
    for seed in 0..100 {
        let builder = Builder::new().seed(seed).classify(Push(None));
        let mut fleet = Fleet::with(builder, policy(), &servers).await;
        let route = fleet.route(6).await;
        *first.entry(route[0]).or_default() += 1;
        route
            .into_iter()
            .for_each(|name| *all.entry(name).or_default() += 1);
    }
    let said = format!("{}: {first:?}, {all:?}", type_name::<P>());
    assert!(
        first.len() == 4 && first.values().all(|&count| count >= 10),
        "{said}"
    );
    assert!(all.values().all(|&count| count <= 300), "{said}");
}

#[tokio::test(start_paused = true)]
async fn b16_many_clients_that_start_overload_nobody() {
    clients_deploy(RoundRobin::new).await;
    clients_deploy(ModuloRoundRobin::new).await;
    clients_deploy(SmoothWeighted::new).await;
    clients_deploy(Random::new).await;
    clients_deploy(WeightedRandom::new).await;
    clients_deploy(LeastRequest::new).await;
    clients_deploy(|| LeastRequest::new().full_scan()).await;
    clients_deploy(PeakEwma::new).await;
}

/// Rebuilds after every two calls, as in B14, with one endpoint at half its capacity: always,
/// or by turns.
async fn rebuilt<P: Policy<Picker: Picker<Job>>>(policy: P, by_turns: bool) -> Vec<usize> {
    let set = names(0..6);
    let builder = Builder::new().seed(1).classify(Push(None));
    let mut fleet = Fleet::with(builder, policy, &set).await;
    for step in 0..275 {
        let factor = if by_turns && step % 2 == 0 { 1.0 } else { 0.5 };
        let _ = fleet.balance.set_capacity(set[5].0, factor);
        match step % 2 {
            0 => fleet.join("drained", 0).await,
            _ => fleet.leave("drained").await,
        }
        fleet.route(2).await;
    }
    set.iter().map(|(name, _)| fleet.calls(name)).collect()
}

#[tokio::test(start_paused = true)]
async fn b14_rebuilds_restart_no_rotation_while_capacities_differ() {
    for by_turns in [false, true] {
        for counts in [
            rebuilt(RoundRobin::new(), by_turns).await,
            rebuilt(ModuloRoundRobin::new(), by_turns).await,
            rebuilt(SmoothWeighted::new(), by_turns).await,
        ] {
            let (last, whole) = counts.split_last().unwrap();
            assert!(
                whole.iter().all(|count| (88..=112).contains(count)),
                "{counts:?} {by_turns}"
            );
            assert!((45..=80).contains(last), "{counts:?}");
        }
    }
}
