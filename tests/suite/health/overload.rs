//! Push-back lowers a share, holds it, and gives it back in a straight line.

use std::{
    any::type_name,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use counterpoise::{
    Builder, Health, Outcome,
    call::AtHead,
    health::Overload,
    observe::EndpointState,
    policy::{LeastRequest, Picker, Policy, RoundRobin, SmoothWeighted, affinity::RingHash},
};
use futures::{FutureExt, future::join_all};
use tokio::time::advance;

use crate::{
    bed::{Bed, MILLISECOND, SECOND, eject1, refusals},
    fleet::{Fleet, Job, KEY, Push, Sharing, is_likely},
    support::{Act, Answer, Broken},
};

const SET: [(&str, u32); 3] = [("a", 1), ("b", 1), ("c", 1)];

fn builder(overload: Overload, asked: Option<Duration>) -> Builder<AtHead<Push>> {
    let health = Health::new().overload(overload);
    Builder::new()
        .health(health)
        .seed(3)
        .starting_at(0)
        .classify(Push(asked))
}

/// Has an endpoint push back until it is heard once.
async fn push_back<P: Policy<Picker: Picker<Job>>>(fleet: &mut Fleet<P>, name: &str) {
    let overloads = fleet.stats(name).overloads;
    fleet.act(name, Act::Reject);
    while fleet.stats(name).overloads == overloads {
        fleet.route(1).await;
    }
    fleet.act(name, Act::Ok);
}

async fn fleet<P: Policy<Picker: Picker<Job>>>(policy: P, asked: Option<Duration>) -> Fleet<P> {
    Fleet::with(builder(Overload::new(), asked), policy, &SET).await
}

fn share_at(sharing: Sharing, factor: f64) -> f64 {
    match sharing {
        Sharing::Keys => factor / 3.0,
        _ => factor / (2.0 + factor),
    }
}

/// Checks factor and share at these seconds after a push-back.
async fn follow<P: Policy<Picker: Picker<Job>>>(
    sharing: Sharing,
    policy: P,
    asked: Option<Duration>,
    curve: &[(u64, f64)],
) {
    let mut fleet = fleet(policy, asked).await;
    let whole = fleet.share(3_000, "a").await as f64 / 3_000.0;
    push_back(&mut fleet, "a").await;
    let mut now = 0;
    for &(second, factor) in curve {
        advance((second - now) as u32 * SECOND).await;
        now = second;
        let said = format!("{} at {second} s", type_name::<P>());
        assert!(
            (fleet.factor("a") - factor).abs() < 0.01,
            "{said}: {}",
            fleet.factor("a")
        );
        let (got, want) = (fleet.share(3_000, "a").await, share_at(sharing, factor));
        // What a ring owns is known, but not a third.
        let want = if sharing == Sharing::Keys {
            want * 3.0 * whole
        } else {
            want
        };
        assert!(
            is_likely(got, 3_000, want),
            "{said}: {got} of 3,000 for {want}"
        );
    }
    let stats = fleet.stats("a");
    assert_eq!(
        (stats.ejections, stats.state, stats.overloads),
        (0, EndpointState::Serving, 1)
    );
}

macro_rules! each {
    ($asked:expr, $curve:expr) => {{
        let (turns, draws) = (
            Sharing::Turns { weighted: true },
            Sharing::Draws { weighted: true },
        );
        follow(turns, RoundRobin::new(), $asked, $curve).await;
        follow(turns, SmoothWeighted::new(), $asked, $curve).await;
        follow(draws, LeastRequest::new(), $asked, $curve).await;
        follow(Sharing::Keys, RingHash::by(KEY), $asked, $curve).await;
    }};
}

#[tokio::test(start_paused = true)]
async fn push_back_halves_holds_and_comes_back_in_a_line() {
    each!(
        None,
        &[
            (0, 0.5),
            (9, 0.5),
            (10, 0.5),
            (12, 0.6),
            (15, 0.75),
            (20, 1.0),
            (60, 1.0)
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn for_as_long_as_the_endpoint_asks() {
    let asked = Some(30 * SECOND);
    each!(
        asked,
        &[(0, 0.5), (29, 0.5), (30, 0.5), (35, 0.75), (40, 1.0)]
    );
}

#[tokio::test(start_paused = true)]
async fn the_end_is_exact_and_nothing_is_due_afterwards() {
    let mut fleet = fleet(RoundRobin::new(), None).await;
    push_back(&mut fleet, "a").await;
    advance(20 * SECOND - MILLISECOND).await;
    fleet.route(1).await;
    assert!(fleet.factor("a") < 1.0);
    advance(MILLISECOND).await;
    fleet.route(1).await;
    let generation = fleet.balance.stats().generation;
    assert_eq!(fleet.factor("a"), 1.0);
    for _ in 0..20 {
        advance(SECOND).await;
        fleet.route(1).await;
    }
    assert_eq!(fleet.balance.stats().generation, generation);
}

#[tokio::test(start_paused = true)]
async fn what_the_endpoint_asks_for_is_bounded() {
    for asked in [301 * SECOND, Duration::MAX] {
        let mut fleet = fleet(RoundRobin::new(), Some(asked)).await;
        push_back(&mut fleet, "a").await;
        advance(300 * SECOND).await;
        assert_eq!(fleet.factor("a"), 0.5);
        advance(5 * SECOND).await;
        assert!((fleet.factor("a") - 0.75).abs() < 0.01);
    }
}

#[tokio::test(start_paused = true)]
async fn a_crowd_of_refusals_is_one_message() {
    let mut fleet = fleet(LeastRequest::new(), None).await;
    let mut calls = Vec::new();
    SET.iter()
        .for_each(|(name, _)| fleet.act(name, Act::Reject));
    calls.extend((0..90).map(|_| fleet.start()));
    // Half of them end now, the others later: all began before the first was heard.
    let later = calls.split_off(45);
    join_all(calls).await;
    assert_eq!(SET.map(|(name, _)| fleet.factor(name)), [0.5; 3]);
    advance(2 * SECOND).await;
    join_all(later).await;
    assert_eq!(SET.map(|(name, _)| fleet.factor(name)), [0.5; 3]);
    let refused: u64 = SET
        .iter()
        .map(|(name, _)| fleet.stats(name).overloads)
        .sum();
    assert_eq!(refused, 90, "all are counted");
    // If all push back alike, nothing shifts.
    SET.iter().for_each(|(name, _)| fleet.act(name, Act::Ok));
    assert!(is_likely(fleet.share(3_000, "a").await, 3_000, 1.0 / 3.0));
}

#[tokio::test(start_paused = true)]
async fn at_most_sixteen_are_heard_in_the_time_of_a_hold() {
    let overload = Overload::new().factor(0.99).floor(0.01);
    let mut fleet = Fleet::with(builder(overload, None), RoundRobin::new(), &SET[..1]).await;
    fleet.act("a", Act::Reject);
    for _ in 0..10_000 {
        fleet.route(1).await;
        advance(MILLISECOND).await;
    }
    let lowerings = (fleet.factor("a").ln() / 0.99_f64.ln()).round();
    assert_eq!(lowerings, 16.0, "{}", fleet.factor("a"));
}

#[tokio::test(start_paused = true)]
async fn the_floor_holds_and_the_last_push_back_decides_when_it_ends() {
    let mut fleet = fleet(RoundRobin::new(), None).await;
    for want in [0.5, 0.25, 0.125, 0.1, 0.1] {
        push_back(&mut fleet, "a").await;
        assert!(
            (fleet.factor("a") - want).abs() < 1e-4,
            "{} for {want}",
            fleet.factor("a")
        );
        advance(SECOND).await;
    }
    // The last was a second ago.
    advance(9 * SECOND).await;
    assert!((fleet.factor("a") - 0.1).abs() < 1e-4);
    advance(5 * SECOND).await;
    assert!((fleet.factor("a") - 0.55).abs() < 0.01);
    // From there it is lowered again.
    push_back(&mut fleet, "a").await;
    assert!(
        (fleet.factor("a") - 0.275).abs() < 0.01,
        "{}",
        fleet.factor("a")
    );
}

#[tokio::test(start_paused = true)]
async fn a_short_request_does_not_shorten_a_long_one() {
    let asked = Arc::new(AtomicU64::new(60));
    let asks = Arc::clone(&asked);
    let classify = move |_: Result<&Answer, &Broken>| {
        Outcome::OverloadFor(Duration::from_secs(asks.load(Ordering::Relaxed)))
    };
    let mut bed = Bed::build(&["a"], Builder::new().classify_fn(classify)).await;
    let mut after = async |seconds: u64, asks| {
        advance(Duration::from_secs(seconds)).await;
        if let Some(asks) = asks {
            asked.store(asks, Ordering::Relaxed);
            bed.route(1).await;
        }
        (bed.stats("a").effective_weight * 1_000.0).round()
    };
    assert_eq!(after(0, Some(60)).await, 500.0);
    assert_eq!(after(1, Some(1)).await, 250.0);
    assert_eq!(after(59, None).await, 250.0, "until the first one ends");
    assert_eq!(after(10, None).await, 1_000.0);
    // Zero is no time: that of the settings.
    assert_eq!(after(0, Some(0)).await, 500.0);
    assert_eq!(after(10, None).await, 500.0);
}

#[tokio::test(start_paused = true)]
async fn switched_off_it_is_only_counted() {
    for health in [Health::new().overload(Overload::off()), Health::off()] {
        let builder = Builder::new().health(health);
        let mut fleet = Fleet::new(builder, RoundRobin::new(), &SET).await;
        fleet.act("a", Act::Reject);
        assert_eq!(fleet.share(300, "a").await, 100);
        assert_eq!((fleet.factor("a"), fleet.stats("a").overloads), (1.0, 100));
    }
}

#[tokio::test(start_paused = true)]
async fn push_back_neither_raises_nor_clears_the_count_of_failures() {
    let health = Health::new().consecutive_failures(3).jitter(0.0);
    let builder = Builder::new()
        .health(health)
        .classify_fn(refusals(Outcome::Overload));
    let mut bed = Bed::build(&["a"], builder).await;
    for act in [Act::Err, Act::Reject, Act::Err, Act::Reject] {
        bed.sites["a"].act(act);
        bed.route(1).await;
    }
    assert_eq!(bed.stats("a").consecutive_failures, 2);
}

/// A call of a former period says nothing: the endpoint was ejected and is back meanwhile.
#[tokio::test(start_paused = true)]
async fn stragglers_of_a_former_period_say_nothing() {
    let builder = Builder::new()
        .health(eject1())
        .seed(3)
        .starting_at(0)
        .classify(Push(None));
    let mut fleet = Fleet::with(builder, RoundRobin::new(), &SET[..2]).await;
    fleet.act("a", Act::Reject);
    fleet.act("b", Act::Reject);
    let mut stragglers: Vec<_> = (0..4).map(|_| fleet.start()).collect();
    fleet.act("b", Act::Ok);
    fleet.eject("a").await;
    assert!((&mut stragglers[0]).now_or_never().is_some());
    assert_eq!(fleet.stats("a").overloads, 1);
    advance(10 * SECOND).await;
    fleet.bring_back("a").await;
    for straggler in &mut stragglers[1..] {
        assert!(straggler.now_or_never().is_some());
    }
    assert_eq!(fleet.stats("a").overloads, 2);
    assert_eq!((fleet.factor("a"), fleet.factor("b")), (1.0, 0.5));
}

#[tokio::test(start_paused = true)]
async fn always_the_same_keys_are_handed_over() {
    let mut fleet = fleet(RingHash::by(KEY), None).await;
    let before = fleet.owners(1_000).await;
    let mut lowered = Vec::new();
    for _ in 0..2 {
        push_back(&mut fleet, "a").await;
        lowered.push(fleet.owners(1_000).await);
        advance(20 * SECOND).await;
        assert_eq!(fleet.owners(1_000).await, before, "all come back");
    }
    assert_eq!(lowered[0], lowered[1]);
    for (before, after) in before.iter().zip(&lowered[0]) {
        assert!(before == after || (*before == "a" && *after != "a"));
    }
}
