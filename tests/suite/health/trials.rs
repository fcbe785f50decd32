//! How an endpoint comes back: one trial at a time.

use std::time::Duration;

use counterpoise::{
    Builder, Classify, Health, Outcome, call::AtHead, discover, observe::EndpointState,
    policy::RoundRobin,
};
use tokio::time::advance;
use tower::{Service, ServiceExt};

use crate::{
    bed::{Bed, MILLISECOND, SECOND, eject1, eject3, refusals, share},
    support::{Act, Answer, Broken, Site, settle},
};

// ===== trials =====

/// Ejects `b` of two, waits until it may be tried, and starts ten calls in one tick.
async fn ten_calls_at_the_end_of_the_period(act: Act) -> Bed {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.eject("b").await;
    bed.sites["b"].act(act);
    advance(10 * SECOND).await;
    let before = bed.calls("b");
    for _ in 0..10 {
        drop(tokio::spawn(bed.start()));
    }
    assert_eq!(bed.calls("b"), before + 1, "one of the ten is the trial");
    assert_eq!(
        (bed.state("b"), bed.stats("b").in_flight),
        (EndpointState::OnTrial, 1)
    );
    settle().await;
    advance(4 * SECOND).await;
    assert_eq!(bed.route(20).await, "a".repeat(20), "the trial still runs");
    bed
}

#[tokio::test(start_paused = true)]
async fn b63_one_call_tries_the_endpoint_and_a_success_brings_it_back() {
    let mut bed = ten_calls_at_the_end_of_the_period(Act::After(5 * SECOND)).await;
    advance(SECOND).await;
    settle().await;
    assert_eq!(bed.state("b"), EndpointState::Serving);
    bed.sites["b"].act(Act::Ok);
    assert_eq!(share(&bed.route(20).await, "b"), 10);
}

#[tokio::test(start_paused = true)]
async fn b63_one_call_tries_the_endpoint_and_a_failure_begins_the_next_period() {
    let mut bed = ten_calls_at_the_end_of_the_period(Act::FailAfter(5 * SECOND)).await;
    advance(SECOND).await;
    settle().await;
    assert_eq!(bed.state("b"), EndpointState::Ejected);
    assert_eq!(
        bed.stats("b").returns_in,
        Some(20 * SECOND),
        "counted from the failure"
    );
    assert_eq!(bed.route(20).await, "a".repeat(20));
}

#[tokio::test(start_paused = true)]
async fn b63_every_endpoint_whose_period_is_over_is_tried_by_one_of_the_next_calls() {
    let names = ["a", "b", "c", "d"];
    let mut bed = Bed::new(&names, eject1()).await;
    for name in ["b", "c", "d"] {
        bed.eject(name).await;
        advance(SECOND).await;
    }
    advance(10 * SECOND).await;
    assert_eq!(
        bed.route(3).await,
        "bcd",
        "in the order of their periods' ends"
    );
}

/// A set whose `b` is due for a trial.
async fn due(health: Health) -> Bed {
    let mut bed = Bed::new(&["a", "b"], health).await;
    bed.eject("b").await;
    advance(10 * SECOND).await;
    bed
}

#[tokio::test(start_paused = true)]
async fn the_place_of_a_trial_is_given_back_when_its_call_is_dropped_young() {
    let mut bed = due(eject3()).await;
    bed.sites["b"].act(Act::Hang);
    for round in 1..=20 {
        let trial = bed.start();
        assert_eq!(bed.stats("b").in_flight, 1, "in round {round}");
        assert_eq!(bed.route(3).await, "aaa");
        drop(trial);
        assert_eq!(bed.state("b"), EndpointState::Ejected);
        // A pause, so that an endpoint that hangs does not get every call.
        let pause = (SECOND / 10 * (1 << (round - 1).min(7))).min(10 * SECOND);
        assert_eq!(bed.stats("b").returns_in, Some(pause));
        advance(pause).await;
    }
    bed.sites["b"].act(Act::Ok);
    assert_eq!(bed.route(1).await, "b");
    assert_eq!(
        (bed.state("b"), bed.stats("b").ejections),
        (EndpointState::Serving, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_is_dropped_old_has_failed() {
    let mut bed = due(eject3()).await;
    bed.sites["b"].act(Act::Hang);
    let trial = bed.start();
    advance(SECOND).await;
    drop(trial);
    assert_eq!(
        (bed.stats("b").ejections, bed.stats("b").returns_in),
        (2, Some(20 * SECOND))
    );
}

#[tokio::test(start_paused = true)]
async fn a_trial_whose_service_panics_has_failed() {
    let mut bed = due(eject3()).await;
    bed.sites["b"].act(Act::Panic);
    let trial = bed.start();
    assert!(tokio::spawn(trial).await.unwrap_err().is_panic());
    assert_eq!(
        (bed.stats("b").ejections, bed.stats("b").returns_in),
        (2, Some(20 * SECOND))
    );
    assert_eq!(bed.stats("b").in_flight, 0);
}

/// An endpoint that is due for a trial, and refuses: with this outcome.
async fn refusing(
    outcome: Outcome,
) -> Bed<AtHead<impl Fn(Result<&Answer, &Broken>) -> Outcome + Clone + Send>> {
    let builder = Builder::new()
        .health(eject3())
        .classify_fn(refusals(outcome));
    let mut bed = Bed::build(&["a", "b"], builder).await;
    bed.eject("b").await;
    bed.sites["b"].act(Act::Reject);
    advance(10 * SECOND).await;
    bed
}

/// Makes a call every hundred milliseconds; returns after how many each call to `b` came.
async fn gaps(
    calls: usize,
    bed: &mut Bed<AtHead<impl Classify<Answer, Broken> + Clone + Send + 'static>>,
) -> Vec<usize> {
    let (mut gaps, mut gap) = (Vec::new(), 0);
    for _ in 0..calls {
        gap += 1;
        if bed.route(1).await == "b" {
            gaps.push(std::mem::take(&mut gap));
        }
        advance(SECOND / 10).await;
    }
    gaps
}

#[tokio::test(start_paused = true)]
async fn trials_that_say_nothing_come_ever_more_rarely() {
    let mut bed = refusing(Outcome::Neutral).await;
    // A hundredth of the period, then twice as long each time, up to the whole.
    assert_eq!(
        gaps(500, &mut bed).await,
        [1, 1, 2, 4, 8, 16, 32, 64, 100, 100, 100]
    );
    assert_eq!(
        (bed.state("b"), bed.stats("b").ejections),
        (EndpointState::Ejected, 1)
    );
    bed.sites["b"].act(Act::Ok);
    gaps(100, &mut bed).await;
    assert_eq!(bed.state("b"), EndpointState::Serving);
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_is_pushed_back_is_followed_by_another_when_it_was_asked_to() {
    let hour = 3_600 * SECOND;
    for (asked, want) in [
        (None, 100),
        (Some(2 * SECOND), 100),
        (Some(25 * SECOND), 250),
        (Some(hour), 3_000),
    ] {
        let outcome = asked.map_or(Outcome::Overload, Outcome::OverloadFor);
        let mut bed = refusing(outcome).await;
        assert_eq!(gaps(3_500, &mut bed).await[..2], [1, want], "{asked:?}");
        assert_eq!(
            (bed.state("b"), bed.stats("b").ejections),
            (EndpointState::Ejected, 1)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn as_many_trials_as_were_asked_for_must_succeed() {
    let mut bed = due(eject3().trial_successes(3)).await;
    assert_eq!(bed.route(2).await, "bb");
    assert_eq!(bed.state("b"), EndpointState::Ejected);
    assert_eq!(bed.route(1).await, "b");
    assert_eq!(bed.state("b"), EndpointState::Serving);
    assert_eq!(share(&bed.route(10).await, "b"), 5);
}

#[tokio::test(start_paused = true)]
async fn a_trial_of_a_removed_endpoint_ends_quietly() {
    let mut bed = due(eject3()).await;
    bed.sites["b"].act(Act::After(SECOND));
    let trial = bed.start();
    bed.remove("b").await;
    assert_eq!(trial.await.unwrap(), Answer::From("b"));
    assert!(bed.balance.stats().endpoint("b").is_none());
    assert_eq!(bed.route(4).await, "aaaa");
    bed.announce("b", 1).await;
    assert_eq!(
        (bed.state("b"), bed.stats("b").ejections),
        (EndpointState::Serving, 0)
    );
}

/// Returns after how long each of a hundred balancers would try the endpoint it ejected.
async fn a_hundred_periods(health: Health) -> Vec<Duration> {
    let mut periods = Vec::new();
    for seed in 0..100 {
        let mut bed = Bed::seeded(&["a", "b"], health.clone(), seed).await;
        bed.eject("a").await;
        periods.push(bed.stats("a").returns_in.unwrap());
    }
    periods
}

#[tokio::test(start_paused = true)]
async fn b66_balancers_do_not_come_back_in_the_same_instant() {
    let periods = a_hundred_periods(eject3().jitter(0.2)).await;
    assert!(
        periods
            .iter()
            .all(|&p| (10 * SECOND..12 * SECOND).contains(&p)),
        "{periods:?}"
    );
    for slot in 0..10 {
        let start = 10 * SECOND + slot * 200 * MILLISECOND;
        let inside = |p: &&Duration| (start..start + 200 * MILLISECOND).contains(*p);
        let count = periods.iter().filter(inside).count();
        assert!((1..=25).contains(&count), "{count} in slot {slot}");
    }
}

#[tokio::test(start_paused = true)]
async fn b66_the_first_trial_goes_out_when_the_jittered_period_is_over() {
    let mut bed = Bed::new(&["a", "b"], eject3().jitter(0.2)).await;
    bed.eject("a").await;
    let period = bed.stats("a").returns_in.unwrap();
    advance(period - Duration::from_nanos(1)).await;
    assert_eq!(bed.route(3).await, "bbb");
    advance(Duration::from_nanos(1)).await;
    assert_eq!(bed.route(1).await, "a");
}

#[tokio::test(start_paused = true)]
async fn b66_without_jitter_the_period_is_exact() {
    assert_eq!(a_hundred_periods(eject3()).await, [10 * SECOND; 100]);
}

#[tokio::test(start_paused = true)]
async fn b69_a_flapping_endpoint_gets_ever_fewer_calls() {
    let health = eject3().base_ejection(2 * SECOND).trial_successes(2);
    let mut bed = Bed::new(&["a", "b"], health).await;
    let flapping = [Act::Ok, Act::Err, Act::Err, Act::Err];
    let mut periods = Vec::new();
    for second in 0..2_000 {
        let out = bed.stats("b").ejections;
        for _ in 0..4 {
            bed.sites["b"].act(flapping[bed.calls("b") % 4]);
            bed.route(1).await;
        }
        if bed.stats("b").ejections > out {
            periods.push((second, bed.stats("b").returns_in.unwrap().as_secs()));
        }
        advance(SECOND).await;
    }
    let lengths: Vec<_> = periods.iter().map(|&(_, seconds)| seconds).collect();
    assert_eq!(
        lengths,
        [2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300, 300, 300]
    );
    // The first four calls, then one trial a period, and one more after each success.
    let trials = lengths.len() - 1;
    assert_eq!(bed.calls("b"), 4 + trials + trials.div_ceil(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_trial_at_a_time_also_under_concurrency() {
    let (good, bad) = (Site::new("good"), Site::new("bad"));
    good.act(Act::Yield(5));
    bad.act(Act::FailYield(5));
    let list = discover::list([("bad", bad.endpoint()), ("good", good.endpoint())]);
    // As good as no period at all: a trial is always due, unless one is running.
    let health = eject1().base_ejection(Duration::from_nanos(1)).growth(1.0);
    let builder = Builder::new().health(health).starting_at(0);
    let mut balance = builder.balance(list, RoundRobin::new()).unwrap();
    balance.ready_when(2).await.unwrap();
    balance.ready().await.unwrap().call(()).await.unwrap_err();
    let callers: Vec<_> = (0..16)
        .map(|_| {
            let mut balance = balance.clone();
            tokio::spawn(async move {
                for _ in 0..200 {
                    let _ = balance.ready().await.unwrap().call(()).await;
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    assert_eq!(bad.most(), 1);
    let trials = bad.calls();
    assert!(trials > 1, "there were trials");
    assert_eq!(trials + good.calls(), 16 * 200 + 1);
    assert_eq!(
        balance.stats().endpoint("bad").unwrap().ejections,
        trials as u64
    );
}

#[tokio::test(start_paused = true)]
async fn who_becomes_the_only_endpoint_during_its_trial_is_back_at_once() {
    let mut bed = due(eject1()).await;
    bed.sites["b"].act(Act::FailAfter(SECOND));
    let trial = bed.start();
    bed.remove("a").await;
    assert_eq!(bed.state("b"), EndpointState::Serving);
    assert!(trial.await.is_err());
    let stats = bed.stats("b");
    assert_eq!(
        (stats.state, stats.consecutive_failures),
        (EndpointState::Serving, 0)
    );
}
