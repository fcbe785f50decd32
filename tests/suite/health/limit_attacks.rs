//! Attacks on limits and trials: capacities that go to zero, balancers below balancers, trials
//! that say nothing.

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use counterpoise::{
    Attempts, AttemptsLayer, Balance, Builder, Direct, Endpoint, Health, Outcome, Stats, discover,
    health::PanicMode,
    observe::EndpointState,
    policy::{RoundRobin, SmoothWeighted},
};
use tokio::time::advance;
use tokio_test::task;
use tower::{Layer, Service, ServiceExt};

use crate::{
    bed::{Bed, MILLISECOND, SECOND, eject1, refusals, share},
    probes::{Compiles, answers, count},
    support::{Act, Site, Sites, settle},
    table::Table,
};

// ===== capacities and the limit of ejections =====

#[tokio::test(start_paused = true)]
async fn who_becomes_the_only_endpoint_with_a_capacity_is_back_at_once() {
    let mut bed = Bed::new(&["a", "b"], eject1().panic_mode(PanicMode::Fail)).await;
    bed.eject("a").await;
    let _ = bed.balance.set_capacity("b", 0.0);
    // Only `a` has an effective weight now, as if `b` had been given the weight 0.
    assert_eq!(bed.state("a"), EndpointState::Serving);
    assert_eq!(bed.route(2).await, "aa");
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_ejections_holds_when_capacities_go_to_zero() {
    let names = ["a", "b", "c", "d"];
    let mut bed = Bed::new(&names, eject1().max_ejected(0.5)).await;
    bed.eject("a").await;
    bed.eject("b").await;
    let _ = bed.balance.set_capacity("c", 0.0);
    let counts = bed.balance.stats().counts;
    let candidates = counts.members - counts.drained;
    assert_eq!((candidates, counts.ejected), (3, 1), "half of three is one");
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_ejections_holds_when_capacities_come_back() {
    let names = ["a", "b", "c", "d"];
    let mut bed = Bed::new(&names, eject1().max_ejected(0.5)).await;
    bed.eject("a").await;
    bed.eject("b").await;
    for name in ["a", "b"] {
        let _ = bed.balance.set_capacity(name, 0.0);
    }
    bed.eject("c").await;
    for name in ["a", "b"] {
        let _ = bed.balance.set_capacity(name, 1.0);
    }
    let counts = bed.balance.stats().counts;
    assert!(counts.ejected <= 2, "{counts}: half of four is two");
}

#[tokio::test(start_paused = true)]
async fn a_capacity_in_a_large_set_is_in_effect_when_it_says_so() {
    let mut table = Table::new(SmoothWeighted::new(), &[2; 300]);
    table.picks(600);
    assert_eq!(
        table.balance.set_capacity("7", 0.5),
        counterpoise::health::CapacityChange::Applied
    );
    let stats = table.balance.stats();
    assert_eq!(stats.endpoint("7").unwrap().effective_weight, 1.0);
    let counts = table.counts(300, 599);
    assert_eq!(counts[7], 1, "the others have {}", counts[8]);
}

#[test]
fn the_limit_holds_at_every_look_under_threads() {
    let health = Health::new().consecutive_failures(1).max_ejected(0.5);
    let health = health.base_ejection(Duration::from_nanos(1)).growth(1.0);
    let builder = Builder::new().starting_at(0).health(health);
    let table = Table::with(builder, RoundRobin::new(), &[1; 8]);
    let done = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..3)
        .map(|caller| {
            let mut balance = table.balance.clone();
            thread::spawn(move || {
                for call in 0..5_000 {
                    let future = balance.call((caller + call) % 3 > 0);
                    let _ = futures::FutureExt::now_or_never(future);
                }
            })
        })
        .collect();
    let watcher = {
        let (balance, done) = (table.balance.clone(), Arc::clone(&done));
        thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                let stats = balance.stats();
                assert!(stats.counts.ejected <= 4, "{stats}");
                assert!(
                    stats
                        .endpoints
                        .iter()
                        .all(|endpoint| endpoint.in_flight <= 4),
                    "{stats}"
                );
            }
        })
    };
    for caller in callers {
        caller.join().unwrap();
    }
    done.store(true, Ordering::Relaxed);
    watcher.join().unwrap();
    assert!(
        table
            .balance
            .stats()
            .endpoints
            .iter()
            .all(|endpoint| endpoint.in_flight == 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_large_set_that_fails_as_a_whole_is_compiled_a_few_times_whatever_the_rule() {
    for panic in [PanicMode::UseAll, PanicMode::Fail] {
        let site = Site::new("site");
        site.act(Act::FailAfter(SECOND));
        let list = discover::list((0..1_000).map(|i| (i, site.endpoint())));
        let policy = Compiles::new(RoundRobin::new());
        let health = eject1().panic_below(0.5).panic_mode(panic);
        let builder = Builder::new().starting_at(0).health(health);
        let mut balance = builder.balance(list, policy.clone()).unwrap();
        settle().await;
        let mut calls: Vec<_> = (0..1_000).map(|_| task::spawn(balance.call(()))).collect();
        assert!(calls.iter_mut().all(|call| call.poll().is_pending()));
        let before = policy.count();
        advance(SECOND).await;
        settle().await;
        for call in &mut calls {
            if call.poll().is_pending() {
                // The runtime lets a task poll so many timers, then others have their turn.
                tokio::task::yield_now().await;
                assert!(call.poll().is_ready());
            }
        }
        assert_eq!(balance.stats().counts.ejected, 1_000);
        let compiles = policy.count() - before;
        assert!(compiles < 100, "{compiles} compiles with {panic:?}");
    }
}

// ===== balancers below balancers, and scopes of attempts =====

/// A zone is a balancer over its sites.
type Zone = Balance<Direct<Site>, RoundRobin>;

async fn zone(sites: &Sites, names: &[&'static str]) -> Zone {
    let builder = Builder::new().health(eject1()).starting_at(0);
    let zone = builder
        .balance(sites.list(names), RoundRobin::new())
        .unwrap();
    settle().await;
    zone
}

#[tokio::test(start_paused = true)]
async fn endpoints_of_a_balancer_below_another_are_tried_under_attempts() {
    let sites = Sites::new(&["a", "b"]);
    let inner = zone(&sites, &["a", "b"]).await;
    let list = discover::list([("zone", Endpoint::new(Direct(inner.clone())))]);
    let outer = Builder::new()
        .starting_at(0)
        .balance(list, RoundRobin::new())
        .unwrap();
    settle().await;
    let mut client = AttemptsLayer::new().layer(outer);
    sites["a"].act(Act::Err);
    client.ready().await.unwrap().call(()).await.unwrap_err();
    assert_eq!(inner.stats().counts.ejected, 1);
    sites["a"].act(Act::Ok);
    advance(10 * SECOND).await;
    let answers = answers(&mut client, 20).await;
    assert_eq!(inner.stats().counts.ejected, 0, "{answers:?}");
    assert!(count(&answers, "a") >= 9, "{answers:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_sent_by_another_balancer_is_no_retry_here() {
    // One scope around the work for a request, which asks two services.
    let sites = Sites::new(&["a", "b", "x"]);
    let (mut asked, mut first) = (zone(&sites, &["a", "b"]).await, zone(&sites, &["x"]).await);
    sites["a"].act(Act::Err);
    asked.ready().await.unwrap().call(()).await.unwrap_err();
    sites["a"].act(Act::Ok);
    advance(10 * SECOND).await;
    for _ in 0..10 {
        let work = async {
            first.ready().await.unwrap().call(()).await.unwrap();
            asked.ready().await.unwrap().call(()).await.unwrap()
        };
        Attempts::new().scope(work).await;
    }
    assert_eq!(
        asked.stats().counts.ejected,
        0,
        "ten calls, and none was a trial"
    );
}

#[tokio::test(start_paused = true)]
async fn concurrent_attempts_of_one_request_spread() {
    let names = ["a", "b", "c", "d"];
    let sites = Sites::new(&names);
    let zone = zone(&sites, &names).await;
    let attempts = Attempts::new();
    for name in names {
        sites[name].act(Act::After(SECOND));
    }
    let hedges = (0..4).map(|_| attempts.scope(zone.clone().oneshot(())));
    futures::future::join_all(hedges).await;
    let mut tried: Vec<_> = attempts
        .names()
        .iter()
        .map(|name| name.to_string())
        .collect();
    tried.sort();
    assert_eq!(tried, names);
}

// ===== trials that say nothing =====

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_pushes_back_does_not_get_every_call_as_a_trial() {
    let builder = Builder::new()
        .health(eject1())
        .classify_fn(refusals(Outcome::Overload));
    let mut bed = Bed::build(&["a", "b", "c"], builder).await;
    bed.eject("a").await;
    bed.sites["a"].act(Act::Reject);
    advance(10 * SECOND).await;
    let route = bed.route(30).await;
    assert!(
        share(&route, "a") <= 15,
        "{route}: it wants less, and b and c are fine"
    );
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_hangs_does_not_get_every_call_as_a_trial() {
    // A timeout above is shorter than the default of `drop_counts_after`.
    let mut bed = Bed::new(&["a", "b", "c"], eject1()).await;
    bed.eject("a").await;
    bed.sites["a"].act(Act::Hang);
    advance(10 * SECOND).await;
    let mut served = 0;
    for _ in 0..30 {
        let call = bed.balance.clone().oneshot(());
        served += usize::from(tokio::time::timeout(500 * MILLISECOND, call).await.is_ok());
    }
    assert!(
        served >= 15,
        "{served} of 30 calls were served, with two of three healthy"
    );
}

// ===== trials in every state =====

#[tokio::test(start_paused = true)]
async fn the_place_of_a_trial_survives_all_that_can_happen_to_it() {
    for event in 0..5 {
        for reopened in [false, true] {
            let mut bed = Bed::new(&["a", "b"], eject1()).await;
            bed.eject("b").await;
            advance(10 * SECOND).await;
            bed.sites["b"].act(Act::Hang);
            let trial = bed.start();
            assert_eq!(bed.state("b"), EndpointState::OnTrial);
            match event {
                0 => drop(bed.balance.set_capacity("b", 0.0)),
                1 => bed.announce("b", 0).await,
                2 => bed.announce("b", 7).await,
                3 => {
                    bed.remove("b").await;
                    bed.announce("b", 1).await;
                }
                _ => {}
            }
            if reopened {
                let _ = bed.balance.set_capacity("b", 1.0);
                bed.announce("b", 1).await;
            }
            drop(trial);
            bed.sites["b"].act(Act::Ok);
            let _ = bed.balance.set_capacity("b", 1.0);
            bed.announce("b", 1).await;
            advance(SECOND).await;
            bed.route(1).await;
            assert_eq!(bed.state("b"), EndpointState::Serving, "event {event}");
            assert_eq!(bed.stats("b").in_flight, 0);
            assert_eq!(share(&bed.route(10).await, "b"), 5);
        }
    }
}

#[test]
fn nothing_is_lost_while_weights_members_and_capacities_change() {
    let health = Health::new().consecutive_failures(1).growth(1.0);
    let health = health.base_ejection(Duration::from_nanos(1));
    let builder = Builder::new().starting_at(0).health(health);
    let mut table = Table::with(builder, SmoothWeighted::new(), &[1; 6]);
    let barrier = Arc::new(Barrier::new(4));
    let callers: Vec<_> = (0..3)
        .map(|caller| {
            let (mut balance, barrier) = (table.balance.clone(), Arc::clone(&barrier));
            thread::spawn(move || {
                barrier.wait();
                for call in 0..4_000_usize {
                    let future = balance.call((caller + call).is_multiple_of(4));
                    if call % 7 == 0 {
                        drop(future);
                    } else {
                        let _ = futures::FutureExt::now_or_never(future);
                    }
                }
            })
        })
        .collect();
    barrier.wait();
    for round in 0..400 {
        match round % 4 {
            0 => table.insert(1 + round % 5, 0),
            1 => table.insert(1 + round % 5, u32::MAX),
            2 => table.remove(1 + round % 5),
            _ => table.insert(1 + round % 5, 1),
        }
        let name = (round % 6).to_string();
        let _ = table
            .balance
            .set_capacity(&name, f64::from(u8::from(round % 3 > 0)));
    }
    for caller in callers {
        caller.join().unwrap();
    }
    for number in 0..6 {
        table.insert(number, 1);
        let _ = table.balance.set_capacity(&number.to_string(), 1.0);
    }
    let all_serve = |stats: &Stats| {
        let mut endpoints = stats.endpoints.iter();
        endpoints.all(|endpoint| endpoint.state == EndpointState::Serving)
    };
    // The pause after a dropped trial is as long as a busy machine has held up its thread.
    for _ in 0..100_000 {
        table.pick();
        if all_serve(&table.balance.stats()) {
            break;
        }
    }
    let stats = table.balance.stats();
    assert!(all_serve(&stats), "{stats}");
    assert!(
        stats
            .endpoints
            .iter()
            .all(|endpoint| endpoint.in_flight == 0),
        "{stats}"
    );
    assert_eq!(
        table
            .counts(6, 600)
            .iter()
            .filter(|&&n| n.abs_diff(100) <= 2)
            .count(),
        6
    );
}
