//! Slow start: the share of a newcomer under every policy, and the keys that it takes over.

use std::{any::type_name, time::Duration};

use counterpoise::{
    Builder, Health,
    health::SlowStart,
    policy::{
        LeastRequest, PeakEwma, Picker, Policy, RoundRobin,
        affinity::{Rendezvous, RingHash},
    },
};
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::advance;

use crate::{
    bed::{MILLISECOND, SECOND, eject1},
    fleet::{Fleet, Job, KEY, KeyedBy, Push, Sharing, each_policy, is_likely},
    health::slow_start::{OLDS, near, ramp},
    support::Act,
};

// ===== the curve, under every policy =====

/// At these ages, in milliseconds, this part of the weight counts.
const CURVE: [(u64, f64); 6] = [
    (0, 0.1),
    (900, 0.1),
    (2_500, 0.25),
    (5_000, 0.5),
    (7_500, 0.75),
    (10_000, 1.0),
];

/// Returns the share of an endpoint of which this part of the weight counts.
fn share_at(sharing: Sharing, weight: u32, others: u32, factor: f64) -> f64 {
    let share =
        |weight: u32| f64::from(weight) * factor / (f64::from(weight) * factor + f64::from(others));
    match sharing {
        Sharing::Turns { weighted: false } | Sharing::Draws { weighted: false } => share(1),
        Sharing::Turns { .. } | Sharing::Draws { .. } | Sharing::Costs => share(weight),
        // It has a part of its keys.
        Sharing::Keys => factor * f64::from(weight) / f64::from(weight + others),
    }
}

/// The newcomer, and how heavy the others are together.
#[derive(Debug, Clone, Copy)]
struct Case {
    sharing: Sharing,
    weight: u32,
    others: u32,
    /// Whether all have always been alike to those who called them.
    alike: bool,
}

async fn check_share<P: Policy<Picker: Picker<Job>>>(
    fleet: &mut Fleet<P>,
    case: Case,
    age: u64,
    factor: f64,
) {
    let calls = if matches!(case.sharing, Sharing::Turns { .. }) {
        400
    } else {
        3_000
    };
    let want = share_at(case.sharing, case.weight, case.others, factor);
    let got = fleet.share(calls, "n").await;
    let said = format!(
        "{}: {got} of {calls} for {want} at {age}: {case:?}",
        type_name::<P>()
    );
    match case.sharing {
        Sharing::Turns { .. } => assert!((got as f64 - calls as f64 * want).abs() <= 4.0, "{said}"),
        Sharing::Costs if !case.alike => assert!(got as f64 <= 2.2 * calls as f64 * want, "{said}"),
        Sharing::Draws { .. } | Sharing::Costs => assert!(is_likely(got, calls, want), "{said}"),
        // What a ring owns is not exact itself.
        Sharing::Keys if factor == 1.0 => {
            assert!(
                (0.7..1.4).contains(&(got as f64 / calls as f64 / want)),
                "{said}"
            );
        }
        Sharing::Keys => {}
    }
}

/// Follows the newcomer `n` from its arrival or return on.
async fn follow<P: Policy<Picker: Picker<Job>>>(fleet: &mut Fleet<P>, case: Case) {
    let (mut before, mut shares) = (0, Vec::new());
    for (age, factor) in CURVE {
        advance(Duration::from_millis(age - before)).await;
        before = age;
        assert!(
            near(fleet.factor("n"), factor),
            "{} at {age}",
            fleet.factor("n")
        );
        check_share(fleet, case, age, factor).await;
        if case.sharing == Sharing::Keys {
            shares.push(fleet.share(3_000, "n").await);
        }
    }
    assert_eq!(fleet.factor("n"), 1.0);
    // Of the keys that it has in the end, it has that part.
    for (&share, (age, factor)) in shares.iter().zip(CURVE) {
        let whole = shares[CURVE.len() - 1];
        assert!(
            is_likely(share, whole, factor),
            "{}: {share} of {whole} at {age}",
            type_name::<P>()
        );
    }
}

async fn arrives<P: Policy<Picker: Picker<Job>>>(
    sharing: Sharing,
    policy: P,
    olds: &[(&'static str, u32)],
    w: u32,
) {
    let mut fleet = Fleet::new(ramp(Health::new()), policy, olds).await;
    fleet.join("n", w).await;
    let case = Case {
        sharing,
        weight: w,
        others: olds.len() as u32,
        alike: true,
    };
    follow(&mut fleet, case).await;
}

async fn joins_one<P: Policy<Picker: Picker<Job>>>(sharing: Sharing, policy: P) {
    arrives(sharing, policy, &OLDS[..1], 1).await;
}

async fn joins_one_heavily<P: Policy<Picker: Picker<Job>>>(sharing: Sharing, policy: P) {
    arrives(sharing, policy, &OLDS[..1], 7).await;
}

async fn joins_four<P: Policy<Picker: Picker<Job>>>(sharing: Sharing, policy: P) {
    arrives(sharing, policy, &OLDS, 1).await;
}

async fn joins_four_heavily<P: Policy<Picker: Picker<Job>>>(sharing: Sharing, policy: P) {
    arrives(sharing, policy, &OLDS, 7).await;
}

#[tokio::test(start_paused = true)]
async fn the_share_of_a_newcomer_beside_one_follows_the_curve() {
    each_policy!(joins_one);
}

#[tokio::test(start_paused = true)]
async fn the_share_of_a_heavy_newcomer_beside_one_follows_the_curve() {
    each_policy!(joins_one_heavily);
}

#[tokio::test(start_paused = true)]
async fn the_share_of_a_newcomer_beside_four_follows_the_curve() {
    each_policy!(joins_four);
}

#[tokio::test(start_paused = true)]
async fn the_share_of_a_heavy_newcomer_beside_four_follows_the_curve() {
    each_policy!(joins_four_heavily);
}

async fn returns<P: Policy<Picker: Picker<Job>>>(sharing: Sharing, policy: P) {
    let set = [("a", 1), ("b", 1), ("n", 7)];
    let mut fleet = Fleet::new(ramp(eject1()), policy, &set).await;
    fleet.eject("n").await;
    advance(10 * SECOND).await;
    fleet.bring_back("n").await;
    follow(
        &mut fleet,
        Case {
            sharing,
            weight: 7,
            others: 2,
            alike: false,
        },
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_share_of_who_returns_follows_the_curve() {
    each_policy!(returns);
}

async fn many_join<P: Policy<Picker: Picker<Job>>>(sharing: Sharing, policy: P) {
    let builder =
        Builder::new().health(Health::new().slow_start(SlowStart::new(10 * SECOND).floor(0.02)));
    let mut fleet = Fleet::new(builder, policy, &[("n", 1)]).await;
    fleet.join_all(&OLDS).await;
    // The old one carries nearly all: 1 of 1.08.
    let got = fleet.share(3_000, "n").await;
    let want = 1.0 / 1.08;
    if sharing != Sharing::Keys {
        assert!(
            is_likely(got, 3_000, want),
            "{}: {got} for {want}",
            type_name::<P>()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn one_old_endpoint_carries_what_many_newcomers_do_not_yet() {
    each_policy!(many_join);
}

/// Whoever looks cheaper wins each comparison: of two endpoints, each pick.
#[tokio::test(start_paused = true)]
async fn peak_ewma_protects_a_newcomer_that_is_fast() {
    let mut fleet = Fleet::new(ramp(Health::new()), PeakEwma::new(), &OLDS[..1]).await;
    fleet.act("a", Act::After(10 * MILLISECOND));
    fleet.route(100).await;
    fleet.join("n", 1).await;
    fleet.act("n", Act::After(4 * MILLISECOND));
    // Nearly a second at a tenth of the weight, and on until three tenths.
    let (first, later) = (fleet.share(100, "n").await, fleet.share(200, "n").await);
    assert!((3..=30).contains(&first), "{first} of 100 for 9");
    assert!((20..=100).contains(&later), "{later} of 200 for 33");
    fleet.route(2_000).await;
    assert!(fleet.share(100, "n").await > 90, "in the end it may");
}

// ===== keys are handed over =====

/// Follows the owners of 2,000 keys while endpoints join.
async fn hand_over<S>(policy: impl Fn() -> KeyedBy<S>, joins: &[(u64, &'static str)])
where
    S: counterpoise::policy::affinity::Structure + Clone,
{
    let mut fleet = Fleet::new(ramp(Health::new()), policy(), &OLDS).await;
    let mut owners = fleet.owners(2_000).await;
    let mut moves = vec![0; owners.len()];
    for step in 0..=300 {
        for (_, name) in joins.iter().filter(|(at, _)| *at == step) {
            fleet.join(name, 1).await;
        }
        if step % 10 == 0 {
            let now = fleet.owners(2_000).await;
            for (key, (before, after)) in owners.iter().zip(&now).enumerate() {
                if before != after {
                    moves[key] += 1;
                    let arrived = joins.iter().any(|(at, name)| name == after && *at <= step);
                    assert!(
                        arrived,
                        "key {key} moved from {before} to {after} at step {step}"
                    );
                }
            }
            owners = now;
        }
        advance(50 * MILLISECOND).await;
    }
    assert!(
        moves.iter().all(|&moves| moves <= joins.len()),
        "each once a newcomer"
    );
    let names: Vec<_> = OLDS
        .iter()
        .copied()
        .chain(joins.iter().map(|&(_, name)| (name, 1)))
        .collect();
    let mut whole = Fleet::new(Builder::new(), policy(), &names).await;
    assert_eq!(
        owners,
        whole.owners(2_000).await,
        "in the end everybody has its own"
    );
    assert!(moves.iter().filter(|&&moves| moves > 0).count() > 200);
}

#[tokio::test(start_paused = true)]
async fn a_ring_hands_each_key_over_once_and_only_to_the_newcomer() {
    hand_over(|| RingHash::by(KEY), &[(0, "n")]).await;
}

#[tokio::test(start_paused = true)]
async fn rendezvous_hands_each_key_over_once_and_only_to_the_newcomer() {
    hand_over(|| Rendezvous::by(KEY), &[(0, "n")]).await;
}

#[tokio::test(start_paused = true)]
async fn overlapping_ramps_hand_keys_only_to_newcomers() {
    hand_over(|| RingHash::by(KEY), &[(0, "n"), (70, "o")]).await;
}

#[tokio::test(start_paused = true)]
async fn clients_agree_on_who_has_which_key_during_the_ramp() {
    let builder = |seed| {
        let health = Health::new().slow_start(SlowStart::new(10 * SECOND));
        Builder::new()
            .health(health)
            .seed(seed)
            .starting_at(seed)
            .classify(Push(None))
    };
    let mut one = Fleet::with(builder(1), RingHash::by(KEY), &OLDS).await;
    let set: Vec<_> = OLDS.iter().rev().copied().collect();
    let mut other = Fleet::with(builder(99), RingHash::by(KEY), &set).await;
    for fleet in [&mut one, &mut other] {
        fleet.join("n", 1).await;
    }
    for _ in 0..10 {
        advance(SECOND).await;
        assert_eq!(one.owners(1_000).await, other.owners(1_000).await);
    }
}

/// Has so many callers call one after the other for a while; returns the newcomer's share.
async fn busy<P: Policy<Picker: Picker<Job>>>(policy: P, callers: usize) -> f64 {
    let builder = Builder::new().health(Health::new().slow_start(SlowStart::new(1_000 * SECOND)));
    let mut fleet = Fleet::new(builder, policy, &OLDS).await;
    fleet.join("n", 1).await;
    advance(100 * SECOND).await;
    let mut running = FuturesUnordered::new();
    for turn in 0..2_000_u64 {
        for (name, _) in OLDS.iter().copied().chain([("n", 1)]) {
            fleet.act(
                name,
                Act::After(Duration::from_micros(9_000 + turn * 7_919 % 2_000)),
            );
        }
        running.push(fleet.start());
        if running.len() >= callers {
            running.next().await.unwrap().unwrap();
        }
    }
    fleet.calls("n") as f64 / 2_000.0
}

#[tokio::test(start_paused = true)]
async fn under_load_a_newcomer_gets_no_more_than_twice_its_share() {
    let share = 0.1 / 4.1;
    for callers in [2, 4, 8, 16, 64] {
        let shares = [
            busy(LeastRequest::new(), callers).await,
            busy(PeakEwma::new(), callers).await,
            busy(RoundRobin::new(), callers).await,
        ];
        assert!(
            shares.iter().all(|got| *got < 2.0 * share),
            "{shares:?} with {callers}"
        );
        assert!(
            shares.iter().all(|got| *got > 0.4 * share),
            "{shares:?} with {callers}"
        );
    }
}
