//! Bounded load: nobody holds more calls than a factor of its share.

use std::panic::{AssertUnwindSafe, catch_unwind};

use counterpoise::{
    Attempts, Builder, Health,
    policy::{
        Picker, Policy,
        affinity::{Fallback, Key, RingHash, Structure},
    },
};
use tokio::time::advance;
use tower::Service;

use crate::{
    bed::{SECOND, eject1},
    keyed_bed::{Ask, KEY, KeyedBed, KeyedBy, Open, at_once, each_keyed, keys},
    policy::affinity::bounded_exact::Model,
    support::Act,
};

const ABC: [(&str, u32); 3] = [("a", 1), ("b", 1), ("c", 1)];

fn off() -> Builder {
    Builder::new().health(Health::off())
}

/// Asserts that no call is counted: with factor 1, calls of one key fill all evenly.
pub(crate) fn assert_clean<P: Policy<Picker: Picker<Ask>>>(bed: &KeyedBed<P>) {
    let stats = bed.balance.stats();
    assert!(
        stats
            .endpoints
            .iter()
            .all(|endpoint| endpoint.in_flight == 0),
        "{stats}"
    );
    let calls: Vec<Open> = (0..2 * stats.endpoints.len())
        .map(|_| bed.hold("hot"))
        .collect();
    let stats = bed.balance.stats();
    assert!(
        stats
            .endpoints
            .iter()
            .all(|endpoint| endpoint.in_flight == 2),
        "{stats}"
    );
    drop(calls);
}

fn b54<S: Structure + Clone>(policy: KeyedBy<S>) {
    let set = [("a", 1), ("b", 1), ("c", 1), ("d", 1)];
    let mut bed = KeyedBed::with(off(), policy.clone().bounded(1.25), &set);
    let order: Vec<String> = policy
        .map(set)
        .owners(b"hot")
        .into_iter()
        .map(str::to_owned)
        .collect();
    let calls: Vec<Open> = (0..8).map(|_| bed.hold("hot")).collect();
    let held: Vec<u64> = order.iter().map(|name| bed.in_flight(name)).collect();
    assert_eq!(held, [3, 3, 2, 0]);
    drop(calls);
    assert!(order.iter().all(|name| bed.in_flight(name) == 0));
    // Removed with three in flight: they count until they end, and as nobody's.
    let calls: Vec<Open> = (0..8).map(|_| bed.hold("hot")).collect();
    bed.remove(&order[0]);
    let three: Vec<_> = set
        .into_iter()
        .filter(|(name, _)| *name != order[0])
        .collect();
    let mut model = Model::new(5, &three);
    order
        .iter()
        .zip(&held)
        .for_each(|(name, &n)| (0..n).for_each(|_| model.admit(name)));
    let map = policy.map(three.iter().copied());
    let mut more = Vec::new();
    for _ in 0..6 {
        let owners = map.owners(b"hot");
        model.admit(owners.iter().find(|name| model.has_room(name)).unwrap());
        more.push(bed.hold("hot"));
        three
            .iter()
            .for_each(|(name, _)| assert_eq!(bed.in_flight(name), model.held(name)));
    }
    drop((calls, more));
    bed.insert(&order[0], 1);
    let _calls: Vec<Open> = (0..8).map(|_| bed.hold("hot")).collect();
    let held: Vec<u64> = order.iter().map(|name| bed.in_flight(name)).collect();
    assert_eq!(held, [3, 3, 2, 0]);
}

#[test]
fn b54_the_bound_is_exact_and_totals_stay_right() {
    each_keyed!(b54);
}

#[test]
fn factors_that_make_no_sense_count_as_one() {
    for factor in [1.0, 0.5, 0.0, -3.0, f64::NAN, f64::NEG_INFINITY] {
        let needs = RingHash::by(KEY).bounded(factor).needs();
        assert_eq!(needs, RingHash::by(KEY).bounded(1.0).needs());
        assert_ne!(needs, RingHash::by(KEY).needs());
        assert_clean(&KeyedBed::with(
            off(),
            RingHash::by(KEY).bounded(factor),
            &ABC,
        ));
    }
    let bed = KeyedBed::with(off(), RingHash::by(KEY).bounded(f64::INFINITY), &ABC);
    let _calls: Vec<Open> = (0..50).map(|_| bed.hold("hot")).collect();
    assert_eq!(bed.in_flight(&bed.owner("hot")), 50);
}

/// Weights in thirds and tenths, whose shares are no round numbers in binary.
#[test]
fn shares_that_are_not_round_keep_the_bound() {
    for n in [3_usize, 5, 6, 7, 10, 49] {
        let names: Vec<String> = (0..n).map(|i| i.to_string()).collect();
        let set: Vec<_> = names.iter().map(|name| (name.as_str(), 7)).collect();
        let bed = KeyedBed::with(off(), RingHash::by(KEY).bounded(1.0), &set);
        let mut calls = Vec::new();
        for round in 1..4 {
            calls.extend((0..n).map(|_| bed.hold("hot")));
            assert!(
                names.iter().all(|name| bed.in_flight(name) == round),
                "{n} {round}"
            );
        }
    }
}

/// A call that ends in any way gives its place back.
fn every_end<S: Structure + Clone>(policy: KeyedBy<S>) {
    let mut bed = KeyedBed::with(off(), policy.bounded(1.0), &ABC);
    assert_clean(&bed);
    for deed in [Act::Ok, Act::Err] {
        drop(bed.call(Ask::of("hot").deed(deed)));
        assert_clean(&bed);
    }
    let panics = || drop(bed.start(Ask::of("hot").deed(Act::Panic)));
    catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
    assert_clean(&bed);
    drop(bed.balance.clone().call(Ask::of("hot")));
    assert_clean(&bed);
    // All unready: the call waits for all of them, and is dropped, or served by one.
    ABC.iter().for_each(|(name, _)| bed.unready(name, true));
    drop(bed.start(Ask::of("hot")).unwrap_err());
    let waits = bed.start(Ask::of("hot")).unwrap_err();
    ABC.iter().for_each(|(name, _)| bed.unready(name, false));
    drop(waits);
    assert_clean(&bed);
    let first = bed.owner("hot");
    bed.unready(&first, true);
    assert_ne!(bed.owner("hot"), first);
    bed.unready(&first, false);
    assert_clean(&bed);
    let calls: Vec<Open> = (0..9).map(|_| bed.hold("hot")).collect();
    bed.remove("a");
    bed.insert("a", 1);
    drop(calls);
    assert_clean(&bed);
}

#[test]
fn every_end_of_a_call_gives_its_place_back() {
    each_keyed!(every_end);
}

#[test]
fn a_panic_in_the_key_reaches_the_caller_and_breaks_nothing() {
    fn fragile(ask: &Ask) -> Option<Key<'_>> {
        assert_ne!(ask.key.as_deref(), Some("bad"));
        KEY(ask)
    }
    let bed = KeyedBed::with(off(), RingHash::by(fragile).bounded(1.0), &ABC);
    catch_unwind(AssertUnwindSafe(|| bed.owner("bad"))).unwrap_err();
    assert_clean(&bed);
}

/// The others are at their bounds: the retry goes to the first choice again.
fn all_full<S: Structure + Clone>(policy: KeyedBy<S>) {
    let bed = KeyedBed::with(off(), policy.bounded(1.0), &ABC[..2]);
    let of = |name: &str| {
        keys(100)
            .into_iter()
            .find(|key| bed.owner(key) == name)
            .unwrap()
    };
    let (a, b) = (of("a"), of("b"));
    let _held = bed.hold(&b);
    assert_eq!(bed.attempts(&a, 3), ["a", "a", "a"]);
    // Once there is room, a retry takes it.
    let _more = bed.hold(&a);
    assert_eq!(bed.attempts(&a, 2), ["a", "b"]);
}

#[test]
fn with_everybody_else_at_the_bound_the_first_choice_is_taken() {
    each_keyed!(all_full);
}

fn tried_and_full<S: Structure + Clone>(policy: KeyedBy<S>) {
    let bed = KeyedBed::with(off(), policy.clone().bounded(1.0), &ABC);
    let map = policy.map(ABC);
    let order = map.owners(b"hot");
    let of = |name: &str| {
        keys(100)
            .into_iter()
            .find(|key| bed.owner(key) == name)
            .unwrap()
    };
    let (first, second) = (of(order[0]), of(order[1]));
    let scope = Attempts::new();
    let attempt = || {
        let mut balance = bed.balance.clone();
        let ask = Ask::of("hot").deed(Act::Err);
        at_once(scope.scope(async move { balance.call(ask).await })).unwrap_err();
    };
    attempt();
    let _first = bed.hold(&first);
    attempt();
    let _second = bed.hold(&second);
    attempt();
    // All were tried. The first two hold one call, which is all they may of three.
    attempt();
    let names: Vec<_> = scope.names().iter().map(ToString::to_string).collect();
    assert_eq!(names, [order[0], order[1], order[2], order[2]]);
}

#[test]
fn a_retry_keeps_the_bound_while_somebody_has_room() {
    each_keyed!(tried_and_full);
}

fn keyless<S: Structure + Clone>(policy: KeyedBy<S>) {
    for fallback in [Fallback::Rotate, Fallback::Random] {
        let policy = policy.clone().bounded(1.0).fallback(fallback);
        let bed = KeyedBed::with(off(), policy, &ABC[..2]);
        let hold = || bed.start(Ask::default().deed(Act::Hang)).unwrap_err();
        let mut calls = Vec::new();
        for total in 1..40_u64 {
            calls.push(hold());
            // Every third call ends, so that turns and loads fall out of step.
            for name in ["a", "b"] {
                let held = bed.in_flight(name);
                assert!(held <= total.div_ceil(2), "{name} holds {held} of {total}");
            }
        }
        // All of one endpoint's calls end, and it alone may take the next ones.
        let (mut kept, mut rest) = (Vec::new(), Vec::new());
        for call in calls {
            let before = bed.in_flight("a");
            drop(call);
            match before == bed.in_flight("a") {
                true => kept.push(hold()),
                false => rest.push(()),
            }
        }
        let (a, b) = (bed.in_flight("a"), bed.in_flight("b"));
        assert!(a.abs_diff(b) <= 1, "{fallback:?} {a} {b}");
    }
}

#[test]
fn requests_without_a_key_keep_the_bound() {
    each_keyed!(keyless);
}

#[test]
fn retries_without_a_key_try_everybody() {
    let bed = KeyedBed::with(off(), RingHash::by(KEY).bounded(100.0), &ABC);
    for _ in 0..20 {
        let scope = Attempts::new();
        for n in 0..3 {
            let mut balance = bed.balance.clone();
            let ask = Ask::default().deed(Act::Err);
            at_once(scope.scope(async move { balance.call(ask).await })).unwrap_err();
            if n == 0 {
                // Others take turns in between.
                (0..2).for_each(|_| drop(bed.call(Ask::default())));
            }
        }
        let mut names = scope.names();
        names.sort_unstable();
        assert_eq!(
            names.iter().map(|name| &**name).collect::<Vec<_>>(),
            ["a", "b", "c"]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_ejected_have_no_share() {
    let builder = Builder::new().health(eject1());
    let bed = KeyedBed::with(builder, RingHash::by(KEY).bounded(1.0), &ABC);
    let lost = bed.fail("hot");
    let calls: Vec<Open> = (0..8).map(|_| bed.hold("hot")).collect();
    for (name, _) in ABC {
        assert_eq!(bed.in_flight(name), if name == lost { 0 } else { 4 });
    }
    drop(calls);
    advance(10 * SECOND).await;
    assert_eq!(bed.owner("hot"), lost);
    assert_clean(&bed);
}

#[tokio::test(start_paused = true)]
async fn a_trial_counts_like_any_call() {
    let builder = Builder::new().health(eject1());
    let mut bed = KeyedBed::with(builder, RingHash::by(KEY).bounded(1.0), &ABC[..2]);
    let lost = bed.fail("hot");
    let other = if lost == "a" { "b" } else { "a" };
    advance(10 * SECOND).await;
    let _trial = bed.hold("hot");
    assert_eq!(bed.in_flight(&lost), 1);
    // The only endpoint is never ejected: it is back while the trial runs.
    bed.remove(other);
    bed.insert(other, 1);
    let _call = bed.hold("hot");
    assert_eq!((bed.in_flight(&lost), bed.in_flight(other)), (1, 1));
}
