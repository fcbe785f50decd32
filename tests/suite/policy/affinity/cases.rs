//! Cases of other consistent hashing, with every structure they apply to.

use counterpoise::{
    Builder, Health,
    policy::affinity::{Fallback, HashMod, Maglev, Rendezvous, RingHash, Structure},
};
use tokio::time::advance;

use crate::{
    bed::{SECOND, eject1},
    keyed_bed::{Ask, KEY, KeyedBed, KeyedBy, count, each_keyed, firsts, keys},
    probes::Compiles,
};

const ABC: [(&str, u32); 3] = [("a", 1), ("b", 1), ("c", 1)];

/// Nearly everything collides.
fn four_bits(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |sum: u64, &byte| sum.wrapping_mul(31) + u64::from(byte))
        & 15
}

fn b38<S: Structure + Clone>(policy: KeyedBy<S>) {
    let keys = keys(500);
    let mut bed = KeyedBed::new(policy.clone(), &ABC);
    assert!(
        bed.owners(&keys)
            .iter()
            .all(|owner| ["a", "b", "c"].contains(&owner.as_str()))
    );
    bed.remove("b");
    assert_eq!(
        bed.owners(&keys),
        firsts(&policy, &[("a", 1), ("c", 1)], &keys)
    );
    bed.remove("a");
    assert_eq!(count(&bed.owners(&keys), "c"), keys.len());
    bed.remove("c");
    bed.call(Ask::of("user 1")).unwrap_err();
    assert!(policy.map::<&str>([]).owners(b"user 1").is_empty());
}

#[test]
fn b38_points_that_collide_belong_to_somebody_still() {
    b38(RingHash::by(KEY).points(8).hash_with(four_bits));
    b38(Rendezvous::by(KEY).hash_with(four_bits));
    b38(HashMod::by(KEY).hash_with(four_bits));
    each_keyed!(b38);
}

fn shuffled<'a>(set: &[(&'a str, u32)], seed: usize) -> Vec<(&'a str, u32)> {
    let mut set = set.to_vec();
    let mut random = seed;
    for i in (1..set.len()).rev() {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040);
        set.swap(i, (random >> 33) % (i + 1));
    }
    set
}

const TEN: [(&str, u32); 10] = [
    ("a", 1),
    ("b", 1),
    ("c", 1),
    ("d", 1),
    ("e", 1),
    ("f", 1),
    ("g", 1),
    ("h", 1),
    ("i", 1),
    ("j", 1),
];

fn b41<S: Structure + Clone>(policy: KeyedBy<S>) {
    let keys = keys(10_000);
    let want = firsts(&policy, &TEN, &keys);
    for seed in 0..20 {
        let set = shuffled(&TEN, seed);
        assert_eq!(firsts(&policy, &set, &keys), want, "{set:?}");
        let map = policy.map(set.iter().copied());
        for (key, want) in keys.iter().zip(&want).take(100) {
            assert_eq!(map.owners(key.as_bytes())[0], want, "{set:?}");
        }
    }
}

#[test]
fn b41_the_order_of_joining_plays_no_part() {
    each_keyed!(b41);
}

/// The owners of `user 0` to `user 19` among a to j: written down once, to hold for ever.
#[test]
fn b42_the_owners_are_those_of_every_other_process() {
    let text = |owners: Vec<String>| owners.concat();
    let keys = keys(20);
    assert_eq!(
        text(firsts(&RingHash::by(KEY), &TEN, &keys)),
        "dgiieeccdifiddafiggc"
    );
    assert_eq!(
        text(firsts(&Maglev::by(KEY), &TEN, &keys)),
        "iadbhhjcjeajcahichfe"
    );
    assert_eq!(
        text(firsts(&HashMod::by(KEY), &TEN, &keys)),
        "jbbfcjhbiedhbeehffdg"
    );
    assert_eq!(
        text(firsts(&Rendezvous::by(KEY), &TEN, &keys)),
        "gahjcjjfbcahjbgeabfi"
    );
}

fn b43<S: Structure + Clone>(policy: KeyedBy<S>) {
    let keys = keys(100_000);
    let owners = firsts(&policy, &TEN, &keys);
    for (name, _) in TEN {
        let share = count(&owners, name) as f64 / keys.len() as f64;
        assert!((0.06..=0.15).contains(&share), "{name} {share}");
    }
}

#[test]
fn b43_defaults_are_even_enough() {
    each_keyed!(b43);
    b43(Maglev::by(KEY));
    // One point each is allowed, and what it does can be seen before it is deployed.
    let one = RingHash::by(KEY).points(1).map(TEN);
    assert!(
        one.shares().iter().any(|&(_, share)| share > 0.15),
        "{:?}",
        one.shares()
    );
    assert_eq!(one.shares(), RingHash::by(KEY).points(0).map(TEN).shares());
}

fn b44<S: Structure + Clone>(policy: KeyedBy<S>) {
    let set = [("a", 1_024), ("b", 1_024), ("c", 5)];
    let map = policy.map(set);
    let share = map.share("c").unwrap();
    assert!(share > 0.0 && share < 0.02, "{share}");
    let keys = keys(200_000);
    let owned = count(&firsts(&policy, &set, &keys), "c");
    assert!(owned > 0 && owned < keys.len() / 50, "{owned}");
    for key in &keys[..200] {
        let mut walk = map.owners(key.as_bytes());
        walk.sort_unstable();
        assert_eq!(walk, ["a", "b", "c"], "{key}");
    }
}

#[test]
fn b44_a_small_weight_owns_something() {
    each_keyed!(b44);
    b44(Maglev::by(KEY));
}

/// Asserts that keys only move to or from `changed`, or at all if that is allowed.
fn b45<S: Structure + Clone>(policy: KeyedBy<S>) {
    let keys = keys(10_000);
    let names: Vec<String> = (0..30).map(|i| format!("10.0.0.{i}:80")).collect();
    let set: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let mut bed = KeyedBed::new(policy.clone(), &set[..2]);
    let mut before = firsts(&policy, &set[..2], &keys);
    for n in 3..=30 {
        let newcomer = &names[n - 1];
        let after = firsts(&policy, &set[..n], &keys);
        let moved: Vec<_> = before.iter().zip(&after).filter(|(a, b)| a != b).collect();
        assert!(!moved.is_empty());
        assert!(
            moved.iter().all(|(_, owner)| *owner == newcomer),
            "{n}: {moved:?}"
        );
        bed.insert(newcomer, 1);
        assert_eq!(bed.owners(&keys[..100]), after[..100]);
        bed.remove(newcomer);
        assert_eq!(bed.owners(&keys[..100]), before[..100]);
        bed.insert(newcomer, 1);
        assert_eq!(bed.owners(&keys[..100]), after[..100]);
        before = after;
    }
}

#[test]
fn b45_a_newcomer_takes_keys_and_moves_no_other() {
    b45(RingHash::by(KEY));
    b45(RingHash::by(KEY).points(4));
    b45(Rendezvous::by(KEY));
}

/// Maglev moves a few keys more, and says so; HashMod nearly all.
#[test]
fn b45_what_other_structures_move_is_what_they_document() {
    let set = |n: usize| (0..n).map(|i| (format!("10.0.0.{i}:80"), 1));
    for n in [5, 20, 100] {
        let ideal = 1.0 / n as f64;
        let maglev = Maglev::by(KEY)
            .map(set(n))
            .moved(&Maglev::by(KEY).map(set(n - 1)));
        assert!(
            maglev >= ideal - 0.001 && maglev < ideal + 0.01,
            "{n}: {maglev}"
        );
        let modulo = HashMod::by(KEY)
            .map(set(n))
            .moved(&HashMod::by(KEY).map(set(n - 1)));
        assert!((modulo - (1.0 - ideal)).abs() < 1e-9, "{n}: {modulo}");
    }
}

fn b47<S: Structure + Clone>(policy: KeyedBy<S>) {
    let keys = keys(2_000);
    let bed = KeyedBed::with(Builder::new().health(eject1()), policy, &ABC);
    let before = bed.owners(&keys);
    let victim = before.iter().position(|owner| owner == "b").unwrap();
    assert_eq!(bed.fail(&keys[victim]), "b");
    let without = bed.owners(&keys);
    let mut inherited = Vec::new();
    for (old, new) in before.iter().zip(&without) {
        match old.as_str() {
            "b" => inherited.push(new.clone()),
            _ => assert_eq!(old, new),
        }
    }
    for name in ["a", "c"] {
        let share = count(&inherited, name) as f64 / inherited.len() as f64;
        assert!(share >= 0.25, "{name} {share}");
    }
}

#[tokio::test(start_paused = true)]
async fn b47_an_ejection_moves_the_keys_of_the_ejected_alone() {
    each_keyed!(b47);
}

fn b47_back<S: Structure + Clone>(policy: &KeyedBy<S>, bed: &KeyedBed<KeyedBy<S>>) {
    let keys = keys(2_000);
    assert_eq!(bed.owners(&keys), firsts(policy, &ABC, &keys));
}

async fn b47_returns<S: Structure + Clone>(policy: KeyedBy<S>) {
    let bed = KeyedBed::with(Builder::new().health(eject1()), policy.clone(), &ABC);
    let keys = keys(100);
    let victim = bed
        .owners(&keys)
        .iter()
        .position(|owner| owner == "b")
        .unwrap();
    assert_eq!(bed.fail(&keys[victim]), "b");
    assert_ne!(bed.owner(&keys[victim]), "b");
    advance(10 * SECOND).await;
    assert_eq!(bed.owner(&keys[victim]), "b");
    b47_back(&policy, &bed);
}

#[tokio::test(start_paused = true)]
async fn b47_a_recovery_gives_the_keys_back() {
    b47_returns(RingHash::by(KEY)).await;
    b47_returns(Maglev::by(KEY)).await;
    b47_returns(HashMod::by(KEY)).await;
    b47_returns(Rendezvous::by(KEY)).await;
}

/// The hash is the position, but for the mixing: so single points meet all kinds of keys.
fn b48<S: Structure + Clone>(policy: KeyedBy<S>) {
    let edges = [
        0,
        1,
        10,
        11,
        30,
        31,
        u64::from(u32::MAX),
        u64::MAX - 1,
        u64::MAX,
    ];
    for set in [&ABC[..1], &ABC[..2], &ABC[..]] {
        let map = policy.map(set.iter().copied());
        for key in edges.into_iter().chain((0..64).map(|bit| 1 << bit)) {
            let mut walk = map.owners(&key.to_le_bytes());
            walk.sort_unstable();
            assert_eq!(walk, ["a", "b", "c"][..set.len()], "{key}");
        }
    }
}

#[test]
fn b48_every_hash_has_an_owner() {
    let identity = |bytes: &[u8]| match bytes.try_into() {
        Ok(bytes) => u64::from_le_bytes(bytes),
        Err(_) => bytes.iter().map(|&byte| u64::from(byte)).sum(),
    };
    b48(RingHash::by(KEY).points(1).hash_with(identity));
    b48(RingHash::by(KEY).nginx().hash_with(identity).points(1));
    b48(RingHash::by(KEY).envoy(1, 3).hash_with(identity));
    b48(RingHash::by(KEY)
        .haproxy(|name| name.len() as u32)
        .hash_with(identity));
    b48(HashMod::by(KEY).hash_with(identity));
    b48(Rendezvous::by(KEY).hash_with(identity));
    b48(Maglev::by(KEY).table_size(3));
}

fn b50<S: Structure + Clone>(policy: KeyedBy<S>) {
    let keys = keys(500);
    let mut bed = KeyedBed::new(policy.clone(), &ABC[..2]);
    let before = bed.owners(&keys);
    bed.insert("c", 0);
    assert_eq!(bed.owners(&keys), before);
    bed.insert("d", 1);
    let set = [("a", 1), ("b", 1), ("c", 0), ("d", 1)];
    let after = bed.owners(&keys);
    assert_eq!(after, firsts(&policy, &set, &keys));
    assert!(count(&after, "d") > 0 && bed.calls("c") == 0);
    bed.insert("c", 1);
    assert!(count(&bed.owners(&keys), "c") > 0);
    assert_eq!(bed.balance.stats().policy_panics, 0);
}

#[test]
fn b50_weight_zero_owns_nothing_and_harms_nobody() {
    each_keyed!(b50);
}

/// All drained: an error that says so, and it can be left again.
fn b50_nothing<S: Structure + Clone>(policy: KeyedBy<S>) {
    let mut bed = KeyedBed::new(policy.clone(), &[("a", 0), ("b", 0)]);
    let error = bed.call(Ask::of("x")).unwrap_err();
    assert_eq!(error.kind(), counterpoise::error::ErrorKind::Drained);
    assert_eq!(
        policy.map([("a", 0), ("b", 0)]).shares(),
        [("a", 0.0), ("b", 0.0)]
    );
    bed.insert("a", u32::MAX);
    assert_eq!(bed.owner("x"), "a");
}

#[test]
fn b50_with_all_drained_nobody_owns_anything() {
    each_keyed!(b50_nothing);
}

fn b53<S: Structure + Clone>(policy: KeyedBy<S>) {
    for fallback in [Fallback::Rotate, Fallback::Random] {
        let bed = KeyedBed::new(policy.clone().fallback(fallback), &ABC);
        (0..300).for_each(|_| drop(bed.call(Ask::default()).unwrap()));
        for (name, _) in ABC {
            assert!(
                (60..=140).contains(&bed.calls(name)),
                "{fallback:?} {}",
                bed.calls(name)
            );
        }
    }
    let bed = KeyedBed::new(policy.clone().fallback(Fallback::Refuse), &ABC);
    let error = bed.call(Ask::default()).unwrap_err();
    assert_eq!(error.kind(), counterpoise::error::ErrorKind::Policy);
    // The empty string is a key: always the same owner.
    let owners: Vec<_> = (0..100).map(|_| bed.owner("")).collect();
    assert_eq!(count(&owners, policy.map(ABC).owners(b"")[0]), 100);
}

#[test]
fn b53_requests_without_a_key_are_spread() {
    each_keyed!(b53);
}

fn b55<S: Structure + Clone>(policy: KeyedBy<S>) {
    let keys = keys(100);
    let mut bed = KeyedBed::new(policy.clone(), &ABC);
    let clones = [bed.balance.clone(), bed.balance.clone()];
    bed.owners(&keys);
    bed.remove("b");
    bed.insert("d", 1);
    let want = bed.owners(&keys);
    assert_eq!(
        want,
        firsts(&policy, &[("a", 1), ("c", 1), ("d", 1)], &keys)
    );
    for mut clone in clones {
        let ask = |key: &String| {
            crate::keyed_bed::at_once(tower::Service::call(&mut clone, Ask::of(key)))
        };
        let owners: Vec<String> = keys
            .iter()
            .map(ask)
            .map(|name| name.unwrap().to_string())
            .collect();
        assert_eq!(owners, want);
    }
}

#[test]
fn b55_all_clones_use_the_same_ring() {
    each_keyed!(b55);
}

/// B47 and B51: how often the structure is made.
#[tokio::test(start_paused = true)]
async fn b51_a_batch_is_one_compile_and_picks_are_none() {
    let policy = Compiles::new(RingHash::by(KEY));
    let names: Vec<String> = (0..1_000).map(|i| i.to_string()).collect();
    let mut bed = KeyedBed::with(Builder::new().health(Health::off()), policy.clone(), &[]);
    names.iter().for_each(|name| bed.announce(name, 1));
    bed.drive();
    assert_eq!(
        (bed.balance.stats().counts.members, policy.count()),
        (1_000, 1)
    );
    bed.owners(&keys(1_000));
    assert_eq!(policy.count(), 1);
    for name in &names[..100] {
        bed.remove(name);
    }
    assert_eq!(policy.count(), 101);
}
