//! Ejections and returns, over random sets: whose keys move, and who tries whom.

use std::collections::BTreeMap;

use counterpoise::{
    Builder, Health,
    policy::{
        Picker, Policy,
        affinity::{HashMod, Maglev, Rendezvous, RingHash, Structure},
    },
};
use proptest::prelude::*;
use tokio::{runtime, time::advance};

use crate::{
    bed::{SECOND, eject1},
    keyed_bed::{Ask, KEY, KeyedBed, KeyedBy, keys},
};

type Set = BTreeMap<String, u32>;

/// Returns the order of each key.
fn orders<S: Structure + Clone>(policy: &KeyedBy<S>, set: &[(&str, u32)]) -> Vec<Vec<String>> {
    let map = policy.map(set.iter().copied());
    let order = |key: &String| {
        map.owners(key.as_bytes())
            .into_iter()
            .map(str::to_owned)
            .collect()
    };
    keys(40).iter().map(order).collect()
}

async fn eject_and_return<S: Structure + Clone>(policy: KeyedBy<S>, set: &Set, victim: usize) {
    let set: Vec<_> = set
        .iter()
        .map(|(name, &weight)| (name.as_str(), weight))
        .collect();
    let (keys, orders) = (keys(40), orders(&policy, &set));
    let bed = KeyedBed::with(Builder::new().health(eject1()), policy, &set);
    let victim_key = &keys[victim % keys.len()];
    let victim = &orders[victim % keys.len()][0];
    assert_eq!(bed.fail(victim_key), *victim);
    let check = |bed: &KeyedBed<_>, all: bool| {
        for (key, order) in keys.iter().zip(&orders) {
            match order[0] == *victim {
                true if all => assert_eq!(bed.owner(key), order[1], "{key} of {victim}"),
                true => {}
                false => assert_eq!(bed.owner(key), order[0], "{key}"),
            }
        }
    };
    check(&bed, true);
    advance(10 * SECOND).await;
    // It is due to be tried: not with keys of others.
    let calls = bed.calls(victim);
    check(&bed, false);
    assert_eq!(bed.calls(victim), calls);
    // Its first key tries it, in vain; then the others are used again.
    assert_eq!(bed.fail(victim_key), *victim);
    check(&bed, true);
    advance(20 * SECOND).await;
    for (key, order) in keys.iter().zip(&orders) {
        assert_eq!(bed.owner(key), order[0]);
    }
}

fn sets() -> impl Strategy<Value = Set> {
    let weight = prop_oneof![3 => 1..6_u32, 1 => Just(100)];
    prop::collection::btree_map("[a-z]{1,3}", weight, 2..9)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        rng_seed: prop::test_runner::RngSeed::Fixed(42),
        ..ProptestConfig::default()
    })]

    #[test]
    fn an_ejection_moves_only_the_ejected_ones_keys(set in sets(), victim in 0..40_usize) {
        let mut runtime = runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().unwrap().block_on(async {
            let ring = RingHash::by(KEY).points(8);
            eject_and_return(ring.clone(), &set, victim).await;
            eject_and_return(ring.bounded(1_000.0), &set, victim).await;
            eject_and_return(Maglev::by(KEY).table_size(1_009), &set, victim).await;
            eject_and_return(HashMod::by(KEY), &set, victim).await;
            eject_and_return(Rendezvous::by(KEY), &set, victim).await;
        });
    }
}

/// How many bytes an ejection takes, of a set with a hundred endpoints.
fn bytes_of_an_ejection<P: Policy<Picker: Picker<Ask>>>(policy: P) -> u64 {
    let names: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    let set: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let health = Health::new().consecutive_failures(1);
    let bed = KeyedBed::with(Builder::new().health(health), policy, &set);
    let info = allocation_counter::measure(|| drop(bed.fail("user 1")));
    assert_eq!(bed.balance.stats().counts.ejected, 1);
    info.bytes_total
}

/// B47, B51: a flap of health changes no ring, so it must not cost one. A ring of a hundred is
/// 144,000 bytes, and the table 262,148.
#[test]
fn b47_an_ejection_builds_no_ring() {
    let ring = bytes_of_an_ejection(RingHash::by(KEY));
    let maglev = bytes_of_an_ejection(Maglev::by(KEY));
    assert!(ring < 100_000 && maglev < 100_000, "{ring} {maglev}");
}
