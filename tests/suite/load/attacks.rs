//! Attacks on what is measured of calls: windows that end while calls do, costs at the ends of
//! time, weights at the ends of their range, and memory.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use allocation_counter::measure;
use counterpoise::{
    Balance, Builder, Direct, Endpoint, Health, Outcome, discover,
    health::{LatencyWeights, OutlierDetection, SlowStart},
    policy::{LeastRequest, PeakEwma, Picker, Policy, RoundRobin, WeightedRandom},
};
use futures::{FutureExt, channel::oneshot};
use tokio::time::advance;
use tower::{Service, service_fn, util::ServiceFn};

use crate::{
    bed::{MILLISECOND, SECOND},
    keyed_bed::at_once,
    support::settle,
};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// What an endpoint does: nothing but to wait for what it is to say.
type Reply = oneshot::Receiver<Result<(), ()>>;
type Wait = futures::future::Map<Reply, fn(Result<Result<(), ()>, oneshot::Canceled>) -> Said>;
type Said = Result<(), std::io::Error>;
type Told = Direct<ServiceFn<fn(Reply) -> Wait>>;

fn tell(reply: Reply) -> Wait {
    reply.map(|said| match said {
        Ok(Ok(())) => Ok(()),
        _ => Err(std::io::Error::other("no")),
    })
}

fn told() -> Endpoint<Told> {
    Endpoint::new(Direct(service_fn(tell as fn(Reply) -> Wait)))
}

/// An endpoint that is done at once, without allocating.
type Idle = Direct<ServiceFn<fn(()) -> std::future::Ready<Said>>>;

fn idle() -> Endpoint<Idle> {
    Endpoint::new(Direct(service_fn(
        (|()| std::future::ready(Ok(()))) as fn(()) -> _,
    )))
}

async fn idlers<P: Policy>(builder: Builder, policy: P, n: usize) -> Balance<Idle, P> {
    let list = discover::list((0..n).map(|i| (i, idle())));
    let balance = builder
        .starting_at(0)
        .seed(1)
        .balance(list, policy)
        .unwrap();
    settle().await;
    balance
}

// ===== windows =====

/// Windows are taken while calls end: no window may hold more slow calls than calls.
#[test]
fn a_window_that_ends_while_calls_do_is_judged_all_the_same() {
    let rule = OutlierDetection::new()
        .min_calls(1)
        .margin(0.0)
        .false_ejections(0.5)
        .slower_than(1.001);
    let health = Health::new()
        .outlier_detection(rule)
        .interval(MILLISECOND)
        .max_ejected(0.0);
    // Every other call of B takes a while.
    let work = |turns: usize| {
        service_fn(move |()| {
            (0..turns).for_each(|i| {
                let _ = std::hint::black_box(i);
            });
            std::future::ready(Said::Ok(()))
        })
    };
    let list = discover::list([
        ("a", Endpoint::new(Direct(work(0)))),
        ("b", Endpoint::new(Direct(work(300)))),
        ("c", Endpoint::new(Direct(work(0)))),
    ]);
    let builder = Builder::new().health(health);
    let (layer, driver) = builder.pair(list, RoundRobin::new()).unwrap();
    assert!(Box::pin(driver).as_mut().now_or_never().is_some());
    let balance = tower::Layer::layer(&layer, ());
    let calls = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut balance = balance.clone();
                for _ in 0..150_000 {
                    at_once(balance.call(())).unwrap();
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let stats = balance.stats();
    let done: u64 = stats
        .endpoints
        .iter()
        .map(|endpoint| endpoint.successes)
        .sum();
    assert_eq!(done, calls.load(Ordering::Relaxed) as u64);
    assert!(
        stats
            .endpoints
            .iter()
            .all(|endpoint| endpoint.in_flight == 0)
    );
}

// ===== costs =====

/// Whatever happens in whatever time, a cost is a positive number, failure does not lower it,
/// and calls go on.
async fn costs(policy: PeakEwma, builder: Builder) {
    let names = ["a", "b", "c"];
    let list = discover::list(names.map(|name| (name, told())));
    let mut balance = builder
        .starting_at(0)
        .seed(5)
        .balance(list, policy)
        .unwrap();
    settle().await;
    let costs = |balance: &Balance<Told, PeakEwma>| {
        let stats = balance.stats();
        let costs = stats
            .endpoints
            .iter()
            .map(|endpoint| endpoint.latency.unwrap());
        let costs: Vec<_> = costs.collect();
        assert!(
            costs.iter().all(|cost| !cost.is_zero()),
            "{policy:?}: {costs:?}"
        );
        costs
    };
    costs(&balance);
    let times = [MILLISECOND / 1_000, MILLISECOND, SECOND, YEAR];
    for (step, &took) in times.iter().cycle().take(36).enumerate() {
        let mut calls = Vec::new();
        for _ in 0..6 {
            let (says, reply) = oneshot::channel();
            calls.push((says, balance.call(reply)));
        }
        advance(took).await;
        let before = costs(&balance);
        let success = step % 3 == 0;
        for (i, (says, call)) in calls.into_iter().enumerate() {
            match (step + i) % 4 {
                _ if success => drop((says.send(Ok(())), at_once(call))),
                0 => drop(call),
                1 => drop((says.send(Err(())), at_once(call))),
                _ => drop((says, call)),
            }
        }
        let after = costs(&balance);
        // After years a double knows instants to some nanoseconds: of a millisecond's decay.
        if !success {
            let lower = before
                .iter()
                .zip(&after)
                .any(|(before, after)| after.as_secs_f64() < before.as_secs_f64() * (1.0 - 1e-3));
            assert!(!lower, "{policy:?} at step {step}: {before:?} {after:?}");
        }
        advance(times[(3 * step) % times.len()]).await;
        costs(&balance);
    }
    for endpoint in balance.stats().endpoints {
        assert_eq!(endpoint.in_flight, 0);
        assert!(endpoint.picks > 0, "{policy:?}: {endpoint:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn costs_are_positive_numbers_at_the_ends_of_time() {
    for decay in [Duration::ZERO, 10 * SECOND, YEAR, Duration::MAX] {
        for penalty in [None, Some(Duration::ZERO), Some(Duration::MAX)] {
            let policy = PeakEwma::new().decay(decay);
            let policy = penalty.map_or(policy, |penalty| policy.penalty(penalty));
            costs(policy, Builder::new().health(Health::off())).await;
            let health = Health::new()
                .slow_start(SlowStart::new(YEAR))
                .outlier_detection(OutlierDetection::new().slower_than(1e300))
                .latency_weights(LatencyWeights::new().min_calls(1))
                .interval(YEAR);
            costs(policy, Builder::new().health(health)).await;
        }
    }
}

// ===== weights =====

/// Sums of weights beyond 2^63: nobody is out of range, everybody has a share.
async fn heavy<P: Policy<Picker: Picker<()>> + Policy>(policy: P) {
    const N: usize = 33_000;
    let weight = |i: usize| if i == 7 { 1 } else { u32::MAX };
    let list = discover::list((0..N).map(|i| (i, idle().weight(weight(i)))));
    let mut balance = Builder::new()
        .seed(1)
        .starting_at(0)
        .balance(list, policy)
        .unwrap();
    balance.ready_when(N).await.unwrap();
    // From here on weights are multiplied by capacities.
    let _ = balance.set_capacity("7", 1e-9);
    let _ = balance.set_capacity("8", 1e-9);
    for _ in 0..N {
        balance.call(()).await.unwrap();
    }
    let stats = balance.stats();
    let picked = stats
        .endpoints
        .iter()
        .filter(|endpoint| endpoint.picks > 0)
        .count();
    // By draws a 1/e-th part is never drawn.
    assert!(picked > N / 2, "{picked}");
    let most = stats.endpoints.iter().map(|endpoint| endpoint.picks).max();
    assert!(most < Some(20), "{most:?}");
    assert!(
        stats.endpoints[7..9]
            .iter()
            .all(|endpoint| endpoint.picks < 2)
    );
}

#[tokio::test(start_paused = true)]
async fn sums_of_weights_beyond_63_bits() {
    heavy(LeastRequest::new()).await;
    heavy(LeastRequest::new().choices(16)).await;
    heavy(PeakEwma::new()).await;
    heavy(WeightedRandom::new()).await;
}

// ===== memory =====

/// A call allocates nothing of ours, whatever is measured, and whatever reads it.
async fn frugal<P: Policy<Picker: Picker<()>>>(policy: P) {
    let health = Health::new()
        .outlier_detection(OutlierDetection::new().slower_than(2.0))
        .latency_weights(LatencyWeights::new())
        .slow_start(SlowStart::new(SECOND))
        .interval(YEAR);
    let builder = Builder::new().health(health).on_event(|_| ());
    let mut balance = idlers(builder, policy, 100).await;
    for capacity in [1.0, 0.5] {
        let _ = balance.set_capacity("7", capacity);
        // A sequence that is made ahead has its block now.
        (0..8).for_each(|_| at_once(balance.call(())).unwrap());
        let info = measure(|| (0..100).for_each(|_| at_once(balance.call(())).unwrap()));
        assert_eq!(info.count_total, 0, "{}", std::any::type_name::<P>());
    }
}

#[tokio::test(start_paused = true)]
async fn calls_allocate_nothing_whatever_is_measured() {
    frugal(RoundRobin::new()).await;
    frugal(WeightedRandom::new()).await;
    frugal(LeastRequest::new()).await;
    frugal(LeastRequest::new().choices(16)).await;
    frugal(LeastRequest::new().full_scan()).await;
    frugal(LeastRequest::new().penalty(SECOND)).await;
    frugal(PeakEwma::new()).await;
    frugal(counterpoise::policy::Random::new()).await;
}

/// An outcome that pushes back for ever is bounded, and fits.
#[tokio::test(start_paused = true)]
async fn push_back_for_longer_than_time_lasts() {
    let list = discover::list(["a", "b"].map(|name| (name, told())));
    let classify = |_: Result<&(), &std::io::Error>| Outcome::OverloadFor(Duration::MAX);
    let overload = counterpoise::health::Overload::new()
        .hold(YEAR)
        .max_hold(YEAR);
    let health = Health::new()
        .overload(overload)
        .slow_start(SlowStart::new(YEAR));
    let builder = Builder::new().health(health).classify_fn(classify);
    let mut balance = builder
        .starting_at(0)
        .balance(list, RoundRobin::new())
        .unwrap();
    settle().await;
    for _ in 0..20 {
        let (says, reply) = oneshot::channel();
        let call = balance.call(reply);
        advance(YEAR / 3).await;
        says.send(Ok(())).unwrap();
        assert!(at_once(call).is_ok());
        let stats = balance.stats();
        for endpoint in stats.endpoints {
            assert!(
                (0.09..=1.0).contains(&endpoint.effective_weight),
                "{endpoint:?}"
            );
        }
    }
}
