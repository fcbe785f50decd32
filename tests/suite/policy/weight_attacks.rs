//! Attacks on the weighted policies: changes under threads, extreme weights, sets that are
//! rebuilt all the time.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use counterpoise::{
    Balance, Builder, Direct, Health,
    observe::EndpointState,
    policy::{
        BoxPolicy, Members, Picker, Policy, Random, RoundRobin, SmoothWeighted, WeightedRandom,
    },
};
use futures::FutureExt;
use tower::Service;

use crate::table::{Echo, Fail, Table};

fn smooth(weights: &[u32]) -> Table<SmoothWeighted> {
    Table::new(SmoothWeighted::new(), weights)
}

/// The next of a sequence of numbers that look random.
fn random(state: &mut u64, below: usize) -> usize {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % below
}

// ===== rebuilt all the time =====

#[test]
fn nobody_starves_while_a_heavy_endpoint_is_replaced_before_every_pick() {
    let mut table = smooth(&[1, 1]);
    let mut counts = [0; 2];
    for round in 2..1_002 {
        table.insert(round, 2);
        let picked = table.pick();
        if picked < 2 {
            counts[picked] += 1;
        }
        table.remove(round);
    }
    // Their share is a quarter each, of a thousand picks.
    assert!(counts.iter().all(|&count| count > 100), "{counts:?}");
}

#[test]
fn nobody_starves_while_light_endpoints_come_and_go() {
    for (weight, churn) in [(1, 1), (1, 1_000), (1_000, 1), (u32::MAX, 1), (1, u32::MAX)] {
        let mut table = smooth(&[weight, weight, weight]);
        let mut counts = [0; 3];
        for round in 3..2_003 {
            table.insert(round, churn);
            for _ in 0..2 + round % 3 {
                let picked = table.pick();
                if picked < 3 {
                    counts[picked] += 1;
                }
            }
            table.remove(round);
        }
        let all: i32 = counts.iter().sum();
        let fair = counts.iter().all(|&count| (count - all / 3).abs() <= 3);
        assert!(fair, "{counts:?} with {weight} and {churn}");
    }
}

#[test]
fn reweighting_for_ever_comes_to_rest_in_a_tape_that_repeats() {
    let mut seed = 7;
    for _ in 0..40 {
        let n = 2 + random(&mut seed, 12);
        let mut table = smooth(&vec![1; n]);
        let mut weights = vec![1; n];
        for _ in 0..40 {
            let who = random(&mut seed, n);
            weights[who] = 1 + random(&mut seed, 20) as u32;
            table.insert(who, weights[who]);
            let picks = random(&mut seed, 30);
            table.picks(picks);
        }
        let cycle = weights.iter().sum::<u32>() as usize;
        table.picks(20 * 1_100);
        let generation = table.balance.stats().generation;
        let counts = table.counts(n, 50 * cycle);
        table.picks(20_000);
        assert_eq!(table.balance.stats().generation, generation, "{weights:?}");
        for (count, weight) in counts.into_iter().zip(weights) {
            assert_eq!(count, 50 * weight as usize);
        }
    }
}

#[test]
fn a_hundred_thousand_light_endpoints_beside_the_heaviest() {
    let n = 100_000;
    let mut table = smooth(&[1]);
    for part in 0..10 {
        table.insert_all((0..10_000).map(|i| (part * 10_000 + i, 1)));
    }
    table.insert(n, u32::MAX);
    let heavy = table
        .picks(2_000)
        .into_iter()
        .filter(|&who| who == n)
        .count();
    assert!(heavy >= 1_999, "{heavy}");
    // From the heaviest to one of many: nobody has a run, and nobody is left out.
    table.insert(n, 1);
    let counts = table.counts(n + 1, n + 1);
    assert!(counts.iter().all(|&count| count <= 2), "somebody had a run");
    let counts: Vec<_> = counts
        .iter()
        .zip(table.counts(n + 1, n + 1))
        .map(|(a, b)| a + b)
        .collect();
    assert!(
        counts.iter().all(|&count| (1..=3).contains(&count)),
        "somebody was left out"
    );
    // And back: the light ones are not owed anything that would keep the heavy one out.
    table.insert(n, u32::MAX);
    let heavy = table
        .picks(2_000)
        .into_iter()
        .filter(|&who| who == n)
        .count();
    assert!(heavy >= 1_990, "{heavy}");
}

// ===== picks that are made while a picker is built =====

type Smooth = <SmoothWeighted as Policy>::Picker;

/// Smooth weighted, where another thread picks while a picker is built.
#[derive(Clone, Default)]
struct Crowded {
    balance: Arc<OnceLock<Balance<Direct<Echo>, Self>>>,
    picks: Arc<AtomicUsize>,
    picked: Arc<std::sync::Mutex<Vec<usize>>>,
}

impl Policy for Crowded {
    type Picker = Smooth;

    fn build(&self, members: &Members<'_>, previous: Option<&Smooth>) -> Smooth {
        let picker = SmoothWeighted::new().build(members, previous);
        let Some(mut balance) = self.balance.get().cloned() else {
            return picker;
        };
        let picks = self.picks.load(Ordering::Relaxed);
        let crowd = move || {
            (0..picks)
                .map(|_| crate::table::pick(&mut balance))
                .collect()
        };
        let picked: Vec<usize> = thread::spawn(crowd).join().unwrap();
        self.picked.lock().unwrap().extend(picked);
        picker
    }
}

#[test]
fn picks_that_are_made_during_a_compile_count_up_to_one_for_each_thread() {
    let policy = Crowded::default();
    let mut table = Table::new(policy.clone(), &[1; 8]);
    let _ = policy.balance.set(table.balance.clone());
    policy.picks.store(5, Ordering::Relaxed);
    table.insert(7, 1);
    assert_eq!(*policy.picked.lock().unwrap(), [0, 1, 2, 3, 4]);
    // One thread picked meanwhile, so at most one pick is not accounted for.
    let next = table.picks(3);
    let again = next.iter().filter(|&&who| who < 5).count();
    assert!(
        again <= 1,
        "{next:?} once more, although 5, 6 and 7 had no turn yet"
    );
}

#[test]
fn shares_hold_when_picks_are_made_during_compiles() {
    // Two picks between two compiles, and five in each.
    let policy = Crowded::default();
    let mut table = Table::new(policy.clone(), &[1; 8]);
    let _ = policy.balance.set(table.balance.clone());
    policy.picks.store(5, Ordering::Relaxed);
    let mut counts = [0; 8];
    for _ in 0..400 {
        table.insert(7, 1);
        table.picks(2).into_iter().for_each(|who| counts[who] += 1);
    }
    policy
        .picked
        .lock()
        .unwrap()
        .iter()
        .for_each(|&who| counts[who] += 1);
    assert!(
        counts
            .iter()
            .all(|&count: &usize| count.abs_diff(350) <= 10),
        "{counts:?}"
    );
}

// ===== threads =====

/// Whether each endpoint may be picked: even while it may, odd while it must not.
struct Truth(Vec<AtomicU64>);

#[test]
fn no_pick_goes_to_an_endpoint_that_had_left_or_was_drained_before() {
    fn check<P: Policy<Picker: Picker<Fail>>>(policy: P) {
        let n = 8;
        let mut table = Table::new(policy, &[3; 8]);
        let truth = Arc::new(Truth((0..n).map(|_| AtomicU64::new(0)).collect()));
        let done = Arc::new(AtomicBool::new(false));
        let callers: Vec<_> = (0..3)
            .map(|_| {
                let mut balance = table.balance.clone();
                let (truth, done) = (Arc::clone(&truth), Arc::clone(&done));
                thread::spawn(move || {
                    let mut calls = 0_u64;
                    while !done.load(Ordering::SeqCst) {
                        let read = |cell: &AtomicU64| cell.load(Ordering::SeqCst);
                        let before: Vec<_> = truth.0.iter().map(read).collect();
                        let picked = balance.call(false).now_or_never().unwrap().unwrap();
                        let after = read(&truth.0[picked]);
                        let out = before[picked] == after && after % 2 == 1;
                        assert!(!out, "{picked} had left before the pick and did not return");
                        calls += 1;
                    }
                    calls
                })
            })
            .collect();
        let mut seed = 3;
        for round in 0..1_500 {
            // Endpoint 0 always serves.
            let who = 1 + random(&mut seed, n - 1);
            let out = truth.0[who].load(Ordering::SeqCst) % 2 == 1;
            if out {
                truth.0[who].fetch_add(1, Ordering::SeqCst);
                table.insert(who, [1, 7, u32::MAX][round % 3]);
                let _ = table.balance.set_capacity(&who.to_string(), 1.0);
            } else {
                match round % 3 {
                    0 => table.remove(who),
                    1 => table.insert(who, 0),
                    _ => drop(table.balance.set_capacity(&who.to_string(), 0.0)),
                }
                truth.0[who].fetch_add(1, Ordering::SeqCst);
            }
        }
        done.store(true, Ordering::SeqCst);
        for caller in callers {
            assert!(caller.join().unwrap() > 0);
        }
    }
    check(SmoothWeighted::new());
    check(WeightedRandom::new());
    check(Random::new());
    check(RoundRobin::new());
    check(BoxPolicy::<Fail>::new(SmoothWeighted::new()));
}

#[test]
fn totals_follow_the_shares_while_threads_pick_and_one_reweights_to_and_fro() {
    // The weights change all the time but for the share of endpoint 0, which is a half.
    let mut table = smooth(&[10, 5, 5]);
    let done = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..2)
        .map(|_| {
            let (mut balance, done) = (table.balance.clone(), Arc::clone(&done));
            thread::spawn(move || {
                let mut counts = [0_u64; 3];
                while !done.load(Ordering::Relaxed) {
                    counts[crate::table::pick(&mut balance)] += 1;
                }
                counts
            })
        })
        .collect();
    for round in 0..3_000_u32 {
        let weight = 1 + round % 9;
        table.insert_all([(1, weight), (2, 10 - weight)]);
    }
    done.store(true, Ordering::Relaxed);
    let mut counts = [0; 3];
    for caller in callers {
        let theirs = caller.join().unwrap();
        counts
            .iter_mut()
            .zip(theirs)
            .for_each(|(count, theirs)| *count += theirs);
    }
    let all: u64 = counts.iter().sum();
    // A few picks may be made again around each of the changes.
    let slack = all / 50 + 10;
    assert!(counts[0].abs_diff(all / 2) <= slack, "{counts:?}");
}

// ===== parity =====

/// Plays one script of changes, failures and looks; returns who was picked.
fn script<P: Policy<Picker: Picker<Fail>>>(policy: P, looks: bool) -> Vec<usize> {
    let health = Health::new().consecutive_failures(2).max_ejected(0.5);
    let health = health
        .base_ejection(Duration::from_secs(3_600))
        .max_ejection(Duration::from_secs(3_600));
    let builder = Builder::new().seed(5).health(health);
    let mut table = Table::with(builder, policy, &[4, 2, 1, 1, 9]);
    let (mut seed, mut picked) = (11, Vec::new());
    for _ in 0..3_000 {
        let who = random(&mut seed, 6);
        match random(&mut seed, 40) {
            0 => table.remove(who),
            1 | 2 => table.insert(who, random(&mut seed, 6) as u32),
            3 => drop(
                table
                    .balance
                    .set_capacity(&who.to_string(), random(&mut seed, 5) as f64 / 4.0),
            ),
            4 => drop(table.call(true)),
            _ => picked.push(table.call(false).unwrap_or(99)),
        }
        if looks {
            let stats = table.balance.stats();
            let shown = stats.to_string();
            assert!(shown.lines().count() == 2 + stats.endpoints.len());
        }
    }
    picked
}

#[test]
fn a_boxed_policy_picks_the_same_whatever_happens() {
    let boxed = |policy: BoxPolicy<Fail>| script(policy, false);
    assert_eq!(
        boxed(BoxPolicy::new(SmoothWeighted::new())),
        script(SmoothWeighted::new(), false)
    );
    assert_eq!(
        boxed(BoxPolicy::new(WeightedRandom::new())),
        script(WeightedRandom::new(), false)
    );
    assert_eq!(
        boxed(BoxPolicy::new(Random::new())),
        script(Random::new(), false)
    );
    assert_eq!(
        boxed(BoxPolicy::new(RoundRobin::new())),
        script(RoundRobin::new(), false)
    );
}

#[test]
fn looking_at_the_statistics_changes_no_pick_of_any_policy() {
    assert_eq!(
        script(SmoothWeighted::new(), true),
        script(SmoothWeighted::new(), false)
    );
    assert_eq!(
        script(WeightedRandom::new(), true),
        script(WeightedRandom::new(), false)
    );
    assert_eq!(script(Random::new(), true), script(Random::new(), false));
    assert_eq!(
        script(RoundRobin::new(), true),
        script(RoundRobin::new(), false)
    );
}

// ===== large sets =====

#[tokio::test(start_paused = true)]
async fn in_a_large_set_every_pick_is_of_somebody_healthy_or_a_trial_that_is_due() {
    for policy in 0..2 {
        let n = 600;
        let health = Health::new().consecutive_failures(1).max_ejected(0.9);
        let builder = Builder::new().starting_at(0).seed(1).health(health);
        let boxed = match policy {
            0 => BoxPolicy::<Fail>::new(SmoothWeighted::new()),
            _ => BoxPolicy::new(RoundRobin::new()),
        };
        let mut table = Table::with(builder, boxed, &vec![1; n]);
        let mut seed = 9;
        for round in 0..6_000 {
            let stats = table.balance.stats();
            let due = |state: &counterpoise::observe::EndpointStats| {
                state.state == EndpointState::Ejected && state.returns_in == Some(Duration::ZERO)
            };
            let any_due = stats.endpoints.iter().any(due);
            let fails = random(&mut seed, 3) == 0;
            let picked = match table.call(fails) {
                Ok(picked) => picked,
                Err(error) => error
                    .endpoint()
                    .expect("somebody is healthy")
                    .parse()
                    .unwrap(),
            };
            let shown = stats.endpoint(&picked.to_string()).unwrap();
            let right = if any_due {
                due(shown)
            } else {
                shown.state == EndpointState::Serving
            };
            assert!(
                right || stats.panic,
                "{picked} was {:?} in round {round}",
                shown.state
            );
            match random(&mut seed, 60) {
                0 => tokio::time::advance(Duration::from_millis(3)).await,
                1 => tokio::time::advance(Duration::from_millis(200)).await,
                _ => {}
            }
        }
    }
}
