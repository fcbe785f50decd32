//! Attacks on the policies that keep keys: long histories, names that are shared, bounds with
//! endpoints that are not ready, trials of endpoints whose keys nobody asks for.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    future::Future,
    pin::pin,
    sync::Mutex,
    task::{Context, Poll, Waker},
    thread::ThreadId,
    time::Duration,
};

use counterpoise::{
    Attempts, Balance, Builder, Direct, Health, discover,
    observe::EndpointState,
    policy::{Picker, Policy, SmoothWeighted, affinity::RingHash},
};
use tower::Service;

use crate::keyed_bed::{Ask, KEY, KeyedBed, Walks, keys};
use crate::support::{Act, Gate, Scripted, Text};

/// A little generator of numbers, the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn crude(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |sum: u64, &byte| sum * 7 + u64::from(byte))
        & 7
}

/// Holds: small changes of a set of forty, hundreds in a row, so that nearly every one is an
/// edit, with slots that are used again and points that are tied.
#[test]
fn a_long_history_of_edits_makes_the_fresh_ring() {
    for (hash, rounds) in [(None, 300), (Some(crude as fn(&[u8]) -> u64), 300)] {
        let policy = RingHash::by(KEY).points(4).max_points(12);
        let policy = match hash {
            Some(hash) => policy.hash_with(hash),
            None => policy,
        };
        let walking = Walks::new(policy.clone());
        let mut now: BTreeMap<String, u32> = (0..40).map(|i| (format!("n{i}"), 1)).collect();
        let set: Vec<_> = now
            .iter()
            .map(|(name, &weight)| (name.as_str(), weight))
            .collect();
        let mut bed = KeyedBed::new(walking.clone(), &set);
        let mut dice = Dice(42);
        for round in 0..rounds {
            let name = format!("n{}", dice.below(60));
            match dice.below(3) {
                0 => {
                    bed.remove(&name);
                    now.remove(&name);
                }
                _ => {
                    let weight = dice.below(4) as u32;
                    bed.insert(&name, weight);
                    now.insert(name, weight);
                }
            }
            let fresh = policy.map(now.iter().map(|(name, &weight)| (name.as_str(), weight)));
            let keys = keys(12);
            for (key, walk) in keys.iter().zip(bed.walks(&walking, &keys)) {
                assert_eq!(walk, fresh.owners(key.as_bytes()), "round {round}, {key}");
            }
        }
    }
}

/// Keys that differ, but are spelt alike.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Twin(&'static str, u32);

impl fmt::Display for Twin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Answers with a number.
type Numbered = Scripted<u32, Ask>;

fn now<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// Of two that share a name, the ring decides by slots, which are history: a change of third
/// parties, large enough for a fresh ring, moves keys from one to the other.
#[test]
fn keys_of_twins_do_not_move_when_others_change() {
    let (handle, changes) = discover::channel();
    let policy = RingHash::by(KEY).points(8);
    let (layer, driver) = Builder::new().starting_at(0).pair(changes, policy).unwrap();
    let balance: Balance<_, _> = tower::Layer::layer(&layer, ());
    let mut driver = Box::pin(driver);
    let mut drive = || {
        let mut nobody = Context::from_waker(Waker::noop());
        (0..16).for_each(|_| assert!(driver.as_mut().poll(&mut nobody).is_pending()));
    };
    let endpoint = |number: u32, weight| Numbered::new(number).endpoint().weight(weight);
    handle.insert(Twin("x", 1), endpoint(1, 1));
    handle.insert(Twin("x", 2), endpoint(2, 1));
    for number in 10..30 {
        handle.insert(
            Twin(Box::leak(format!("n{number}").into_boxed_str()), 0),
            endpoint(number, 1),
        );
    }
    drive();
    let keys = keys(500);
    let ask = |key: &String| now(balance.clone().call(Ask::of(key))).unwrap().unwrap();
    // The first twin's weight goes up: an edit, after which its slot is another.
    handle.insert(Twin("x", 1), endpoint(1, 2));
    drive();
    let before: Vec<_> = keys.iter().map(ask).collect();
    assert!(before.iter().any(|&number| number < 3));
    // Half of the others leave: the ring is made anew.
    for number in 10..20 {
        handle.remove(&Twin(Box::leak(format!("n{number}").into_boxed_str()), 0));
    }
    drive();
    for (key, &before) in keys.iter().zip(&before) {
        if !(10..20).contains(&before) {
            assert_eq!(ask(key), before, "{key} moved between those who stayed");
        }
    }
}

/// A map's `moved` tells owners by name, and twins are the same by name.
#[test]
fn nothing_moves_between_a_set_with_twins_and_itself() {
    let policy = counterpoise::policy::affinity::HashMod::by(KEY);
    let map = policy.map([("x", 1), ("x", 1), ("y", 1)]);
    assert_eq!(map.moved(&map), 0.0);
}

static HASHED_ON: Mutex<Option<HashSet<ThreadId>>> = Mutex::new(None);

fn noted(bytes: &[u8]) -> u64 {
    if let Some(threads) = &mut *HASHED_ON.lock().unwrap() {
        threads.insert(std::thread::current().id());
    }
    bytes.iter().fold(5, |sum: u64, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// `is_costly` counts endpoints, not points: 100 endpoints of weight 100 are 1.6 million.
#[tokio::test]
async fn a_ring_of_a_million_points_is_not_made_on_an_async_thread() {
    let policy = RingHash::by(KEY).hash_with(noted);
    let (handle, changes) = discover::channel();
    let balance: Balance<Direct<Numbered>, _> = Builder::new().balance(changes, policy).unwrap();
    *HASHED_ON.lock().unwrap() = Some(HashSet::new());
    handle.set((0..100_u32).map(|i| (i, Numbered::new(i).endpoint().weight(100))));
    balance.ready_when(100).await.unwrap();
    let threads = HASHED_ON.lock().unwrap().take().unwrap();
    assert!(!threads.is_empty());
    assert!(
        !threads.contains(&std::thread::current().id()),
        "made by the driver itself"
    );
}

fn owned_by(bed: &KeyedBed<impl Policy<Picker: Picker<Ask>>>, name: &str) -> String {
    keys(1_000)
        .into_iter()
        .find(|key| bed.owner(key) == name)
        .unwrap()
}

/// `bounded`: "if that is not ready, another beyond its bound rather than none".
#[test]
fn a_full_endpoint_steps_in_for_one_that_is_not_ready() {
    let policy = RingHash::by(KEY).bounded(1.0);
    let bed = KeyedBed::new(policy, &[("a", 9), ("b", 1)]);
    let (of_a, of_b) = (owned_by(&bed, "a"), owned_by(&bed, "b"));
    let held = bed.hold(&of_b);
    // b is at its bound, a has room and owns the key, but is not ready.
    bed.unready("a", true);
    match bed.start(Ask::of(&of_a)) {
        Ok(result) => assert_eq!(&*result.unwrap(), "b"),
        Err(_) => panic!("the call waits for a, though b would serve it"),
    }
    drop(held);
}

/// A retry under a bound: the endpoint with room is not ready, and of the two that are full
/// one was tried.
#[test]
fn beyond_the_bounds_a_retry_prefers_whom_it_has_not_tried() {
    let policy = RingHash::by(KEY).bounded(1.0);
    let bed = KeyedBed::with(
        Builder::new().health(Health::off()),
        policy,
        &[("a", 1), ("b", 18), ("c", 1)],
    );
    let key = keys(1_000).into_iter().find(|key| {
        let owners = bed.balance.owners(key.as_bytes());
        owners.iter().map(|owner| &*owner.name).eq(["a", "c", "b"])
    });
    let key = key.unwrap();
    let scope = Attempts::new();
    let call = |deed| {
        let mut balance = bed.balance.clone();
        let ask = Ask::of(&key).deed(deed);
        now(scope.scope(async move { balance.call(ask).await }))
    };
    assert!(call(Act::Err).unwrap().is_err());
    assert_eq!(
        scope.names().iter().map(|name| &**name).collect::<Vec<_>>(),
        ["a"]
    );
    // a and c hold their bound of one each: with the next call that is ceil(3 × 1/20).
    let held = [
        bed.hold(&owned_by(&bed, "a")),
        bed.hold(&owned_by(&bed, "c")),
    ];
    bed.unready("b", true);
    match call(Act::Ok) {
        Some(result) => assert_eq!(&*result.unwrap(), "c"),
        None => panic!("the call waits"),
    }
    drop(held);
}

/// With one hot key under a bound, those it overflows to are ejected for good.
#[tokio::test(start_paused = true)]
async fn an_endpoint_that_takes_overflow_is_tried_when_its_time_has_come() {
    let policy = RingHash::by(KEY).bounded(1.0);
    let health = Health::new().consecutive_failures(1).jitter(0.0);
    let bed = KeyedBed::with(
        Builder::new().health(health),
        policy,
        &[("a", 1), ("b", 1), ("c", 1)],
    );
    let key = owned_by(&bed, "a");
    // The key's overflow ejects one of the others.
    let held = bed.hold(&key);
    let out = bed.fail(&key);
    drop(held);
    assert_ne!(out, "a");
    assert_eq!(
        bed.balance.stats().endpoint(&out).unwrap().state,
        EndpointState::Ejected
    );
    let before = bed.calls(&out);
    tokio::time::advance(Duration::from_secs(3_600)).await;
    for _ in 0..1_000 {
        let held = [bed.hold(&key), bed.hold(&key), bed.hold(&key)];
        drop(held);
    }
    assert!(
        bed.calls(&out) > before,
        "3,000 calls in an hour, and no trial of {out}"
    );
}

type Valve = Scripted<Text, Ask>;

/// Calls that waited for everybody are admitted without a look at the bound.
#[tokio::test(start_paused = true)]
async fn calls_that_waited_keep_the_bound() {
    let valves = ["a", "b"].map(|name| Valve::gated(name, Gate::Shut));
    valves.iter().for_each(|valve| valve.act(Act::Hang));
    let endpoints: Vec<_> = (0..2)
        .zip(&valves)
        .map(|(i, valve)| (i, valve.endpoint()))
        .collect();
    let policy = RingHash::by(KEY).bounded(1.0);
    let balance: Balance<Direct<Valve>, _> = Builder::new()
        .starting_at(0)
        .balance(discover::list(endpoints), policy)
        .unwrap();
    balance.ready_when(2).await.unwrap();
    let mut calls: Vec<_> = (0..8)
        .map(|_| Box::pin(balance.clone().call(Ask::of("hot"))))
        .collect();
    let mut poll = || {
        let mut nobody = Context::from_waker(Waker::noop());
        calls
            .iter_mut()
            .for_each(|call| assert!(call.as_mut().poll(&mut nobody).is_pending()));
    };
    // All wait for both; then both are ready.
    poll();
    valves.iter().for_each(|valve| valve.turn(Gate::Open));
    poll();
    let runs = [0, 1].map(|i| valves[i].calls());
    assert_eq!(runs[0] + runs[1], 8);
    assert!(
        runs.iter().all(|&runs| runs <= 4),
        "{runs:?} where each may hold ceil(8 / 2)"
    );
}

/// Weights that pass through zero, all of them, between two picks.
#[test]
fn credits_outlive_a_moment_without_anybody() {
    let mut bed = KeyedBed::new(SmoothWeighted::new(), &[("a", 1), ("b", 1)]);
    for _ in 0..50 {
        bed.call(Ask::default()).unwrap();
        for weight in [0, 1] {
            bed.announce("a", weight);
            bed.announce("b", weight);
            bed.drive();
        }
    }
    let calls = ["a", "b"].map(|name| bed.calls(name));
    assert!(
        calls.iter().all(|calls| calls.abs_diff(25) <= 1),
        "{calls:?}"
    );
}
