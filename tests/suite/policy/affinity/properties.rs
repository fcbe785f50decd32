//! What holds of every set, weight and key, as equalities.

use std::collections::BTreeMap;

use counterpoise::policy::affinity::{
    HashMod, Key, KeyMap, Maglev, Rendezvous, RingHash, Structure,
};
use proptest::prelude::*;

use crate::keyed_bed::{ByKey, KEY, KeyedBed, KeyedBy, Walks, firsts, keys};

/// Fixed cases: the same in every run, and no file of former failures.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        rng_seed: prop::test_runner::RngSeed::Fixed(42),
        ..ProptestConfig::default()
    }
}

type Set = BTreeMap<String, u32>;

fn weight() -> impl Strategy<Value = u32> {
    prop_oneof![
        8 => 1..10_u32,
        2 => Just(0),
        1 => 1..100_000_u32,
        1 => Just(u32::MAX),
    ]
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        (0..20_u8).prop_map(|n| format!("10.0.0.{n}:8080")),
        (0..4_u8).prop_map(|n| "x".repeat(n.into())),
    ]
}

fn set(most: usize) -> impl Strategy<Value = Set> {
    prop::collection::btree_map(name(), weight(), 0..most)
}

fn pairs(set: &Set) -> Vec<(&str, u32)> {
    set.iter()
        .map(|(name, &weight)| (name.as_str(), weight))
        .collect()
}

fn ring() -> RingHash<ByKey> {
    RingHash::by(KEY).points(8).max_points(200)
}

/// Names and points that collide all the time.
fn crude(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |sum: u64, &byte| sum * 7 + u64::from(byte))
        & 7
}

fn walks<S: Structure>(map: &KeyMap<S>, keys: &[String]) -> Vec<Vec<String>> {
    let walk = |key: &String| {
        map.owners(key.as_bytes())
            .into_iter()
            .map(str::to_owned)
            .collect()
    };
    keys.iter().map(walk).collect()
}

/// Asserts that the set alone decides, whatever order it was given in.
fn order_plays_no_part<S: Structure + Clone>(policy: &KeyedBy<S>, set: &Set, turn: usize) {
    let keys = keys(20);
    let mut other = pairs(set);
    let want = walks(&policy.map(other.clone()), &keys);
    other.reverse();
    assert_eq!(walks(&policy.map(other.clone()), &keys), want);
    let n = other.len().max(1);
    other.rotate_left(turn % n);
    assert_eq!(walks(&policy.map(other), &keys), want);
}

/// Asserts that each with a weight is listed once, and nobody else.
fn walks_are_complete<S: Structure + Clone>(policy: &KeyedBy<S>, set: &Set) {
    let open: Vec<_> = set
        .iter()
        .filter(|(_, w)| **w > 0)
        .map(|(name, _)| name.clone())
        .collect();
    for mut walk in walks(&policy.map(pairs(set)), &keys(10)) {
        walk.sort();
        assert_eq!(walk, open);
    }
    for (name, share) in policy.map(pairs(set)).shares() {
        assert_eq!(share > 0.0, set[name] > 0, "{name}: {share}");
    }
    let sum: f64 = policy
        .map(pairs(set))
        .shares()
        .iter()
        .map(|(_, share)| share)
        .sum();
    assert!(
        (sum - f64::from(u8::from(!open.is_empty()))).abs() < 1e-9,
        "{sum}"
    );
}

/// Asserts that a change of one endpoint leaves the order of all others alone, for each key.
fn others_keep_their_order<S: Structure + Clone>(
    policy: &KeyedBy<S>,
    set: &Set,
    changed: &str,
    weight: Option<u32>,
) {
    let keys = keys(20);
    let mut after = set.clone();
    match weight {
        Some(weight) => after.insert(changed.to_owned(), weight),
        None => after.remove(changed),
    };
    let without = |mut walks: Vec<Vec<String>>| {
        walks
            .iter_mut()
            .for_each(|walk| walk.retain(|name| name != changed));
        walks
    };
    let (before, after) = (policy.map(pairs(set)), policy.map(pairs(&after)));
    assert_eq!(
        without(walks(&before, &keys)),
        without(walks(&after, &keys))
    );
    // What moves is what the changed one loses or gains.
    let (old, new) = (before.share(changed), after.share(changed));
    let difference = (old.unwrap_or(0.0) - new.unwrap_or(0.0)).abs();
    let moved = before.moved(&after);
    assert!(
        (moved - difference).abs() < 1e-9,
        "{moved} is not {difference}"
    );
}

/// One change of the set: a new weight, or gone.
type Change = (String, Option<u32>);

fn changes() -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec((name(), prop::option::weighted(0.7, weight())), 1..12)
}

/// Asserts that a balancer that went through all the changes has the ring of one that did not.
fn history_plays_no_part<S: Structure + Clone>(policy: KeyedBy<S>, set: &Set, changes: &[Change]) {
    let keys = keys(10);
    let walking = Walks::new(policy.clone());
    let mut bed = KeyedBed::new(walking.clone(), &pairs(set));
    let mut now = set.clone();
    for (name, weight) in changes {
        match *weight {
            Some(weight) => {
                bed.insert(name, weight);
                now.insert(name.clone(), weight);
            }
            None => {
                bed.remove(name);
                now.remove(name);
            }
        }
        if now.values().any(|&weight| weight > 0) {
            assert_eq!(
                bed.walks(&walking, &keys),
                walks(&policy.map(pairs(&now)), &keys)
            );
        }
    }
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn the_ring_is_a_function_of_the_set(set in set(10), turn in any::<usize>()) {
        order_plays_no_part(&ring(), &set, turn);
        order_plays_no_part(&ring().hash_with(crude), &set, turn);
        order_plays_no_part(&Rendezvous::by(KEY), &set, turn);
        order_plays_no_part(&Rendezvous::by(KEY).hash_with(crude), &set, turn);
        order_plays_no_part(&HashMod::by(KEY), &set, turn);
    }

    #[test]
    fn each_with_a_weight_is_in_the_walk_once_and_owns_something(set in set(10)) {
        walks_are_complete(&ring(), &set);
        walks_are_complete(&Rendezvous::by(KEY), &set);
        walks_are_complete(&HashMod::by(KEY), &set);
    }

    #[test]
    fn a_change_of_one_leaves_the_order_of_the_others(
        set in set(10),
        (name, weight) in (name(), prop::option::weighted(0.7, weight())),
    ) {
        others_keep_their_order(&ring(), &set, &name, weight);
        others_keep_their_order(&ring().hash_with(crude), &set, &name, weight);
        others_keep_their_order(&Rendezvous::by(KEY), &set, &name, weight);
    }
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn history_plays_no_part_in_any_structure(set in set(8), changes in changes()) {
        history_plays_no_part(ring(), &set, &changes);
        history_plays_no_part(ring().hash_with(crude), &set, &changes);
        history_plays_no_part(Rendezvous::by(KEY), &set, &changes);
        history_plays_no_part(HashMod::by(KEY), &set, &changes);
        history_plays_no_part(Maglev::by(KEY).table_size(251), &set, &changes);
    }

    #[test]
    fn maglev_is_a_function_of_the_set(set in set(10), turn in any::<usize>()) {
        let maglev = Maglev::by(KEY).table_size(251);
        order_plays_no_part(&maglev, &set, turn);
        walks_are_complete(&maglev, &set);
        // Just enough slots: all own one, whatever the weights.
        walks_are_complete(&Maglev::by(KEY).table_size(set.len() as u32), &set);
    }
}

/// Asserts what the shares say against what so many keys do.
fn shares_are_what_keys_do<S: Structure + Clone>(policy: &KeyedBy<S>, set: &[(&str, u32)]) {
    let keys = keys(10_000);
    let owners = firsts(policy, set, &keys);
    let map = policy.map(set.iter().copied());
    let sum: f64 = map.shares().iter().map(|(_, share)| share).sum();
    assert!((sum - 1.0).abs() < 1e-12, "{sum}");
    for (name, share) in map.shares() {
        let counted = owners.iter().filter(|owner| *owner == name).count() as f64;
        let sampled = counted / keys.len() as f64;
        // Five standard deviations.
        let tolerance = 5.0 * (share * (1.0 - share) / keys.len() as f64).sqrt() + 1e-9;
        assert!(
            (sampled - share).abs() <= tolerance,
            "{name}: {sampled} is not {share}"
        );
        assert_eq!(map.share(name), Some(share));
    }
    assert_eq!(map.share("nobody"), None);
}

/// Compares what a map says with what keys do, between any two of the sets.
fn moved_is_what_keys_do<S: Structure + Clone>(policy: &KeyedBy<S>) {
    let keys = keys(10_000);
    let sets = SETS.map(|set| (firsts(policy, set, &keys), policy.map(set.iter().copied())));
    for (before, from) in &sets {
        for (after, to) in &sets {
            let counted = before.iter().zip(after).filter(|(a, b)| a != b).count() as f64;
            let (sampled, moved) = (counted / keys.len() as f64, from.moved(to));
            let tolerance = 5.0 * (moved * (1.0 - moved) / keys.len() as f64).sqrt() + 1e-9;
            assert!(
                (sampled - moved).abs() <= tolerance,
                "{sampled} is not {moved}"
            );
            let back = to.moved(from);
            assert!((back - moved).abs() < 1e-12, "{moved} there, {back} back");
        }
    }
}

/// Runs a check with our own structures and those of other products.
macro_rules! each_structure {
    ($check:ident $(, $arg:expr)*) => {
        $check(&RingHash::by(KEY) $(, $arg)*);
        $check(&RingHash::by(KEY).points(3) $(, $arg)*);
        $check(&RingHash::by(KEY).nginx() $(, $arg)*);
        $check(&RingHash::by(KEY).envoy(1_024, 4_096) $(, $arg)*);
        $check(&RingHash::by(KEY).envoy_murmur(64, 128) $(, $arg)*);
        $check(&RingHash::by(KEY).haproxy(|name| name.len() as u32) $(, $arg)*);
        $check(&Maglev::by(KEY) $(, $arg)*);
        $check(&Maglev::by(KEY).table_size(101) $(, $arg)*);
        $check(&HashMod::by(KEY) $(, $arg)*);
        $check(&Rendezvous::by(KEY) $(, $arg)*);
    };
}

const SETS: [&[(&str, u32)]; 4] = [
    &[("a", 1)],
    &[("a", 1), ("bb", 2), ("ccc", 5)],
    &[("ccc", 5), ("a", 1), ("dddd", 3), ("bb", 2)],
    &[("a", 4), ("bb", 2), ("ccc", 0), ("eeeee", 9)],
];

#[test]
fn shares_are_those_of_many_keys() {
    for set in SETS {
        each_structure!(shares_are_what_keys_do, set);
    }
}

#[test]
fn moved_is_the_share_of_keys_that_move() {
    each_structure!(moved_is_what_keys_do);
}

fn nothing_moves<S: Structure + Clone>(policy: &KeyedBy<S>, set: &[(&str, u32)]) {
    let mut other = set.to_vec();
    other.sort_unstable_by_key(|&(name, _)| name.len());
    let (map, other) = (policy.map(set.iter().copied()), policy.map(other));
    assert_eq!((map.moved(&map), map.moved(&other)), (0.0, 0.0), "{set:?}");
}

#[test]
fn nothing_moves_between_equal_sets() {
    let names: Vec<String> = (1..50).map(|n| "x".repeat(n)).collect();
    let many: Vec<_> = names.iter().map(String::as_str).zip(1..).collect();
    for set in SETS.into_iter().chain([&*many]) {
        each_structure!(nothing_moves, set);
    }
}

#[test]
fn nothing_moves_where_nobody_owns_anything() {
    each_structure!(nothing_moves, &[]);
    each_structure!(nothing_moves, &[("a", 0)]);
}

fn by(policy: HashMod<ByKey>, set: &[(&str, u32)], hash: u64) -> String {
    policy
        .map(set.iter().copied())
        .owners(Key::from(hash).as_bytes())[0]
        .to_owned()
}

#[test]
fn hash_mod_sorts_by_name() {
    fn number(bytes: &[u8]) -> u64 {
        u64::from_le_bytes(bytes.try_into().unwrap())
    }
    let policy = || HashMod::by(KEY).hash_with(number);
    let set = [("c", 1), ("a", 2), ("0", 0), ("b", 3)];
    let owners: Vec<_> = (0..12).map(|hash| by(policy(), &set, hash)).collect();
    assert_eq!(owners.concat(), "aabbbcaabbbc");
    assert_eq!(
        by(policy(), &set, u64::MAX),
        ["a", "a", "b", "b", "b", "c"][(u64::MAX % 6) as usize]
    );
    let huge = [("b", u32::MAX), ("a", u32::MAX), ("c", 1)];
    let total = 2 * u64::from(u32::MAX) + 1;
    let at = |hash| by(policy(), &huge, hash);
    let edge = u64::from(u32::MAX);
    assert_eq!(
        [0, edge - 1, edge, total - 2, total - 1, total]
            .map(at)
            .concat(),
        "aabbca"
    );
}

/// However extreme the weights, a ring is made at once, and every weight owns something.
#[test]
fn extreme_weights_make_no_extreme_ring() {
    let set: [(&str, u32); 4] = [
        ("a", u32::MAX),
        ("b", 1),
        ("c", u32::MAX),
        ("d", u32::MAX - 1),
    ];
    for (policy, light) in [
        (RingHash::by(KEY), 160.0 / 65_536.0),
        (RingHash::by(KEY).points(u32::MAX).max_points(100), 1.0),
        (RingHash::by(KEY).points(1).max_points(1_000), 1.0 / 1_000.0),
    ] {
        let map = policy.map(set);
        let share = map.share("b").unwrap();
        let want = light / (3.0 + light);
        assert!(
            share > 0.0 && (share / want - 1.0).abs() < 0.9,
            "{share} is not about {want}"
        );
    }
    let envoy = RingHash::by(KEY).envoy(1_024, 65_536).map(set);
    assert!(
        envoy
            .shares()
            .iter()
            .filter(|(_, share)| *share > 0.0)
            .count()
            >= 3
    );
    let maglev = Maglev::by(KEY).map(set);
    assert!(
        maglev
            .shares()
            .iter()
            .all(|(_, share)| *share >= 1.0 / 65_537.0)
    );
    assert_eq!(Rendezvous::by(KEY).map(set).shares().len(), 4);
    let modulo = HashMod::by(KEY)
        .map(set)
        .shares()
        .iter()
        .map(|(_, share)| share)
        .sum::<f64>();
    assert!((modulo - 1.0).abs() < 1e-12);
}
