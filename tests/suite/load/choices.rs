//! Least request and peak EWMA: who is compared with whom, and what counts as load.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use counterpoise::{
    Attempts, Balance, Builder, Direct, Endpoint, Health, Outcome, discover,
    health::CapacityChange,
    policy::{
        LeastRequest, Members, PeakEwma, PickContext, PickResult, Picker, Policy, RoundRobin,
    },
};
use futures::{FutureExt, future::join_all};
use tower::{Service, ServiceBuilder, ServiceExt};

use crate::{
    bed::{SECOND, eject3},
    fleet::{Fleet, Job, Running, is_likely},
    probes::{Gate, Probe},
    support::{Act, Answer, Broken, picked, settle},
};

const FIVE: [(&str, u32); 5] = [("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1)];

fn healthless() -> Builder {
    Builder::new().health(Health::off())
}

/// Opens calls that hang at this endpoint.
async fn hold<P: Policy<Picker: Picker<Job>>>(
    fleet: &mut Fleet<P>,
    at: &'static str,
    n: usize,
) -> Vec<Running<P>> {
    let others: Vec<_> = fleet
        .sites
        .keys()
        .copied()
        .filter(|&name| name != at)
        .collect();
    for name in &others {
        assert_eq!(
            fleet.balance.set_capacity(name, 0.0),
            CapacityChange::Applied
        );
    }
    fleet.act(at, Act::Hang);
    let calls = (0..n).map(|_| fleet.start()).collect();
    fleet.act(at, Act::Ok);
    for name in &others {
        assert_eq!(
            fleet.balance.set_capacity(name, 1.0),
            CapacityChange::Applied
        );
    }
    assert_eq!(fleet.stats(at).in_flight, n as u64);
    calls
}

async fn b19_two<P: Policy<Picker: Picker<Job>>>(policy: impl Fn() -> P) {
    for seed in 0..64 {
        let builder = healthless().seed(seed).classify(Default::default());
        let mut fleet = Fleet::with(builder, policy(), &FIVE[..2]).await;
        let _held = hold(&mut fleet, "a", 10).await;
        assert_eq!(fleet.share(100, "b").await, 100, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn b19_of_two_endpoints_the_idle_one_gets_everything() {
    b19_two(LeastRequest::new).await;
    b19_two(|| LeastRequest::new().choices(16)).await;
    b19_two(|| LeastRequest::new().full_scan()).await;
    b19_two(PeakEwma::new).await;
}

#[tokio::test(start_paused = true)]
async fn b19_the_only_endpoint_is_taken_without_a_loop() {
    let mut fleet = Fleet::new(healthless(), LeastRequest::new().choices(16), &FIVE[..1]).await;
    let _held = hold(&mut fleet, "a", 10).await;
    assert_eq!(fleet.share(100, "a").await, 100);
    let mut fleet = Fleet::new(healthless(), PeakEwma::new(), &FIVE[..1]).await;
    let _held = hold(&mut fleet, "a", 10).await;
    assert_eq!(fleet.share(100, "a").await, 100);
}

/// Returns the first and the second candidate of each of so many picks. The first one is who is
/// taken from the idle; the second, who is taken while the first is busy.
async fn pairs<P: Policy<Picker: Picker<Job>>>(
    policy: impl Fn() -> P,
    set: &[(&'static str, u32)],
    picks: usize,
) -> Vec<(usize, usize)> {
    let idle = Fleet::new(healthless(), policy(), set).await;
    let mut busy = Vec::new();
    for &(name, _) in set {
        let mut fleet = Fleet::new(healthless(), policy(), set).await;
        let held = hold(&mut fleet, name, 1).await;
        busy.push((fleet, held));
    }
    let pick = |fleet: &Fleet<P>| {
        let name = picked(&fleet.balance, Job::None).unwrap();
        set.iter()
            .position(|&(endpoint, _)| *endpoint == *name)
            .unwrap()
    };
    let mut pairs = Vec::new();
    for _ in 0..picks {
        let first = pick(&idle);
        let seconds: Vec<_> = busy.iter().map(|(fleet, _)| pick(fleet)).collect();
        pairs.push((first, seconds[first]));
    }
    pairs
}

/// Pearson's statistic of pairs that should be uniform.
fn chi_square(pairs: &[(usize, usize)], n: usize) -> f64 {
    let mut counts = BTreeMap::new();
    pairs
        .iter()
        .for_each(|&pair| *counts.entry(pair).or_insert(0_u32) += 1);
    let cells = n * (n - 1);
    let expected = pairs.len() as f64 / cells as f64;
    let missing = (cells - counts.len()) as f64 * expected;
    missing
        + counts
            .values()
            .map(|&c| (f64::from(c) - expected).powi(2) / expected)
            .sum::<f64>()
}

async fn b20_uniform<P: Policy<Picker: Picker<Job>>>(policy: impl Fn() -> P) {
    let pairs = pairs(policy, &FIVE, 8_000).await;
    assert!(pairs.iter().all(|(first, second)| first != second));
    // 19 degrees of freedom: above 43.8 by chance once in a thousand times.
    let chi = chi_square(&pairs, 5);
    assert!(chi < 43.8, "{chi}");
}

#[tokio::test(start_paused = true)]
async fn b20_of_equal_weights_every_pair_is_as_likely() {
    b20_uniform(LeastRequest::new).await;
    b20_uniform(PeakEwma::new).await;
}

async fn b20_weighted<P: Policy<Picker: Picker<Job>>>(policy: impl Fn() -> P) {
    let weights = [1.0, 1.0, 2.0, 4.0];
    let set = [("a", 1), ("b", 1), ("c", 2), ("d", 4)];
    let pairs = pairs(policy, &set, 8_000).await;
    let count = |want: &dyn Fn(&(usize, usize)) -> bool| pairs.iter().filter(|p| want(p)).count();
    assert_eq!(count(&|(first, second)| first == second), 0);
    for (i, weight) in weights.iter().enumerate() {
        assert!(
            is_likely(count(&|(first, _)| *first == i), 8_000, weight / 8.0),
            "first {i}"
        );
        let second = |j: usize| weights[j] / 8.0 * weight / (8.0 - weights[j]);
        let chance: f64 = (0..4).filter(|&j| j != i).map(second).sum();
        assert!(
            is_likely(count(&|(_, second)| *second == i), 8_000, chance),
            "second {i}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn b20_candidates_are_drawn_by_weight_without_return() {
    b20_weighted(LeastRequest::new).await;
    b20_weighted(PeakEwma::new).await;
}

#[tokio::test(start_paused = true)]
async fn b20_without_load_the_shares_are_the_weights() {
    let set = [("a", 1), ("b", 1), ("c", 2), ("d", 4)];
    for policy in [
        LeastRequest::new(),
        LeastRequest::new().choices(3),
        LeastRequest::new().full_scan(),
    ] {
        let mut fleet = Fleet::new(healthless(), policy, &set).await;
        let route = fleet.route(8_000).await;
        for (name, weight) in set {
            let got = route.iter().filter(|&&other| other == name).count();
            assert!(
                is_likely(got, 8_000, f64::from(weight) / 8.0),
                "{name}: {got}, {policy:?}"
            );
        }
        let mut fleet = Fleet::new(healthless(), policy, &FIVE[..4]).await;
        let route = fleet.route(8_000).await;
        for (name, _) in &FIVE[..4] {
            let got = route.iter().filter(|other| *other == name).count();
            assert!((1_800..=2_200).contains(&got), "{name}: {got}, {policy:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn b20_under_load_calls_are_held_in_proportion_to_the_weights() {
    let set = [("a", 1), ("b", 1), ("c", 2), ("d", 4)];
    for full in [false, true] {
        let policy = LeastRequest::new();
        let policy = if full { policy.full_scan() } else { policy };
        let mut fleet = Fleet::new(healthless(), policy, &set).await;
        set.iter().for_each(|(name, _)| fleet.act(name, Act::Hang));
        let _held: Vec<_> = (0..800).map(|_| fleet.start()).collect();
        for (name, weight) in set {
            let (held, want) = (
                fleet.stats(name).in_flight as f64,
                f64::from(weight) * 100.0,
            );
            let slack = if full { 1.0 } else { 12.0 };
            assert!(
                (held - want).abs() <= slack,
                "{name} holds {held}, full scan: {full}"
            );
        }
    }
}

/// Takes turns while the set is filled.
#[derive(Debug)]
struct Filled(LeastRequest, Arc<AtomicBool>);

impl Policy for Filled {
    type Picker = FilledPicker;

    fn build(&self, members: &Members<'_>, previous: Option<&FilledPicker>) -> FilledPicker {
        let inner = self.0.build(members, previous.map(|picker| &picker.0));
        FilledPicker(inner, Arc::clone(&self.1))
    }
}

struct FilledPicker(<LeastRequest as Policy>::Picker, Arc<AtomicBool>);

impl Picker<Job> for FilledPicker {
    fn pick(&self, job: &Job, cx: &PickContext<'_>) -> PickResult {
        match self.1.load(Ordering::Relaxed) {
            true => self.0.pick(job, cx),
            false => PickResult::Any,
        }
    }
}

/// With one idle endpoint among ten thousand busy ones, who looks at two finds it in two of ten
/// thousand picks, and who looks at all finds it always.
#[tokio::test(start_paused = true)]
async fn b20_at_ten_thousand_endpoints_two_are_looked_at() {
    const N: usize = 10_000;
    let names: Vec<_> = (0..N).map(|n| (crate::probes::name("n", n), 1)).collect();
    for (policy, picks, want) in [
        (LeastRequest::new(), N, 0..=10),
        (LeastRequest::new().full_scan(), 20, 20..=20),
    ] {
        let full = Arc::new(AtomicBool::new(false));
        let policy = Filled(policy, Arc::clone(&full));
        let mut fleet = Fleet::new(healthless(), policy, &names).await;
        names
            .iter()
            .for_each(|(name, _)| fleet.act(name, Act::Hang));
        let mut held: Vec<_> = (0..N).map(|_| fleet.start()).collect();
        drop(held.swap_remove(5_000));
        assert_eq!(fleet.stats("n5000").in_flight, 0);
        full.store(true, Ordering::Relaxed);
        let picked = || picked(&fleet.balance, Job::None).unwrap();
        let idle = (0..picks).filter(|_| *picked() == *"n5000").count();
        assert!(want.contains(&idle), "{idle} of {picks}");
    }
}

async fn b76<P: Policy<Picker: Picker<Job>>>(policy: impl Fn() -> P) {
    let policy = policy();
    let mut fleet = Fleet::new(healthless(), policy, &FIVE[..2]).await;
    fleet.handle.remove(&"b");
    settle().await;
    for act in [
        Act::Ok,
        Act::Err,
        Act::Hang,
        Act::After(SECOND),
        Act::Panic,
        Act::Hang,
    ] {
        fleet.act("a", act);
        let mut call = tokio_test::task::spawn(fleet.start());
        match act {
            // Dropped before it was polled.
            Act::After(_) => {}
            Act::Panic => {
                let polled = std::panic::AssertUnwindSafe(async { call.poll() }).catch_unwind();
                assert!(polled.await.is_err());
            }
            _ => assert_eq!(call.poll().is_pending(), act == Act::Hang),
        }
        drop(call);
        assert_eq!(fleet.stats("a").in_flight, 0, "{act:?}");
    }
    fleet.act("a", Act::Ok);
    fleet.join("b", 1).await;
    let share = fleet.share(2_000, "a").await;
    assert!(is_likely(share, 2_000, 0.5), "{share} of 2,000");
}

#[tokio::test(start_paused = true)]
async fn b76_nothing_stays_in_flight_however_a_call_ends() {
    b76(LeastRequest::new).await;
    b76(|| LeastRequest::new().full_scan()).await;
}

#[tokio::test(start_paused = true)]
async fn b81_the_least_calls_for_the_weight_win() {
    for (weights, full, want) in [
        ([1, 1, 1], true, "b"),
        ([4, 1, 1], true, "a"),
        ([4, 2, 1], true, "b"),
    ] {
        let set = [("a", weights[0]), ("b", weights[1]), ("c", weights[2])];
        let policy = if full {
            LeastRequest::new().full_scan()
        } else {
            LeastRequest::new()
        };
        let mut fleet = Fleet::new(healthless(), policy, &set).await;
        let mut held = Vec::new();
        for (name, calls) in [("a", 3), ("b", 1), ("c", 2)] {
            held.extend(hold(&mut fleet, name, calls).await);
        }
        assert_eq!(fleet.route(1).await, [want], "{weights:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn b81_of_two_candidates_the_busier_one_never_wins() {
    let mut fleet = Fleet::new(healthless(), LeastRequest::new(), &FIVE[..3]).await;
    let mut held = Vec::new();
    for (name, calls) in [("a", 3), ("b", 1), ("c", 2)] {
        held.extend(hold(&mut fleet, name, calls).await);
    }
    let route = fleet.route(600).await;
    let count = |name| route.iter().filter(|&&other| other == name).count();
    // A loses against both; C against B.
    assert_eq!(count("a"), 0);
    assert!(is_likely(count("c"), 600, 1.0 / 3.0), "{}", count("c"));
}

#[tokio::test(start_paused = true)]
async fn b82_calls_that_wait_for_readiness_count() {
    let probes = [Probe::gated("a", Gate::Shut), Probe::gated("b", Gate::Open)];
    probes[1].act(Act::Hang);
    let (handle, changes) = discover::channel();
    let policy = LeastRequest::new().full_scan();
    let mut balance = healthless().seed(1).balance(changes, policy).unwrap();
    handle.insert("a", probes[0].endpoint());
    settle().await;
    let spawn = tokio_test::task::spawn;
    let mut waiting: Vec<_> = (0..5).map(|_| spawn(balance.call(()))).collect();
    assert!(waiting.iter_mut().all(|call| call.poll().is_pending()));
    handle.insert("b", probes[1].endpoint());
    settle().await;
    for held in 0..5 {
        assert_eq!(
            picked(&balance, ()).as_deref(),
            Some("b"),
            "5 wait at the other, {held} run here"
        );
        waiting.push(spawn(balance.call(())));
    }
    waiting.push(spawn(balance.call(())));
    let first = picked(&balance, ());
    waiting.push(spawn(balance.call(())));
    let looked = [first, picked(&balance, ())];
    // "a" is not ready: a call that picks it is not sent.
    assert!(
        looked.contains(&None),
        "5 and 5: both are as good, and 7 are too many: {looked:?}"
    );
}

/// As the case has it: the endpoint takes the call at once, and the connection is what is slow.
#[tokio::test(start_paused = true)]
async fn b82_a_burst_is_spread_although_one_connects_slowly() {
    for policy in [LeastRequest::new(), LeastRequest::new().full_scan()] {
        let mut fleet = Fleet::new(healthless(), policy, &FIVE[..2]).await;
        fleet.act("a", Act::After(10 * SECOND));
        fleet.act("b", Act::After(SECOND));
        let calls: Vec<_> = (0..16).map(|_| fleet.start()).collect();
        assert_eq!(
            (fleet.stats("a").in_flight, fleet.stats("b").in_flight),
            (8, 8)
        );
        join_all(calls).await;
    }
}

/// One permit, and calls that come meanwhile fail at once.
fn shedding(
    probe: &Probe,
) -> Endpoint<Direct<tower::util::BoxCloneSyncService<(), Answer, tower::BoxError>>> {
    let shed = ServiceBuilder::new()
        .load_shed()
        .concurrency_limit(1)
        .service(probe.clone());
    Endpoint::new(Direct(tower::util::BoxCloneSyncService::new(shed)))
}

async fn b110<P: Policy<Picker: Picker<()>>>(policy: P, health: Health) -> (Vec<bool>, usize) {
    let probes = [Probe::gated("a", Gate::Open), Probe::gated("b", Gate::Open)];
    probes[0].act(Act::Hang);
    let (handle, changes) = discover::channel();
    let builder = Builder::new().health(health).seed(1).starting_at(0);
    let mut balance: Balance<_, P> = builder.balance(changes, policy).unwrap();
    handle.insert("a", shedding(&probes[0]));
    settle().await;
    let mut held = tokio_test::task::spawn(balance.call(()));
    assert!(held.poll().is_pending());
    handle.insert("b", shedding(&probes[1]));
    settle().await;
    let mut good = Vec::new();
    for _ in 0..10 {
        good.push(balance.ready().await.unwrap().call(()).await.is_ok());
    }
    let refused = balance.stats().endpoint("a").unwrap().failures as usize;
    (good, refused)
}

#[tokio::test(start_paused = true)]
async fn b110_an_endpoint_that_sheds_is_avoided_by_its_load() {
    assert_eq!(
        b110(LeastRequest::new(), Health::off()).await,
        (vec![true; 10], 0)
    );
}

#[tokio::test(start_paused = true)]
async fn b110_an_endpoint_that_sheds_is_ejected_for_it() {
    let (good, refused) = b110(RoundRobin::new(), eject3()).await;
    assert_eq!(refused, 3, "{good:?}");
    assert!(good[6..].iter().all(|&good| good), "{good:?}");
}

/// Under least request shedding is seen in the load; a classifier that ignores it, with
/// retries above, moves each refused call on.
#[tokio::test(start_paused = true)]
async fn b110_shedding_that_is_ignored_ejects_nobody() {
    let ignored = |result: Result<&Answer, &Broken>| match result {
        Ok(_) => Outcome::Success,
        Err(_) => Outcome::Neutral,
    };
    let probes = [Probe::gated("a", Gate::Open), Probe::gated("b", Gate::Open)];
    probes[0].act(Act::Err);
    let list = discover::list([("a", probes[0].endpoint()), ("b", probes[1].endpoint())]);
    let builder = Builder::new()
        .health(eject3())
        .starting_at(0)
        .classify_fn(ignored);
    let mut balance = builder.balance(list, RoundRobin::new()).unwrap();
    settle().await;
    for _ in 0..20 {
        let attempts = Attempts::new();
        let first = attempts.scope(crate::probes::call(&mut balance)).await;
        if first.is_err() {
            let second = attempts.scope(crate::probes::call(&mut balance)).await;
            assert_eq!(second.unwrap(), Answer::From("b"));
        }
    }
    let a = balance.stats().endpoint("a").unwrap().clone();
    assert_eq!((a.ejections, a.failures, a.consecutive_failures), (0, 0, 0));
    assert!(a.neutrals >= 10, "it keeps its turns: {}", a.neutrals);
}
