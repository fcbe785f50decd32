//! How many endpoints may be out at once, and what happens when too many are.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use counterpoise::{
    Builder, Direct, Endpoint, Health, discover, error::ErrorKind, health::PanicMode,
    observe::EndpointState, policy::RoundRobin,
};
use futures::FutureExt;
use tokio::time::advance;
use tower::{Service, ServiceExt};

use crate::{
    bed::{Bed, MILLISECOND, SECOND, eject1, eject3, share},
    support::{Act, Site, settle},
};

// ===== everything, and the only one =====

#[tokio::test(start_paused = true)]
async fn b56_with_all_ejected_calls_go_to_all_at_once() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.sites["a"].act(Act::Err);
    bed.sites["b"].act(Act::Err);
    assert_eq!(bed.route(6).await, "ababab");
    assert!(bed.balance.stats().panic);
    assert_eq!(
        ["a", "b"].map(|name| bed.state(name)),
        [EndpointState::Ejected; 2]
    );
    let error = bed
        .start()
        .now_or_never()
        .expect("ends in the same poll")
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Call);
    let route = bed.route(9).await;
    assert_eq!(["a", "b"].map(|name| bed.calls(name)), [8, 8], "{route}");
}

#[tokio::test(start_paused = true)]
async fn b56_with_all_ejected_calls_fail_at_once_if_that_is_the_rule() {
    let mut bed = Bed::new(&["a", "b"], eject3().panic_mode(PanicMode::Fail)).await;
    bed.eject("a").await;
    bed.eject("b").await;
    let before = ["a", "b"].map(|name| bed.calls(name));
    for _ in 0..10 {
        let error = bed
            .start()
            .now_or_never()
            .expect("ends in the same poll")
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ejected);
        assert_eq!((error.counts().members, error.counts().ejected), (2, 2));
        assert!(
            error.to_string().contains("2 members, 2 ejected"),
            "{error}"
        );
    }
    assert_eq!(["a", "b"].map(|name| bed.calls(name)), before);
    advance(10 * SECOND).await;
    assert_eq!(
        bed.route(2).await,
        "ab",
        "both trials, without any change of the set"
    );
    assert_eq!(share(&bed.route(10).await, "a"), 5);
}

#[tokio::test(start_paused = true)]
async fn b56_traffic_resumes_after_the_period_without_any_change_of_the_set() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.eject("a").await;
    bed.eject("b").await;
    advance(10 * SECOND).await;
    assert_eq!(bed.route(2).await, "ab", "both trials");
    assert!(!bed.balance.stats().panic);
    assert_eq!(
        ["a", "b"].map(|name| bed.state(name)),
        [EndpointState::Serving; 2]
    );
}

#[tokio::test(start_paused = true)]
async fn b57_the_only_endpoint_is_never_ejected() {
    let mut bed = Bed::new(&["a"], Health::new()).await;
    bed.sites["a"].act(Act::Err);
    assert_eq!(bed.route(10).await, "a".repeat(10));
    assert_eq!((bed.calls("a"), bed.stats("a").ejections), (10, 0));
    assert_eq!(bed.state("a"), EndpointState::Serving);
}

#[tokio::test(start_paused = true)]
async fn b57_the_only_endpoint_with_a_weight_is_never_ejected() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.announce("b", 0).await;
    bed.sites["a"].act(Act::Err);
    assert_eq!(bed.route(10).await, "a".repeat(10));
    assert_eq!(bed.state("a"), EndpointState::Serving);
}

#[tokio::test(start_paused = true)]
async fn b57_who_becomes_the_only_endpoint_is_back_at_once() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.eject("a").await;
    bed.remove("b").await;
    assert_eq!(bed.state("a"), EndpointState::Serving);
    assert!(!bed.balance.stats().panic);
    assert_eq!(bed.route(5).await, "aaaaa");
}

#[tokio::test(start_paused = true)]
async fn b57_who_becomes_the_only_endpoint_with_a_weight_is_back_at_once() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.eject("a").await;
    bed.announce("b", 0).await;
    assert_eq!(bed.state("a"), EndpointState::Serving);
    assert_eq!(bed.route(5).await, "aaaaa");
}

// ===== the limit of ejections =====

const TEN: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

pub(super) fn ejected(bed: &Bed) -> Vec<String> {
    let stats = bed.balance.stats();
    let out = stats
        .endpoints
        .iter()
        .filter(|e| e.state == EndpointState::Ejected);
    out.map(|endpoint| endpoint.name.to_string()).collect()
}

/// Fails everything for long enough that all would be ejected.
pub(super) async fn fail_all(bed: &mut Bed) {
    let stats = bed.balance.stats();
    stats
        .endpoints
        .iter()
        .for_each(|endpoint| bed.sites[&*endpoint.name].act(Act::Err));
    bed.route(100).await;
}

#[tokio::test(start_paused = true)]
async fn no_more_than_the_allowed_share_is_ejected() {
    for (n, share, limit) in [
        (10, 0.0, 0),
        (10, 0.05, 1),
        (10, 0.5, 5),
        (10, 0.59, 5),
        (10, 0.7, 7),
        (10, 1.0, 10),
        (3, 0.1, 1),
        (3, 0.5, 1),
        (2, 0.01, 1),
        (1, 1.0, 0),
    ] {
        let mut bed = Bed::new(&TEN[..n], eject1().max_ejected(share)).await;
        fail_all(&mut bed).await;
        assert_eq!(ejected(&bed).len(), limit, "{share} of {n}");
        assert_eq!(bed.balance.stats().counts.ejected, limit);
    }
}

#[tokio::test(start_paused = true)]
async fn drained_endpoints_are_no_part_of_the_share() {
    let mut bed = Bed::new(&TEN, eject1().max_ejected(0.5)).await;
    for name in &TEN[4..] {
        bed.announce(name, 0).await;
    }
    fail_all(&mut bed).await;
    assert_eq!(ejected(&bed).len(), 2, "half of four");
}

#[tokio::test(start_paused = true)]
async fn after_a_shrink_those_come_back_that_would_be_back_soonest() {
    let mut bed = Bed::new(&TEN, eject1().max_ejected(0.5)).await;
    for name in ["e", "d", "c", "b", "a"] {
        bed.eject(name).await;
        advance(SECOND).await;
    }
    for name in &TEN[5..8] {
        bed.handle.remove(name);
    }
    settle().await;
    assert_eq!(ejected(&bed), ["a", "b", "c"], "3 of 7");
    assert_eq!(bed.stats("d").consecutive_failures, 0);
    bed.remove("i").await;
    assert_eq!(ejected(&bed), ["a", "b", "c"], "3 of 6");
    bed.announce("j", 0).await;
    assert_eq!(ejected(&bed), ["a", "b"], "2 of 5");
    assert_eq!(bed.route(6).await.replace(['c', 'd', 'e'], "."), "......");
}

#[tokio::test(start_paused = true)]
async fn the_limit_is_that_of_the_members_after_a_growth() {
    let mut bed = Bed::new(&["a", "b"], eject1().max_ejected(0.5)).await;
    fail_all(&mut bed).await;
    assert_eq!(ejected(&bed), ["a"]);
    for site in ["c", "d"] {
        bed.handle.insert(site, Site::new(site).endpoint());
    }
    settle().await;
    bed.route(4).await;
    assert_eq!(ejected(&bed), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn who_was_spared_by_the_limit_is_ejected_once_there_is_room() {
    let mut bed = Bed::new(&["a", "b"], eject3().max_ejected(0.5)).await;
    fail_all(&mut bed).await;
    assert_eq!(ejected(&bed), ["a"]);
    assert!(bed.stats("b").consecutive_failures > 3);
    bed.sites["a"].act(Act::Ok);
    advance(10 * SECOND).await;
    assert_eq!(bed.route(3).await, "aba", "the trial, then the rotation");
    assert_eq!(ejected(&bed), ["b"]);
}

/// Fails at once while the flag is set.
fn failing_while(fails: &Arc<AtomicBool>) -> Endpoint<Direct<Site>> {
    let fails = Arc::clone(fails);
    let act = move |_| {
        if fails.load(Ordering::Relaxed) {
            Act::Err
        } else {
            Act::Ok
        }
    };
    Site::new("it").acting(act).endpoint()
}

/// Discovers this many endpoints, which all fail at once.
pub(crate) fn failing(n: usize, fails: &Arc<AtomicBool>) -> discover::List<usize, Direct<Site>> {
    discover::list((0..n).map(|i| (i, failing_while(fails))))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_limit_holds_under_concurrency() {
    let fails = Arc::new(AtomicBool::new(true));
    let health = eject3().max_ejected(0.4).base_ejection(300 * SECOND);
    for n in [2, 5, 10, 33] {
        let list = failing(n, &fails);
        let builder = Builder::new().health(health.clone()).starting_at(0);
        let balance = builder.balance(list, RoundRobin::new()).unwrap();
        balance.ready_when(n).await.unwrap();
        let (limit, most) = ((n * 2 / 5).max(1), Arc::new(AtomicUsize::new(0)));
        let callers = (0..8).map(|_| {
            let (mut balance, most) = (balance.clone(), Arc::clone(&most));
            tokio::spawn(async move {
                for _ in 0..500 {
                    let _ = balance.ready().await.unwrap().call(()).await;
                    most.fetch_max(balance.stats().counts.ejected, Ordering::Relaxed);
                }
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await.unwrap();
        }
        assert_eq!(most.load(Ordering::Relaxed), limit, "{n} endpoints");
        assert_eq!(balance.stats().counts.ejected, limit, "{n} endpoints");
        let picks: u64 = balance
            .stats()
            .endpoints
            .iter()
            .map(|endpoint| endpoint.picks)
            .sum();
        assert_eq!(picks, 8 * 500);
    }
}

// ===== large sets, where snapshots are compiled for many transitions at once =====

#[tokio::test(start_paused = true)]
async fn in_a_large_set_a_gate_closes_before_the_next_snapshot() {
    let (good, bad) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(true)),
    );
    let of = |i: usize| {
        if i.is_multiple_of(3) {
            bad.clone()
        } else {
            good.clone()
        }
    };
    let list = discover::list((0..900).map(|i| (i, failing_while(&of(i)))));
    let builder = Builder::new().health(eject1()).starting_at(0);
    let mut balance = builder.balance(list, RoundRobin::new()).unwrap();
    let mut failures = 0;
    for _ in 0..9_000 {
        failures += usize::from(balance.ready().await.unwrap().call(()).await.is_err());
    }
    assert_eq!((failures, balance.stats().counts.ejected), (300, 300));
    bad.store(false, Ordering::Relaxed);
    advance(10 * SECOND).await;
    for _ in 0..300 {
        balance.ready().await.unwrap().call(()).await.unwrap();
    }
    assert_eq!(balance.stats().counts.ejected, 0, "each was tried once");
    advance(10 * MILLISECOND).await;
    let before = balance.stats();
    for _ in 0..9_000 {
        balance.ready().await.unwrap().call(()).await.unwrap();
    }
    let after = balance.stats();
    for (now, then) in after.endpoints.iter().zip(&before.endpoints) {
        assert_eq!(now.picks - then.picks, 10, "endpoint {}", now.name);
    }
}

#[tokio::test(start_paused = true)]
async fn in_a_large_set_that_fails_as_a_whole_each_endpoint_fails_once() {
    let fails = Arc::new(AtomicBool::new(true));
    let list = failing(2_000, &fails);
    let builder = Builder::new().health(eject1()).starting_at(0);
    let mut balance = builder.balance(list, RoundRobin::new()).unwrap();
    for _ in 0..2_000 {
        balance.ready().await.unwrap().call(()).await.unwrap_err();
    }
    let stats = balance.stats();
    assert!(
        stats
            .endpoints
            .iter()
            .all(|endpoint| (endpoint.picks, endpoint.ejections) == (1, 1))
    );
    assert!(stats.panic);
    balance.ready().await.unwrap().call(()).await.unwrap_err();
    fails.store(false, Ordering::Relaxed);
    balance.ready().await.unwrap().call(()).await.unwrap();
    assert_eq!(balance.stats().counts.ejected, 1_999);
    assert!(!balance.stats().panic);
}

// ===== all of it at once =====

/// Waits a little, then fails if the flag was set when the call began.
fn slow(fails: &Arc<AtomicBool>) -> Endpoint<Direct<Site>> {
    let fails = Arc::clone(fails);
    let act = move |_| match fails.load(Ordering::Relaxed) {
        true => Act::FailYield(1),
        false => Act::Yield(1),
    };
    Site::new("it").acting(act).endpoint()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_drops_failures_and_changes_at_once_leak_nothing() {
    let flags: Vec<_> = (0..6).map(|_| Arc::new(AtomicBool::new(false))).collect();
    let endpoint = |i: usize| slow(&flags[i]);
    let (handle, changes) = discover::channel();
    handle.set((0..6).map(|i| (i, endpoint(i))));
    // Periods are over at once, so that trials are part of it all the time.
    let health = eject3().base_ejection(Duration::from_nanos(1)).growth(1.0);
    let health = health.drop_counts_after(Duration::ZERO);
    let balance = Builder::new()
        .health(health)
        .balance(changes, RoundRobin::new())
        .unwrap();
    balance.ready_when(6).await.unwrap();
    let callers = (0..8).map(|caller| {
        let mut balance = balance.clone();
        tokio::spawn(async move {
            for call in 0..500 {
                let future = balance.ready().await.unwrap().call(());
                if (caller + call) % 5 == 0 {
                    drop(future.now_or_never());
                } else if let Err(error) = future.await {
                    assert_eq!(error.kind(), ErrorKind::Call, "{error}");
                }
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    for round in 0..500 {
        flags[round % 6].store(round % 4 < 2, Ordering::Relaxed);
        match round % 3 {
            0 => handle.remove(&(1 + round % 5)),
            1 => handle.insert(1 + round % 5, endpoint(1 + round % 5)),
            _ => handle.insert(0, endpoint(0).weight(1 + round as u32)),
        }
        tokio::task::yield_now().await;
    }
    for caller in callers {
        caller.await.unwrap();
    }
    flags
        .iter()
        .for_each(|flag| flag.store(false, Ordering::Relaxed));
    handle.set((0..6).map(|i| (i, endpoint(i))));
    balance.ready_when(6).await.unwrap();
    let mut balance = balance;
    for _ in 0..60 {
        balance.ready().await.unwrap().call(()).await.unwrap();
    }
    let stats = balance.stats();
    for endpoint in &stats.endpoints {
        assert_eq!(
            (endpoint.in_flight, endpoint.state),
            (0, EndpointState::Serving),
            "{stats}"
        );
        let ended = endpoint.successes + endpoint.failures + endpoint.drops;
        assert_eq!(ended, endpoint.picks);
    }
    assert_eq!((stats.counts.ejected, stats.waiting), (0, 0));
}
