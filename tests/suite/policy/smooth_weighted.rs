//! Smooth weighted round robin: nginx's sequence, its bounds, and its changes.

use std::{collections::HashSet, thread, time::Duration};

use counterpoise::{
    Builder, Health,
    health::CapacityChange,
    policy::{BoxPolicy, SmoothWeighted},
};
use proptest::prelude::*;
use serde_json::Value;

use crate::table::{Fail, Table, pick};

/// The plain rule: O(n) for each pick.
struct Oracle {
    weights: Vec<i128>,
    credits: Vec<i128>,
}

impl Oracle {
    fn new(weights: &[u32]) -> Self {
        let weights: Vec<_> = weights.iter().map(|&weight| i128::from(weight)).collect();
        Self {
            credits: vec![0; weights.len()],
            weights,
        }
    }

    fn pick(&mut self) -> usize {
        let total: i128 = self.weights.iter().sum();
        let mut best: Option<usize> = None;
        for i in 0..self.weights.len() {
            self.credits[i] += self.weights[i];
            let greater = best.is_none_or(|best| self.credits[i] > self.credits[best]);
            if self.weights[i] > 0 && greater {
                best = Some(i);
            }
        }
        self.credits[best.unwrap()] -= total;
        best.unwrap()
    }
}

fn smooth(weights: &[u32]) -> Table<SmoothWeighted> {
    Table::new(SmoothWeighted::new(), weights)
}

fn golden(text: &str) -> Vec<Value> {
    let file: Value = serde_json::from_str(text).unwrap();
    file["vectors"].as_array().unwrap().clone()
}

fn numbers(value: &Value) -> Vec<usize> {
    let numbers = value.as_array().into_iter().flatten();
    numbers
        .map(|number| usize::try_from(number.as_u64().unwrap()).unwrap())
        .collect()
}

/// The weights of a recorded vector; servers that were down, or backups of others that were
/// not, have none.
fn weights(vector: &Value) -> Vec<u32> {
    let unused: HashSet<_> = numbers(&vector["down"]).into_iter().collect();
    let backup: HashSet<_> = numbers(&vector["backup"]).into_iter().collect();
    let all = numbers(&vector["weights"]);
    let primary = (0..all.len()).any(|i| !unused.contains(&i) && !backup.contains(&i));
    let used = |i: &usize| !unused.contains(i) && backup.contains(i) != primary;
    let weight = |i| {
        if used(&i) {
            u32::try_from(all[i]).unwrap()
        } else {
            0
        }
    };
    (0..all.len()).map(weight).collect()
}

#[test]
fn golden_nginx_wrr() {
    let vectors = golden(include_str!("../../golden/nginx_wrr.json"));
    assert_eq!(vectors.len(), 39);
    for vector in vectors {
        let want = numbers(&vector["picks"]);
        assert_eq!(
            smooth(&weights(&vector)).picks(want.len()),
            want,
            "{}",
            vector["name"]
        );
    }
}

#[test]
fn golden_swrr_model() {
    let vectors = golden(include_str!("../../golden/swrr_model.json"));
    assert_eq!(vectors.len(), 201);
    for vector in vectors {
        let want = numbers(&vector["picks"]);
        assert_eq!(
            smooth(&weights(&vector)).picks(want.len()),
            want,
            "{}",
            vector["name"]
        );
    }
}

#[test]
fn golden_haproxy_counts() {
    for vector in golden(include_str!("../../golden/haproxy_rr.json")) {
        let weights = weights(&vector);
        let cycle = usize::try_from(vector["cycle"].as_u64().unwrap()).unwrap();
        let counts = smooth(&weights).counts(weights.len(), cycle);
        // Its own proportions are exact in the last of the three cycles at the latest.
        let theirs = vector["counts_per_cycle"]
            .as_array()
            .unwrap()
            .last()
            .unwrap();
        assert_eq!(counts, numbers(theirs), "{}", vector["name"]);
    }
}

#[test]
fn b24_the_rotation_is_smooth() {
    let name = |weights: &[u32], n| {
        let picks = smooth(weights).picks(n).into_iter();
        picks.map(|i| char::from(b"ABC"[i])).collect::<String>()
    };
    assert_eq!(name(&[5, 1, 1], 14), "AABACAAAABACAA");
    assert_eq!(name(&[1, 2, 3], 6), "CBACBC");
    assert_eq!(name(&[3, 1], 8), "AABAAABA");
    assert_eq!(name(&[4, 2, 1], 7), "ABACABA");
}

#[test]
fn a_boxed_policy_picks_the_same() {
    let mut boxed = Table::new(BoxPolicy::<Fail>::new(SmoothWeighted::new()), &[4, 2, 1]);
    assert_eq!(boxed.picks(7), [0, 1, 0, 2, 0, 1, 0]);
    boxed.insert(2, 2);
    assert_eq!(boxed.counts(3, 80), [40, 20, 20]);
}

/// How far each endpoint is from its share after every pick, as exact integers: ahead by at
/// most 1 - 1/n picks, behind by at most H(n) - 1.
fn assert_bounds(weights: &[u32], picks: impl IntoIterator<Item = usize>) {
    let total: i128 = weights.iter().map(|&weight| i128::from(weight)).sum();
    let n = weights.iter().filter(|&&weight| weight > 0).count() as i128;
    // H(n) as a multiple of 1/SCALE, rounded up.
    const SCALE: i128 = 1_000_000_000;
    let harmonic: i128 = (1..=n).map(|k| (SCALE + k - 1) / k).sum();
    let mut counts = vec![0_i128; weights.len()];
    for (picks, picked) in (1_i128..).zip(picks) {
        counts[picked] += 1;
        for (i, &weight) in weights.iter().enumerate() {
            let ahead = counts[i] * total - i128::from(weight) * picks;
            assert!(
                ahead * n <= (n - 1) * total,
                "{i} is ahead after {picks} of {weights:?}"
            );
            assert!(
                -ahead * SCALE <= (harmonic - SCALE) * total,
                "{i} is behind after {picks}"
            );
        }
    }
}

fn any_weights(most: usize) -> impl Strategy<Value = Vec<u32>> {
    let distinct = prop::collection::vec(1..=1_000_000_u32, 1..=most);
    let few = prop::collection::vec(prop::sample::select(vec![1_u32, 2, 7, 1_000]), 1..=most);
    let skewed = prop::collection::vec(prop::sample::select(vec![0_u32, 1, 1_000_000]), 2..=most)
        .prop_filter("somebody must serve", |weights| {
            weights.iter().any(|&weight| weight > 0)
        });
    prop_oneof![distinct, few, skewed]
}

/// Fixed cases: the same in every run, and no file of former failures.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        rng_seed: prop::test_runner::RngSeed::Fixed(42),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn every_pick_is_the_plain_rules(weights in any_weights(200)) {
        let mut oracle = Oracle::new(&weights);
        let mut table = smooth(&weights);
        for n in 0..3_000 {
            prop_assert_eq!(table.pick(), oracle.pick(), "pick {}", n);
        }
    }

    #[test]
    fn the_bounds_hold_in_integers(weights in any_weights(60)) {
        let mut table = smooth(&weights);
        assert_bounds(&weights, (0..1_500).map(|_| table.pick()));
    }

    /// Only weights change, so nobody leaves, and credits must add up over the whole run.
    #[test]
    fn reweighting_never_costs_a_turn(
        start in any_weights(12),
        changes in prop::collection::vec((0..12_usize, 1..=50_u32, 1..40_usize), 1..60),
    ) {
        let mut weights: Vec<u32> = start.iter().map(|&weight| weight.max(1)).collect();
        let mut table = smooth(&weights);
        let mut owed = vec![0.0; weights.len()];
        let bound = (1..=weights.len()).map(|k| 1.0 / k as f64).sum::<f64>() + 1.0;
        for (who, weight, picks) in changes {
            let who = who % weights.len();
            weights[who] = weight;
            table.insert(who, weight);
            let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
            for _ in 0..picks {
                for (owed, &weight) in owed.iter_mut().zip(&weights) {
                    *owed += f64::from(weight) / total;
                }
                owed[table.pick()] -= 1.0;
                prop_assert!(owed.iter().all(|owed| owed.abs() <= bound), "{:?}", owed);
            }
        }
    }

    /// Random scripts: in every window between two changes each endpoint gets its share.
    #[test]
    fn every_window_is_fair(
        script in prop::collection::vec((0..4_u8, 0..10_usize, 1..=20_u32, 1..150_usize), 1..40),
    ) {
        let mut weights = vec![1_u32; 10];
        let health = Health::new().consecutive_failures(1).base_ejection(Duration::from_secs(9_999)).max_ejection(Duration::from_secs(9_999));
        let mut table = Table::with(Builder::new().starting_at(0).health(health), SmoothWeighted::new(), &weights);
        let mut out = HashSet::new();
        for (action, who, weight, picks) in script {
            match action {
                0 => { table.remove(who); weights[who] = 0; out.remove(&who); }
                1 if out.len() < 7 && weights.iter().filter(|&&w| w > 0).count() > out.len() + 1 => { out.insert(table.fail()); }
                _ => { table.insert(who, weight); weights[who] = weight; }
            }
            let share = |i: usize| if out.contains(&i) { 0 } else { weights[i] };
            let total: u32 = (0..10).map(share).sum();
            if total == 0 { continue; }
            let counts = table.counts(10, picks);
            for (i, count) in counts.into_iter().enumerate() {
                let fair = picks as f64 * f64::from(share(i)) / f64::from(total);
                prop_assert!((count as f64 - fair).abs() <= 3.5, "{} of {}: {} for {}", i, picks, count, fair);
                prop_assert!(share(i) > 0 || count == 0);
            }
        }
    }
}

#[test]
fn long_sequences_go_on_across_tapes() {
    // The cycle is longer than any tape, so tables are compiled anew on the way.
    let weights = [999_983, 499_979, 77_777, 3];
    let mut oracle = Oracle::new(&weights);
    let mut table = smooth(&weights);
    let generation = table.balance.stats().generation;
    for n in 0..200_000 {
        assert_eq!(table.pick(), oracle.pick(), "pick {n}");
    }
    assert_eq!(table.balance.stats().generation, generation + 3);
}

#[test]
fn b31_sums_beyond_32_bits() {
    let mut table = smooth(&[u32::MAX, u32::MAX, 1]);
    let counts = table.counts(3, 100_000);
    assert!(
        counts[0].abs_diff(counts[1]) <= 1 && counts[2] <= 1,
        "{counts:?}"
    );
    let mut table = smooth(&vec![u32::MAX; 10_000]);
    assert_eq!(table.counts(10_000, 20_000), vec![2; 10_000]);
}

#[test]
fn one_endpoint_and_equal_ones() {
    assert_eq!(smooth(&[7]).picks(3), [0, 0, 0]);
    assert_eq!(smooth(&[3, 3, 3]).picks(6), [0, 1, 2, 0, 1, 2]);
    assert_eq!(smooth(&[1, 1000]).counts(2, 1001), [1, 1000]);
}

#[test]
fn b29_a_change_of_weight_alone_is_noticed() {
    let mut table = smooth(&[1, 1]);
    assert_eq!(table.counts(2, 10), [5, 5]);
    table.insert(1, 9);
    let counts = table.counts(2, 100);
    assert!(counts[0].abs_diff(10) <= 1, "{counts:?}");
    table.insert(1, 1);
    let counts = table.counts(2, 100);
    assert!(counts[0].abs_diff(50) <= 1, "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn b30_a_recovered_endpoint_has_its_weight_back() {
    let health = Health::new().consecutive_failures(1).jitter(0.0);
    let builder = Builder::new().starting_at(0).health(health);
    let mut table = Table::with(builder, SmoothWeighted::new(), &[9, 1]);
    while table.fail() != 0 {}
    tokio::time::advance(Duration::from_secs(10)).await;
    table.pick();
    let counts = table.counts(2, 100);
    assert!(counts[0].abs_diff(90) <= 1, "{counts:?}");
}

#[test]
fn b23_light_endpoints_do_not_starve_when_the_set_is_rebuilt() {
    let mut table = smooth(&[99, 1]);
    let mut counts = [0; 3];
    for round in 0..100 {
        match round % 2 {
            0 => table.insert(2, 0),
            _ => table.remove(2),
        }
        table.picks(20).into_iter().for_each(|who| counts[who] += 1);
    }
    assert!((18..=22).contains(&counts[1]), "{counts:?}");
}

#[test]
fn newcomers_come_gently() {
    let mut table = smooth(&[1, 1, 1]);
    table.picks(1_000);
    table.insert(3, 1);
    let picks = table.picks(40);
    assert_eq!(picks.iter().filter(|&&who| who == 3).count(), 10);
    assert!(picks.windows(2).all(|pair| pair != [3, 3]), "{picks:?}");
}

#[test]
fn b16_many_clients_do_not_start_in_step() {
    let mut first = [0; 4];
    for seed in 0..100 {
        let builder = Builder::new().seed(seed);
        first[Table::with(builder, SmoothWeighted::new(), &[1; 4]).pick()] += 1;
    }
    assert!(first.iter().all(|&count| count >= 10), "{first:?}");
}

#[test]
fn b33_raising_a_weight_is_no_spike() {
    let raised = (0..50).filter(|&seed| {
        let builder = Builder::new().seed(seed);
        let mut table = Table::with(builder, SmoothWeighted::new(), &[1; 10]);
        table.picks(3);
        table.insert(4, 2);
        table.pick() == 4
    });
    let raised = raised.count();
    assert!(
        raised <= 20,
        "{raised} of 50 clients picked the raised one next"
    );
}

#[test]
fn counts_are_exact_under_threads() {
    let weights = [5, 3, 1, 1];
    let table = smooth(&weights);
    let balance = table.balance.clone();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let mut balance = balance.clone();
            thread::spawn(move || {
                let mut counts = [0_usize; 4];
                (0..25_000).for_each(|_| counts[pick(&mut balance)] += 1);
                counts
            })
        })
        .collect();
    let mut counts = [0; 4];
    for thread in threads {
        let theirs = thread.join().unwrap();
        counts
            .iter_mut()
            .zip(theirs)
            .for_each(|(count, theirs)| *count += theirs);
    }
    assert_eq!(counts, [50_000, 30_000, 10_000, 10_000]);
}

#[test]
fn tapes_are_used_up_exactly_under_threads() {
    let weights = [999_983, 499_979, 77_777, 3];
    let mut want = [0; 4];
    let mut oracle = Oracle::new(&weights);
    (0..200_000).for_each(|_| want[oracle.pick()] += 1);
    let balance = smooth(&weights).balance.clone();
    let picks = |mut balance: counterpoise::Balance<_, _>| {
        move || (0..50_000).map(|_| pick(&mut balance)).collect::<Vec<_>>()
    };
    let threads: Vec<_> = (0..4)
        .map(|_| thread::spawn(picks(balance.clone())))
        .collect();
    let mut counts = [0; 4];
    for thread in threads {
        thread
            .join()
            .unwrap()
            .into_iter()
            .for_each(|who: usize| counts[who] += 1);
    }
    assert_eq!(counts, want);
}

#[test]
fn shares_follow_the_capacity_factor() {
    let mut table = smooth(&[1, 1]);
    assert_eq!(
        table.balance.set_capacity("1", 0.25),
        CapacityChange::Applied
    );
    assert_eq!(table.counts(2, 100), [80, 20]);
    assert_eq!(
        table.balance.set_capacity("1", 0.0),
        CapacityChange::Applied
    );
    assert_eq!(table.counts(2, 100), [100, 0]);
    assert_eq!(table.balance.stats().endpoint("1").unwrap().weight, 1);
    assert_eq!(
        table.balance.set_capacity("1", 7.0),
        CapacityChange::Clamped
    );
    assert_eq!(table.counts(2, 100), [50, 50]);
    assert_eq!(
        table.balance.set_capacity("1", -1.0),
        CapacityChange::Clamped
    );
    assert_eq!(table.counts(2, 10), [10, 0]);
    assert_eq!(
        table.balance.set_capacity("1", f64::NAN),
        CapacityChange::Refused
    );
    assert_eq!(table.counts(2, 10), [10, 0]);
    assert_eq!(
        table.balance.set_capacity("9", 1.0),
        CapacityChange::Unknown
    );
}
