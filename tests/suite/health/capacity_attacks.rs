//! Attacks on capacities: many ramps at once, capacities that nearly vanish, retries, bounds and
//! trials beside them, and calls that wait while steps are due.

use std::{any::type_name, time::Duration};

use counterpoise::{
    Attempts, Builder, Health, Outcome, discover,
    health::{LatencyWeights, OutlierDetection, SlowStart},
    observe::EndpointState,
    policy::{
        LeastRequest, Picker, Policy, RoundRobin, SmoothWeighted,
        affinity::{Maglev, Rendezvous, RingHash, Structure},
    },
};
use futures::FutureExt;
use tokio::time::advance;
use tokio_test::task;
use tower::Service;

use crate::{
    bed::{MILLISECOND, SECOND, eject1, refusals},
    call::attacks::{attend, over},
    fleet::{Fleet, Job, KEY, KeyedBy, Sharing, each_policy},
    keyed_bed::{self, KeyedBed},
    observe::event_attacks::Dice,
    probes::{Compiles, Gate, Probe, call, name},
    support::{Act, Site, settle},
};

const FIVE: [(&str, u32); 5] = [("a", 1), ("b", 2), ("c", 3), ("d", 1), ("e", 1)];

/// However many endpoints ramp, and whenever they joined, a window costs as many rebuilds as one
/// endpoint's does.
#[tokio::test(start_paused = true)]
async fn a_thousand_ramps_cost_no_more_rebuilds_than_one() {
    const BATCHES: usize = 20;
    let (handle, changes) = discover::channel();
    let policy = Compiles::new(RoundRobin::new());
    let health = Health::new().slow_start(SlowStart::new(20 * SECOND));
    let builder = Builder::new().health(health).starting_at(0);
    let site = Site::new("site");
    handle.insert("first", site.endpoint());
    let mut balance = builder.balance(changes, policy.clone()).unwrap();
    settle().await;
    let before = policy.count();
    for batch in 0..BATCHES {
        for n in 0..50 {
            handle.insert(name("ramp", 50 * batch + n), site.endpoint());
        }
        settle().await;
        for _ in 0..100 {
            advance(10 * MILLISECOND).await;
            call(&mut balance).await.unwrap();
        }
    }
    for _ in 0..2_500 {
        advance(10 * MILLISECOND).await;
        call(&mut balance).await.unwrap();
    }
    let compiles = policy.count() - before;
    // The last one's window ends 39 s after the first joined: two windows.
    assert!(compiles <= BATCHES + 2 * 128 + 2, "{compiles} rebuilds");
    let weights = balance
        .stats()
        .endpoints
        .into_iter()
        .map(|e| e.effective_weight);
    assert!(weights.into_iter().all(|weight| weight == 1.0));
    let after = policy.count();
    advance(100 * SECOND).await;
    call(&mut balance).await.unwrap();
    assert_eq!(policy.count(), after, "nothing is due any more");
}

/// A weight of zero in the middle of a ramp, and capacity zero: the ramp goes on meanwhile.
#[tokio::test(start_paused = true)]
async fn a_ramp_goes_on_under_an_endpoint_that_is_drained_for_a_while() {
    let health = Health::new().slow_start(SlowStart::new(100 * SECOND));
    let builder = Builder::new().health(health);
    let mut fleet = Fleet::new(builder, SmoothWeighted::new(), &FIVE[..2]).await;
    fleet.join("z", 1_000).await;
    for second in 1..=100_u32 {
        advance(SECOND).await;
        fleet.route(1).await;
        match second % 10 {
            3 => fleet.join("z", 0).await,
            5 => fleet.join("z", 1_000).await,
            6 => drop(fleet.balance.set_capacity("z", 0.0)),
            8 => drop(fleet.balance.set_capacity("z", 1.0)),
            _ => {}
        }
        let stats = fleet.stats("z");
        if matches!(second % 10, 3 | 4 | 6 | 7) {
            assert_eq!(
                (stats.state, stats.effective_weight),
                (EndpointState::Drained, 0.0)
            );
            assert!(!fleet.route(20).await.contains(&"z"));
        } else {
            let want = 10.0 * f64::from(second.max(10));
            assert!(
                (stats.effective_weight - want).abs() < 10.1,
                "{second}: {stats:?}"
            );
        }
    }
    assert_eq!(fleet.stats("z").effective_weight, 1_000.0);
}

/// Each attempt goes to another endpoint while there is one, however little of it counts.
async fn retried<P: Policy<Picker: Picker<Job>>>(_sharing: Sharing, policy: P) {
    let mut fleet = Fleet::new(Builder::new().health(Health::off()), policy, &FIVE).await;
    for tiny in [["a", "b", "c", "d"], ["e", "d", "c", "b"]] {
        for (name, _) in FIVE {
            let capacity = if tiny.contains(&name) { 1e-9 } else { 1.0 };
            let _ = fleet.balance.set_capacity(name, capacity);
        }
        for key in 0..20 {
            let attempts = Attempts::new();
            for _ in 0..FIVE.len() {
                let call = fleet.call(Some(key));
                attempts.scope(call).await.unwrap();
            }
            let mut names = attempts.names();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), FIVE.len(), "{}: {names:?}", type_name::<P>());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_goes_elsewhere_however_little_the_others_may_take() {
    each_policy!(retried);
}

/// Capacities that are tiny but alike change nothing: who is out of proportion gets its part.
#[tokio::test(start_paused = true)]
async fn tiny_capacities_share_like_great_ones() {
    let tiny = 1.0 / 65_536.0;
    let builder = || Builder::new().health(Health::off());
    let mut turns = Fleet::new(builder(), RoundRobin::new(), &FIVE).await;
    let mut smooth = Fleet::new(builder(), SmoothWeighted::new(), &FIVE).await;
    for (name, _) in FIVE {
        let capacity = if name == "c" { 2.0 * tiny } else { tiny };
        let _ = turns.balance.set_capacity(name, capacity);
        let _ = smooth.balance.set_capacity(name, capacity);
    }
    assert_eq!(
        FIVE.map(|(name, _)| turns.factor(name) / tiny),
        [1.0, 1.0, 2.0, 1.0, 1.0]
    );
    for (name, weight) in FIVE {
        let part = if name == "c" { 2 } else { 1 };
        assert_eq!(turns.share(600, name).await, 100 * part);
        let whole = 1 + 2 + 3 * 2 + 1 + 1;
        assert_eq!(
            smooth.share(100 * whole, name).await,
            100 * part * weight as usize
        );
    }
}

/// The bound holds at each admission by the capacities of that moment.
async fn bounded<S: Structure>(policy: KeyedBy<S>) {
    let health = Health::new().slow_start(SlowStart::new(20 * SECOND));
    let builder = Builder::new().health(health);
    let mut fleet = Fleet::new(builder, policy.bounded(1.25), &FIVE[..3]).await;
    fleet.join_all(&FIVE[3..]).await;
    let mut running = Vec::new();
    for step in 0..400_usize {
        if step % 7 == 0 {
            let name = FIVE[step / 7 % 5].0;
            let _ = fleet
                .balance
                .set_capacity(name, (1 + step % 10) as f64 / 10.0);
            advance(SECOND / 3).await;
        }
        if step % 3 == 2 {
            drop(running.swap_remove(step * 31 % running.len()));
        } else {
            FIVE.iter().for_each(|(name, _)| fleet.act(name, Act::Hang));
            fleet.next = (step % 4) as u64;
            // The first call after a step sees what is due; so does the look after it.
            let before = fleet.balance.stats();
            let mut call = fleet.start();
            assert!((&mut call).now_or_never().is_none());
            running.push(call);
            let after = fleet.balance.stats();
            let taken = before.endpoints.iter().zip(&after.endpoints);
            let taken = taken
                .filter(|(b, a)| a.in_flight > b.in_flight)
                .map(|(_, a)| a);
            let taken: Vec<_> = taken.collect();
            assert_eq!(taken.len(), 1);
            let all: f64 = after.endpoints.iter().map(|e| e.effective_weight).sum();
            let share = taken[0].effective_weight / all;
            let bound = (1.25 * running.len() as f64 * share * (1.0 - 1e-12)).ceil();
            assert!(
                taken[0].in_flight as f64 <= bound,
                "step {step}: {bound} {:?}",
                taken[0]
            );
        }
    }
    drop(running);
    assert!(
        fleet
            .balance
            .stats()
            .endpoints
            .iter()
            .all(|endpoint| endpoint.in_flight == 0)
    );
}

#[tokio::test(start_paused = true)]
async fn the_bound_holds_while_capacities_move() {
    bounded(RingHash::by(KEY)).await;
    bounded(Maglev::by(KEY).table_size(4_099)).await;
    bounded(Rendezvous::by(KEY)).await;
}

/// Calls that run since before an ejection do not keep its trial from going out.
#[tokio::test(start_paused = true)]
async fn stragglers_do_not_keep_an_endpoint_from_being_tried() {
    let set = [("a", 1), ("b", 1), ("c", 1)];
    let builder = Builder::new().health(eject1());
    let bed = KeyedBed::with(builder, RingHash::by(keyed_bed::KEY).bounded(4.0), &set);
    let lost = bed.owner("hot");
    let straggler = bed.hold("hot");
    assert_eq!(bed.fail("hot"), lost);
    advance(10 * SECOND).await;
    assert_eq!(bed.owner("hot"), lost, "its period is over: it is tried");
    assert_eq!(bed.in_flight(&lost), 1);
    drop(straggler);
    assert_eq!(bed.in_flight(&lost), 0);
}

/// A call that waits is woken for each step, once, and turns in no circles.
#[tokio::test(start_paused = true)]
async fn a_waiting_call_does_not_spin_while_steps_are_due_often() {
    for window in [MILLISECOND, 10 * SECOND] {
        let (a, b) = (Probe::gated("a", Gate::Shut), Probe::gated("b", Gate::Shut));
        let health = eject1().slow_start(SlowStart::new(window)).interval(SECOND);
        let health = health.outlier_detection(OutlierDetection::new());
        let builder = Builder::new().health(health);
        let (handle, mut balance) = over(&[("a", &a)], builder, RoundRobin::new()).await;
        handle.insert("b", b.endpoint());
        settle().await;
        let mut waiting = task::spawn(balance.call(()));
        assert!(attend(&mut waiting).await.is_none());
        let mut polls = 0;
        for _ in 0..20_000 {
            advance(MILLISECOND).await;
            settle().await;
            while waiting.is_woken() {
                polls += 1;
                assert!(waiting.poll().is_pending());
                settle().await;
                assert!(polls < 500, "{polls} polls");
            }
        }
        // 128 steps, 20 intervals.
        assert!(polls <= 2 * 128 + 40, "{polls} polls");
        assert!(a.polls() + b.polls() <= 8, "{} {}", a.polls(), b.polls());
        a.turn(Gate::Open);
        assert!(attend(&mut waiting).await.unwrap().is_ok());
    }
}

/// A set of more than 256, whose transitions are gathered: after anything has happened to it, and
/// some quiet time with calls, everybody is back with the whole weight, and nothing is due.
async fn recovers<P: Policy<Picker: Picker<()>>>(policy: P, seed: u64) {
    const N: usize = 300;
    let names: Vec<_> = (0..N).map(|n| name("large", n)).collect();
    let sites: Vec<_> = names.iter().map(|&name| Site::new(name)).collect();
    let (handle, changes) = discover::channel();
    let announce = |n: usize, weight| handle.insert(names[n], sites[n].endpoint().weight(weight));
    (0..N).for_each(|n| announce(n, 1));
    let health = eject1()
        .max_ejection(20 * SECOND)
        .slow_start(SlowStart::new(SECOND))
        .outlier_detection(OutlierDetection::new().min_calls(1))
        .latency_weights(LatencyWeights::new().min_calls(1))
        .interval(SECOND / 2);
    let builder = Builder::new()
        .health(health)
        .classify_fn(refusals(Outcome::Overload));
    let mut balance = builder
        .seed(seed)
        .starting_at(seed)
        .balance(changes, policy)
        .unwrap();
    settle().await;
    let dice = Dice::seeded(seed);
    let mut running = Vec::new();
    for _ in 0..1_500 {
        let n = dice.roll(N as u64) as usize;
        match dice.roll(16) {
            0 => sites[n].act(Act::Ok),
            1 => sites[n].act(Act::Err),
            2 => sites[n].act(Act::Reject),
            3 => sites[n].act(Act::FailAfter(SECOND)),
            4 => drop(balance.set_capacity(names[n], dice.roll(4) as f64 / 3.0)),
            5 => announce(n, dice.roll(3) as u32),
            6 => handle.remove(&names[n]),
            7 => settle().await,
            8 => advance(Duration::from_millis(1 << dice.roll(12))).await,
            9 => advance(Duration::from_micros(1 << dice.roll(14))).await,
            10 => running.push(balance.call(())),
            11 => drop(running.pop()),
            _ => drop(balance.call(()).now_or_never()),
        }
    }
    running.clear();
    for n in 0..N {
        sites[n].act(Act::Ok);
        announce(n, 1);
        let _ = balance.set_capacity(names[n], 1.0);
    }
    settle().await;
    for name in &names {
        let _ = balance.set_capacity(name, 1.0);
    }
    // The longest period, the ramp after it, and a push-back's time are long over then.
    for _ in 0..1_200 {
        advance(SECOND / 20).await;
        call(&mut balance).await.unwrap();
    }
    let quiet = balance.stats();
    for endpoint in &quiet.endpoints {
        let is_well = endpoint.state == EndpointState::Serving && endpoint.effective_weight == 1.0;
        assert!(
            is_well && endpoint.in_flight == 0,
            "seed {seed}: {endpoint:?}"
        );
    }
    for _ in 0..20 {
        advance(SECOND).await;
        call(&mut balance).await.unwrap();
    }
    assert_eq!(
        balance.stats().generation,
        quiet.generation,
        "seed {seed}: nothing moves"
    );
}

#[tokio::test(start_paused = true)]
async fn a_large_set_comes_back_whole_whatever_has_happened() {
    for seed in 0..6 {
        recovers(RoundRobin::new(), seed).await;
        recovers(LeastRequest::new(), seed).await;
    }
}
