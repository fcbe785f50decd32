//! Who is ejected, for how long, and how an endpoint comes back.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use counterpoise::{
    Balance, BalanceLayer, Builder, Direct, Endpoint, EndpointState, Error, ErrorKind, Health,
    Outcome, Panic, RoundRobin, discover,
};
use futures::{FutureExt, future::join_all};
use tokio::time::{advance, timeout};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, retry};

use crate::{
    bed::{Bed, share},
    support::{Act, Answer, Broken, Site, settle},
};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Three failures in a row eject for exactly ten seconds.
fn eject3() -> Health {
    Health::new().consecutive_failures(3).jitter(0.0)
}

/// One failure ejects for exactly ten seconds.
fn eject1() -> Health {
    eject3().consecutive_failures(1)
}

// ===== everything, and the only one =====

#[tokio::test(start_paused = true)]
async fn b56_with_all_ejected_calls_go_to_all_at_once() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.sites["a"].act(Act::Err);
    bed.sites["b"].act(Act::Err);
    assert_eq!(bed.route(6).await, "ababab");
    assert!(bed.balance.stats().panic);
    assert_eq!(["a", "b"].map(|name| bed.state(name)), [EndpointState::Ejected; 2]);
    let error = bed.start().now_or_never().expect("ends in the same poll").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Call);
    let route = bed.route(9).await;
    assert_eq!(["a", "b"].map(|name| bed.calls(name)), [8, 8], "{route}");
}

#[tokio::test(start_paused = true)]
async fn b56_with_all_ejected_calls_fail_at_once_if_that_is_the_rule() {
    let mut bed = Bed::new(&["a", "b"], eject3().panic(Panic::Fail)).await;
    bed.eject("a").await;
    bed.eject("b").await;
    let before = ["a", "b"].map(|name| bed.calls(name));
    for _ in 0..10 {
        let error = bed.start().now_or_never().expect("ends in the same poll").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ejected);
        assert_eq!((error.counts().members, error.counts().ejected), (2, 2));
        assert!(error.to_string().contains("2 members, 2 ejected"), "{error}");
    }
    assert_eq!(["a", "b"].map(|name| bed.calls(name)), before);
    advance(10 * SECOND).await;
    assert_eq!(bed.route(2).await, "ab", "both trials, without any change of the set");
    assert_eq!(share(&bed.route(10).await, "a"), 5);
}

#[tokio::test(start_paused = true)]
async fn b56_traffic_resumes_after_the_period_without_any_change_of_the_set() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.eject("a").await;
    bed.eject("b").await;
    advance(10 * SECOND).await;
    assert_eq!(bed.route(2).await, "ab", "both trials");
    assert!(!bed.balance.stats().panic);
    assert_eq!(["a", "b"].map(|name| bed.state(name)), [EndpointState::Serving; 2]);
}

#[tokio::test(start_paused = true)]
async fn b57_the_only_endpoint_is_never_ejected() {
    let mut bed = Bed::new(&["a"], Health::new()).await;
    bed.sites["a"].act(Act::Err);
    assert_eq!(bed.route(10).await, "a".repeat(10));
    assert_eq!((bed.calls("a"), bed.stats("a").ejections), (10, 0));
    assert_eq!(bed.state("a"), EndpointState::Serving);
}

#[tokio::test(start_paused = true)]
async fn b57_the_only_endpoint_with_a_weight_is_never_ejected() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.announce("b", 0).await;
    bed.sites["a"].act(Act::Err);
    assert_eq!(bed.route(10).await, "a".repeat(10));
    assert_eq!(bed.state("a"), EndpointState::Serving);
}

#[tokio::test(start_paused = true)]
async fn b57_who_becomes_the_only_endpoint_is_back_at_once() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.eject("a").await;
    bed.remove("b").await;
    assert_eq!(bed.state("a"), EndpointState::Serving);
    assert!(!bed.balance.stats().panic);
    assert_eq!(bed.route(5).await, "aaaaa");
}

#[tokio::test(start_paused = true)]
async fn b57_who_becomes_the_only_endpoint_with_a_weight_is_back_at_once() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.eject("a").await;
    bed.announce("b", 0).await;
    assert_eq!(bed.state("a"), EndpointState::Serving);
    assert_eq!(bed.route(5).await, "aaaaa");
}

// ===== what counts as a failure =====

#[tokio::test(start_paused = true)]
async fn b60_callers_who_give_up_are_not_held_against_the_endpoint() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.sites["a"].act(Act::Hang);
    for _ in 0..100 {
        assert!(timeout(10 * MILLISECOND, bed.start()).await.is_err());
        assert_eq!(bed.route(1).await, "b");
    }
    let stats = bed.stats("a");
    assert_eq!((stats.picks, stats.drops, stats.in_flight), (100, 100, 0));
    assert_eq!((stats.failures, stats.consecutive_failures, stats.ejections), (0, 0, 0));
    assert_eq!(stats.state, EndpointState::Serving);
}

#[tokio::test(start_paused = true)]
async fn b61_an_endpoint_that_hangs_is_ejected_by_the_timeouts_above() {
    let health = eject3().drop_counts_after(500 * MILLISECOND);
    let bed = Bed::new(&["a", "b"], health).await;
    bed.sites["a"].act(Act::Hang);
    let mut client = ServiceBuilder::new().timeout(SECOND).service(bed.balance.clone());
    let mut timeouts = 0;
    for _ in 0..20 {
        timeouts += usize::from(client.ready().await.unwrap().call(()).await.is_err());
    }
    assert_eq!((timeouts, bed.calls("a"), bed.calls("b")), (3, 3, 17));
    assert_eq!(bed.state("a"), EndpointState::Ejected);
    assert_eq!((bed.stats("a").drops, bed.stats("a").in_flight), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn b61_a_timeout_as_long_as_the_default_rule_counts() {
    let bed = Bed::new(&["a", "b"], Health::new()).await;
    bed.sites["a"].act(Act::Hang);
    let mut client = ServiceBuilder::new().timeout(SECOND).service(bed.balance.clone());
    for _ in 0..20 {
        let _ = client.ready().await.unwrap().call(()).await;
    }
    assert_eq!((bed.calls("a"), bed.state("a")), (5, EndpointState::Ejected));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_counts_from_its_age_on_and_not_before() {
    let health = eject1().drop_counts_after(500 * MILLISECOND);
    let mut bed = Bed::new(&["a", "b"], health).await;
    bed.sites["a"].act(Act::Hang);
    let young = bed.start();
    advance(499 * MILLISECOND).await;
    drop(young);
    assert_eq!(bed.state("a"), EndpointState::Serving);
    assert_eq!(bed.route(1).await, "b");
    let old = bed.start();
    advance(500 * MILLISECOND).await;
    drop(old);
    assert_eq!(bed.state("a"), EndpointState::Ejected);
}

/// Has `a` do these in turn, and `b` serve in between; calls to `a` are given 10 ms.
async fn play<K>(bed: &mut Bed<K>, acts: &[Act])
where
    K: counterpoise::Classify<Answer, Broken> + Clone + Send + 'static,
{
    for &act in acts {
        bed.sites["a"].act(act);
        let before = bed.calls("a");
        let _ = timeout(10 * MILLISECOND, bed.start()).await;
        assert_eq!(bed.calls("a"), before + 1, "a was called for {act:?}");
        assert_eq!(bed.route(1).await, "b");
    }
}

#[tokio::test(start_paused = true)]
async fn b61_a_quick_cancel_neither_adds_nor_resets() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    play(&mut bed, &[Act::Err, Act::Hang, Act::Err, Act::Hang]).await;
    assert_eq!(bed.state("a"), EndpointState::Serving);
    assert_eq!(bed.stats("a").consecutive_failures, 2);
    play(&mut bed, &[Act::Err]).await;
    assert_eq!(bed.state("a"), EndpointState::Ejected);
}

#[tokio::test(start_paused = true)]
async fn b62_refusals_by_the_application_eject_nobody_by_default() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.sites["a"].act(Act::Reject);
    assert_eq!(bed.route(200).await, "ab".repeat(100));
    assert_eq!((bed.stats("a").successes, bed.stats("a").consecutive_failures), (100, 0));
}

/// A classifier that makes this of refusals.
fn refusals(outcome: Outcome) -> impl Fn(Result<&Answer, &Broken>) -> Outcome + Clone + Send {
    move |result| match result {
        Ok(Answer::From(_)) => Outcome::Success,
        Ok(Answer::Rejected(_)) => outcome,
        Err(_) => Outcome::Failure,
    }
}

#[tokio::test(start_paused = true)]
async fn b62_a_classifier_may_call_refusals_failures() {
    let builder = Builder::new().health(eject3()).classify_fn(refusals(Outcome::Failure));
    let mut bed = Bed::build(&["a", "b"], builder).await;
    bed.sites["a"].act(Act::Reject);
    assert_eq!(bed.route(12).await, "abababbbbbbb");
    assert_eq!((bed.stats("a").failures, bed.state("a")), (3, EndpointState::Ejected));
}

#[tokio::test(start_paused = true)]
async fn b62_what_is_ignored_neither_adds_nor_resets() {
    for outcome in [Outcome::Neutral, Outcome::Overload] {
        let builder = Builder::new().health(eject3()).classify_fn(refusals(outcome));
        let mut bed = Bed::build(&["a", "b"], builder).await;
        play(&mut bed, &[Act::Err, Act::Reject, Act::Err, Act::Reject]).await;
        assert_eq!(bed.stats("a").consecutive_failures, 2, "{outcome:?}");
        let (neutrals, overloads) = (bed.stats("a").neutrals, bed.stats("a").overloads);
        let want = if outcome == Outcome::Neutral { (2, 0) } else { (0, 2) };
        assert_eq!((neutrals, overloads), want);
        play(&mut bed, &[Act::Err]).await;
        assert_eq!(bed.state("a"), EndpointState::Ejected, "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn b62_a_success_in_between_resets() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    play(&mut bed, &[Act::Err, Act::Err, Act::Ok, Act::Err, Act::Err]).await;
    assert_eq!(bed.state("a"), EndpointState::Serving);
    play(&mut bed, &[Act::Err]).await;
    assert_eq!(bed.state("a"), EndpointState::Ejected);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_overloads_eject_nobody() {
    let builder = Builder::new().health(eject1()).classify_fn(refusals(Outcome::Overload));
    let mut bed = Bed::build(&["a", "b"], builder).await;
    bed.sites["a"].act(Act::Reject);
    assert_eq!(bed.route(2_000).await, "ab".repeat(1_000));
    assert_eq!((bed.stats("a").overloads, bed.stats("a").failures), (1_000, 0));
}

#[tokio::test(start_paused = true)]
async fn switched_off_nobody_is_ejected_and_all_is_counted() {
    let mut bed = Bed::new(&["a", "b"], Health::off()).await;
    bed.sites["a"].act(Act::Err);
    assert_eq!(bed.route(200).await, "ab".repeat(100));
    assert_eq!((bed.stats("a").failures, bed.stats("a").ejections), (100, 0));
}

// ===== periods and stragglers =====

#[tokio::test(start_paused = true)]
async fn a_failure_from_before_the_ejection_does_not_count_after_the_return() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.sites["a"].act(Act::FailAfter(15 * SECOND));
    let stragglers: Vec<_> = (0..10).map(|_| bed.start()).collect();
    let stragglers = tokio::spawn(join_all(stragglers));
    settle().await;
    bed.eject("a").await;
    advance(10 * SECOND).await;
    assert_eq!(bed.route(1).await, "a", "the trial");
    let answers = stragglers.await.unwrap();
    assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), 5);
    let stats = bed.stats("a");
    assert_eq!((stats.failures, stats.consecutive_failures), (3 + 5, 0));
    assert_eq!((stats.state, stats.ejections), (EndpointState::Serving, 1));
}

#[tokio::test(start_paused = true)]
async fn a_failure_from_before_the_ejection_does_not_prolong_it() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.sites["a"].act(Act::FailAfter(5 * SECOND));
    let straggler = bed.start();
    bed.eject("a").await;
    assert!(straggler.await.is_err());
    assert_eq!((bed.stats("a").ejections, bed.stats("a").returns_in), (1, Some(5 * SECOND)));
}

#[tokio::test(start_paused = true)]
async fn a_success_from_before_the_ejection_brings_nobody_back() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.sites["a"].act(Act::After(5 * SECOND));
    let straggler = bed.start();
    bed.eject("a").await;
    assert!(straggler.await.is_ok());
    assert_eq!(bed.state("a"), EndpointState::Ejected);
    assert_eq!(bed.route(10).await, "b".repeat(10));
}

#[tokio::test(start_paused = true)]
async fn a_success_from_before_the_ejection_clears_no_count_after_the_return() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.sites["a"].act(Act::After(15 * SECOND));
    let straggler = tokio::spawn(bed.start());
    settle().await;
    bed.eject("a").await;
    advance(10 * SECOND).await;
    assert_eq!(bed.route(1).await, "a", "the trial");
    bed.sites["a"].act(Act::Err);
    assert_eq!(share(&bed.route(4).await, "a"), 2);
    assert!(straggler.await.unwrap().is_ok());
    assert_eq!(bed.stats("a").consecutive_failures, 2);
}

#[tokio::test(start_paused = true)]
async fn thresholds_apply_exactly_after_every_return() {
    let mut bed = Bed::new(&["a", "b"], eject3().growth(1.0)).await;
    for round in 0..5 {
        let before = bed.calls("a");
        bed.eject("a").await;
        assert_eq!(bed.calls("a"), before + 3, "in round {round}");
        advance(10 * SECOND).await;
        assert_eq!(bed.route(1).await, "a", "the trial");
        assert_eq!(bed.stats("a").consecutive_failures, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn periods_grow_with_each_failed_trial_up_to_the_cap() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.eject("a").await;
    bed.sites["a"].act(Act::Err);
    for seconds in [10, 20, 40, 80, 160, 300, 300, 300] {
        assert_eq!(bed.stats("a").returns_in, Some(seconds * SECOND));
        advance(seconds * SECOND - MILLISECOND).await;
        assert_eq!(bed.route(4).await, "bbbb", "{seconds} s are not over");
        advance(MILLISECOND).await;
        assert_eq!(share(&bed.route(4).await, "a"), 1, "one trial after {seconds} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_past_period_is_forgotten_after_as_long_in_service() {
    for (served, next) in [(0, 40), (19, 40), (20, 20), (29, 20), (30, 10), (1_000, 10)] {
        let mut bed = Bed::new(&["a", "b"], eject3()).await;
        bed.eject("a").await;
        advance(10 * SECOND).await;
        bed.sites["a"].act(Act::Err);
        bed.route(1).await;
        assert_eq!(bed.stats("a").returns_in, Some(20 * SECOND));
        advance(20 * SECOND).await;
        bed.sites["a"].act(Act::Ok);
        assert_eq!(bed.route(1).await, "a", "the trial");
        advance(served * SECOND).await;
        bed.eject("a").await;
        assert_eq!(bed.stats("a").returns_in, Some(next * SECOND), "served {served} s");
    }
}

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
    assert_eq!((bed.state("b"), bed.stats("b").in_flight), (EndpointState::OnTrial, 1));
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
    assert_eq!(bed.stats("b").returns_in, Some(20 * SECOND), "counted from the failure");
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
    assert_eq!(bed.route(3).await, "bcd", "in the order of their periods' ends");
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
        assert_eq!(bed.stats("b").returns_in, Some(Duration::ZERO));
    }
    bed.sites["b"].act(Act::Ok);
    assert_eq!(bed.route(1).await, "b");
    assert_eq!((bed.state("b"), bed.stats("b").ejections), (EndpointState::Serving, 1));
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_is_dropped_old_has_failed() {
    let mut bed = due(eject3()).await;
    bed.sites["b"].act(Act::Hang);
    let trial = bed.start();
    advance(SECOND).await;
    drop(trial);
    assert_eq!((bed.stats("b").ejections, bed.stats("b").returns_in), (2, Some(20 * SECOND)));
}

#[tokio::test(start_paused = true)]
async fn a_trial_whose_service_panics_has_failed() {
    let mut bed = due(eject3()).await;
    bed.sites["b"].act(Act::Panic);
    let trial = bed.start();
    assert!(tokio::spawn(trial).await.unwrap_err().is_panic());
    assert_eq!((bed.stats("b").ejections, bed.stats("b").returns_in), (2, Some(20 * SECOND)));
    assert_eq!(bed.stats("b").in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_says_nothing_is_followed_by_another() {
    for outcome in [Outcome::Neutral, Outcome::Overload] {
        let builder = Builder::new().health(eject3()).classify_fn(refusals(outcome));
        let mut bed = Bed::build(&["a", "b"], builder).await;
        bed.eject("b").await;
        bed.sites["b"].act(Act::Reject);
        advance(10 * SECOND).await;
        assert_eq!(bed.route(5).await, "bbbbb", "{outcome:?}");
        assert_eq!((bed.state("b"), bed.stats("b").ejections), (EndpointState::Ejected, 1));
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
    assert_eq!((bed.state("b"), bed.stats("b").ejections), (EndpointState::Serving, 0));
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
    assert!(periods.iter().all(|&p| (10 * SECOND..12 * SECOND).contains(&p)), "{periods:?}");
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
    assert_eq!(lengths, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300, 300, 300]);
    // The first four calls, then one trial a period, and one more after each success.
    let trials = lengths.len() - 1;
    assert_eq!(bed.calls("b"), 4 + trials + trials.div_ceil(3));
}

// ===== discovery =====

#[tokio::test(start_paused = true)]
async fn b71_announcing_again_forgets_no_ejection() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.eject("b").await;
    let old = bed.calls("b");
    advance(2 * SECOND).await;
    let new = Site::new("new");
    bed.handle.insert("b", new.endpoint());
    settle().await;
    assert_eq!(bed.state("b"), EndpointState::Ejected);
    assert_eq!(bed.stats("b").returns_in, Some(8 * SECOND));
    advance(8 * SECOND - MILLISECOND).await;
    assert_eq!(bed.route(10).await, "a".repeat(10));
    advance(MILLISECOND).await;
    assert_eq!(bed.route(1).await, "new", "the new service is tried");
    assert_eq!((bed.calls("b"), new.calls()), (old, 1));
    assert_eq!(bed.state("b"), EndpointState::Serving);
}

#[tokio::test(start_paused = true)]
async fn b71_leaving_and_joining_all_the_time_is_not_unhealthy() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    for _ in 0..100 {
        bed.handle.remove(&"b");
        bed.announce("b", 1).await;
        assert_eq!(bed.state("b"), EndpointState::Serving);
        assert_eq!(bed.route(2).await.replace("ba", "ab"), "ab");
        advance(500 * MILLISECOND).await;
    }
    assert_eq!(["a", "b"].map(|name| bed.calls(name)), [100, 100]);
}

#[tokio::test(start_paused = true)]
async fn b71_removal_ends_an_ejection() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.eject("b").await;
    bed.remove("b").await;
    bed.announce("b", 1).await;
    let stats = bed.stats("b");
    assert_eq!((stats.state, stats.ejections, stats.picks), (EndpointState::Serving, 0, 0));
    assert_eq!(share(&bed.route(10).await, "b"), 5);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_weight_forgets_neither_ejection_nor_count() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.eject("b").await;
    advance(2 * SECOND).await;
    bed.announce("b", 5).await;
    assert_eq!(bed.stats("b").returns_in, Some(8 * SECOND));
    bed.sites["a"].act(Act::Err);
    bed.route(2).await;
    bed.announce("a", 7).await;
    assert_eq!(bed.stats("a").consecutive_failures, 2);
    bed.route(1).await;
    assert_eq!(bed.state("a"), EndpointState::Ejected);
}

#[tokio::test(start_paused = true)]
async fn a_call_reports_to_its_endpoint_even_if_that_was_announced_again() {
    let mut bed = Bed::new(&["a", "b"], eject1()).await;
    bed.sites["a"].act(Act::FailAfter(SECOND));
    let call = bed.start();
    bed.handle.insert("a", Site::new("new").endpoint());
    settle().await;
    assert_eq!(bed.stats("a").in_flight, 1);
    assert!(call.await.is_err());
    assert_eq!((bed.stats("a").in_flight, bed.state("a")), (0, EndpointState::Ejected));
}

#[tokio::test(start_paused = true)]
async fn a_drained_endpoint_keeps_its_count() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    play(&mut bed, &[Act::Err, Act::Err]).await;
    bed.announce("a", 0).await;
    assert_eq!(bed.route(6).await, "bbbbbb");
    bed.announce("a", 1).await;
    assert_eq!(bed.stats("a").consecutive_failures, 2);
    bed.route(2).await;
    assert_eq!(bed.state("a"), EndpointState::Ejected);
}

// ===== settings =====

/// Returns the field that a builder is refused for.
fn refused(builder: Builder) -> &'static str {
    let (_handle, changes) = discover::channel::<&str, Direct<Site>>();
    let error = builder.layer(changes, RoundRobin::new()).expect_err("nonsense is refused");
    assert!(error.to_string().starts_with(error.field()), "{error}");
    error.field()
}

fn accepted(builder: Builder) -> bool {
    let (_handle, changes) = discover::channel::<&str, Direct<Site>>();
    builder.layer(changes, RoundRobin::new()).is_ok()
}

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

fn refuses<V: Copy>(field: &str, set: impl Fn(Health, V) -> Health, values: &[V]) {
    for &value in values {
        let health = set(Health::new(), value);
        assert_eq!(refused(Builder::new().health(health.clone())), field, "{health:?}");
    }
}

fn accepts<V: Copy>(set: impl Fn(Health, V) -> Health, values: &[V]) {
    for &value in values {
        let health = set(Health::new(), value);
        assert!(accepted(Builder::new().health(health.clone())), "{health:?}");
    }
}

#[tokio::test]
async fn b73_nonsense_about_health_is_refused_naming_the_field() {
    let no_share = [-0.1, 1.1, -f64::MIN_POSITIVE, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let no_factor = [0.0, 0.99, -2.0, 1e7, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let no_cap = [Duration::ZERO, 9 * SECOND, YEAR + MILLISECOND, Duration::MAX];
    refuses("consecutive_failures", Health::consecutive_failures, &[0, 1 << 29, u32::MAX]);
    refuses("base_ejection", Health::base_ejection, &[Duration::ZERO]);
    refuses("max_ejection", Health::max_ejection, &no_cap);
    refuses("max_ejection", Health::base_ejection, &[301 * SECOND, Duration::MAX]);
    refuses("growth", Health::growth, &no_factor);
    refuses("jitter", Health::jitter, &no_share);
    refuses("trial_successes", Health::trial_successes, &[0]);
    refuses("max_ejected", Health::max_ejected, &no_share);
    refuses("panic_below", Health::panic_below, &no_share);
}

#[tokio::test]
async fn b73_nonsense_is_refused_even_while_health_is_off() {
    assert_eq!(refused(Builder::new().health(Health::off().growth(f64::NAN))), "growth");
}

#[tokio::test]
async fn b73_nonsense_about_waiting_is_refused_naming_the_field() {
    for wait in [YEAR + MILLISECOND, Duration::MAX] {
        assert_eq!(refused(Builder::new().wait_for_endpoints(wait)), "wait_for_endpoints");
        assert_eq!(refused(Builder::new().wait_for_ready(wait)), "wait_for_ready");
    }
}

#[tokio::test]
async fn b73_every_way_to_build_refuses() {
    let bad = || Builder::new().health(Health::new().consecutive_failures(0));
    let changes = || discover::channel::<&str, Direct<Site>>().1;
    let fields = [
        bad().layer(changes(), RoundRobin::new()).unwrap_err().field(),
        bad().balance(changes(), RoundRobin::new()).unwrap_err().field(),
        bad().pair(changes(), RoundRobin::new()).map(drop).unwrap_err().field(),
    ];
    assert_eq!(fields, ["consecutive_failures"; 3]);
}

#[tokio::test]
async fn b73_the_extremes_of_sense_are_accepted() {
    accepts(Health::consecutive_failures, &[1, (1 << 29) - 1]);
    accepts(Health::base_ejection, &[Duration::from_nanos(1), 300 * SECOND]);
    accepts(Health::max_ejection, &[10 * SECOND, YEAR]);
    accepts(Health::growth, &[1.0, 1e6]);
    accepts(Health::jitter, &[0.0, 1.0]);
    accepts(Health::trial_successes, &[1, u32::MAX]);
    accepts(Health::max_ejected, &[0.0, f64::MIN_POSITIVE, 1.0]);
    accepts(Health::panic_below, &[0.0, 1.0]);
    accepts(Health::drop_counts_after, &[Duration::ZERO, Duration::MAX]);
    assert!(accepted(Builder::new().wait_for_endpoints(YEAR).wait_for_ready(YEAR)));
    assert!(accepted(Builder::new().wait_for_endpoints(Duration::ZERO).max_waiting(0)));
}

#[test]
fn b73_all_defaults_of_health_are_the_documented_ones() {
    let documented = Health::new()
        .consecutive_failures(5)
        .base_ejection(10 * SECOND)
        .max_ejection(300 * SECOND)
        .growth(2.0)
        .jitter(0.2)
        .trial_successes(1)
        .max_ejected(1.0)
        .panic_below(0.0)
        .panic(Panic::UseAll)
        .drop_counts_after(SECOND);
    assert_eq!(Health::new(), documented);
    assert_eq!(Health::default(), documented);
}

#[test]
fn b73_all_defaults_of_the_builder_are_the_documented_ones() {
    let documented = Builder::new()
        .health(Health::new())
        .wait_for_endpoints(5 * SECOND)
        .wait_when_empty(false)
        .wait_for_ready(30 * SECOND)
        .max_waiting(10_000)
        .keep_last(false);
    // Builders cannot be compared, but they show all their settings.
    let documented = format!("{documented:?}");
    assert!(documented.contains("max_waiting: 10000"), "{documented}");
    assert_eq!(format!("{:?}", Builder::new()), documented);
    assert_eq!(format!("{:?}", Builder::default()), documented);
}

/// How a balancer with a failing and a hanging endpoint behaves, built in any way.
async fn behaviour(balance: &mut Balance<Direct<Site>, RoundRobin>, bad: &Site) -> Vec<Duration> {
    let mut periods = Vec::new();
    bad.act(Act::Err);
    for failures in [5, 1, 1, 1, 1, 1, 1] {
        let before = bad.calls();
        for _ in 0..100 {
            let _ = balance.ready().await.unwrap().call(()).await;
        }
        assert_eq!(bad.calls(), before + failures);
        let period = balance.stats().endpoint("bad").unwrap().returns_in.unwrap();
        advance(period).await;
        periods.push(period);
    }
    bad.act(Act::Ok);
    balance.ready().await.unwrap().call(()).await.unwrap();
    assert_eq!(balance.stats().endpoint("bad").unwrap().state, EndpointState::Serving);
    periods
}

#[tokio::test(start_paused = true)]
async fn b73_every_way_to_the_defaults_behaves_as_documented() {
    for way in 0..4 {
        let (good, bad) = (Site::new("good"), Site::new("bad"));
        let list = discover::list([("good", good.endpoint()), ("bad", bad.endpoint())]);
        let policy = RoundRobin::new();
        let mut balance = match way {
            0 => Balance::new(list, policy),
            1 => BalanceLayer::new(list, policy).layer(()),
            2 => Builder::new().balance(list, policy).unwrap(),
            _ => Builder::default().health(Health::default()).balance(list, policy).unwrap(),
        };
        let periods = behaviour(&mut balance, &bad).await;
        for (period, base) in periods.into_iter().zip([10, 20, 40, 80, 160, 300, 300]) {
            let range = base * SECOND..base * SECOND * 6 / 5;
            assert!(range.contains(&period), "{period:?} is not in {range:?} in way {way}");
        }
    }
}

// ===== retries =====

/// Retries failed calls, at once.
#[derive(Clone)]
struct Retries(usize);

impl retry::Policy<(), Answer, Error> for Retries {
    type Future = std::future::Ready<()>;

    fn retry(&mut self, _: &mut (), result: &mut Result<Answer, Error>) -> Option<Self::Future> {
        self.0 = self.0.checked_sub(usize::from(result.is_err()))?;
        result.is_err().then(|| std::future::ready(()))
    }

    fn clone_request(&mut self, (): &()) -> Option<()> {
        Some(())
    }
}

#[tokio::test(start_paused = true)]
async fn b75_a_poisonous_request_counts_once_per_attempt() {
    let names = ["a", "b", "c"];
    let mut bed = Bed::new(&names, eject3()).await;
    let client = ServiceBuilder::new().retry(Retries(2)).service(bed.balance.clone());
    for round in 0..10 {
        names.iter().for_each(|name| bed.sites[name].act(Act::Err));
        let error = client.clone().oneshot(()).await.unwrap_err();
        assert_eq!(error.endpoint(), Some("c"), "the last attempt");
        for name in names {
            assert_eq!(bed.stats(name).consecutive_failures, 1, "{name} in round {round}");
            assert_eq!(bed.state(name), EndpointState::Serving);
            bed.sites[name].act(Act::Ok);
        }
        assert_eq!(bed.route(3).await, "abc");
        assert_eq!(names.map(|name| bed.stats(name).consecutive_failures), [0; 3]);
    }
    assert_eq!(names.map(|name| bed.stats(name).failures), [10; 3]);
}

// ===== load =====

#[tokio::test(start_paused = true)]
async fn b76_no_end_of_a_call_leaks_its_place() {
    let mut bed = Bed::new(&["a", "b"], Health::off()).await;
    for act in [Act::Ok, Act::Err, Act::Panic, Act::Hang] {
        bed.sites["a"].act(act);
        // To its end, or dropped while it runs.
        let call = tokio::spawn(timeout(MILLISECOND, bed.start()));
        assert_eq!(bed.stats("a").in_flight, 1);
        drop(call.await);
        assert_eq!(bed.stats("a").in_flight, 0, "{act:?}");
        assert_eq!(bed.route(1).await, "b");
        // Dropped before the first poll.
        drop(bed.start());
        assert_eq!(bed.stats("a").in_flight, 0, "{act:?}");
        assert_eq!(bed.route(1).await, "b");
    }
    bed.sites["a"].act(Act::Ok);
    assert_eq!(bed.route(10).await, "ababababab");
    let a = bed.stats("a");
    assert_eq!((a.picks, a.successes, a.failures, a.drops), (13, 6, 2, 5));
}

// ===== the limit of ejections =====

const TEN: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

fn ejected(bed: &Bed) -> Vec<String> {
    let stats = bed.balance.stats();
    let out = stats.endpoints.iter().filter(|e| e.state == EndpointState::Ejected);
    out.map(|endpoint| endpoint.name.to_string()).collect()
}

/// Fails everything for long enough that all would be ejected.
async fn fail_all(bed: &mut Bed) {
    let stats = bed.balance.stats();
    stats.endpoints.iter().for_each(|endpoint| bed.sites[&*endpoint.name].act(Act::Err));
    bed.route(100).await;
}

#[tokio::test(start_paused = true)]
async fn no_more_than_the_allowed_share_is_ejected() {
    for (n, share, limit) in [
        (10, 0.0, 0),
        (10, 0.05, 1),
        (10, 0.5, 5),
        (10, 0.59, 5),
        (10, 0.7, 7),
        (10, 1.0, 10),
        (3, 0.1, 1),
        (3, 0.5, 1),
        (2, 0.01, 1),
        (1, 1.0, 0),
    ] {
        let mut bed = Bed::new(&TEN[..n], eject1().max_ejected(share)).await;
        fail_all(&mut bed).await;
        assert_eq!(ejected(&bed).len(), limit, "{share} of {n}");
        assert_eq!(bed.balance.stats().counts.ejected, limit);
    }
}

#[tokio::test(start_paused = true)]
async fn drained_endpoints_are_no_part_of_the_share() {
    let mut bed = Bed::new(&TEN, eject1().max_ejected(0.5)).await;
    for name in &TEN[4..] {
        bed.announce(name, 0).await;
    }
    fail_all(&mut bed).await;
    assert_eq!(ejected(&bed).len(), 2, "half of four");
}

#[tokio::test(start_paused = true)]
async fn after_a_shrink_those_come_back_that_would_be_back_soonest() {
    let mut bed = Bed::new(&TEN, eject1().max_ejected(0.5)).await;
    for name in ["e", "d", "c", "b", "a"] {
        bed.eject(name).await;
        advance(SECOND).await;
    }
    for name in &TEN[5..8] {
        bed.handle.remove(name);
    }
    settle().await;
    assert_eq!(ejected(&bed), ["a", "b", "c"], "3 of 7");
    assert_eq!(bed.stats("d").consecutive_failures, 0);
    bed.remove("i").await;
    assert_eq!(ejected(&bed), ["a", "b", "c"], "3 of 6");
    bed.announce("j", 0).await;
    assert_eq!(ejected(&bed), ["a", "b"], "2 of 5");
    assert_eq!(bed.route(6).await.replace(['c', 'd', 'e'], "."), "......");
}

#[tokio::test(start_paused = true)]
async fn the_limit_is_that_of_the_members_after_a_growth() {
    let mut bed = Bed::new(&["a", "b"], eject1().max_ejected(0.5)).await;
    fail_all(&mut bed).await;
    assert_eq!(ejected(&bed), ["a"]);
    for site in ["c", "d"] {
        bed.handle.insert(site, Site::new(site).endpoint());
    }
    settle().await;
    bed.route(4).await;
    assert_eq!(ejected(&bed), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn who_was_spared_by_the_limit_is_ejected_once_there_is_room() {
    let mut bed = Bed::new(&["a", "b"], eject3().max_ejected(0.5)).await;
    fail_all(&mut bed).await;
    assert_eq!(ejected(&bed), ["a"]);
    assert!(bed.stats("b").consecutive_failures > 3);
    bed.sites["a"].act(Act::Ok);
    advance(10 * SECOND).await;
    assert_eq!(bed.route(3).await, "aba", "the trial, then the rotation");
    assert_eq!(ejected(&bed), ["b"]);
}

/// Fails while it is told to.
#[derive(Clone)]
struct Failing(Arc<AtomicBool>);

impl Service<()> for Failing {
    type Response = ();
    type Error = Broken;
    type Future = std::future::Ready<Result<(), Broken>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        let fails = self.0.load(Ordering::Relaxed);
        std::future::ready(if fails { Err(Broken("it")) } else { Ok(()) })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_limit_holds_under_concurrency() {
    let fails = Arc::new(AtomicBool::new(true));
    let health = eject3().max_ejected(0.4).base_ejection(300 * SECOND);
    for n in [2, 5, 10, 33] {
        let list =
            discover::list((0..n).map(|i| (i, Endpoint::new(Direct(Failing(fails.clone()))))));
        let builder = Builder::new().health(health.clone()).starting_at(0);
        let balance = builder.balance(list, RoundRobin::new()).unwrap();
        balance.ready_when(n).await.unwrap();
        let (limit, most) = ((n * 2 / 5).max(1), Arc::new(AtomicUsize::new(0)));
        let callers = (0..8).map(|_| {
            let (mut balance, most) = (balance.clone(), Arc::clone(&most));
            tokio::spawn(async move {
                for _ in 0..500 {
                    let _ = balance.ready().await.unwrap().call(()).await;
                    most.fetch_max(balance.stats().counts.ejected, Ordering::Relaxed);
                }
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await.unwrap();
        }
        assert_eq!(most.load(Ordering::Relaxed), limit, "{n} endpoints");
        assert_eq!(balance.stats().counts.ejected, limit, "{n} endpoints");
        let picks: u64 = balance.stats().endpoints.iter().map(|endpoint| endpoint.picks).sum();
        assert_eq!(picks, 8 * 500);
    }
}

// ===== panic =====

#[tokio::test(start_paused = true)]
async fn a_success_in_panic_brings_the_endpoint_back_at_once() {
    let mut bed = Bed::new(&["a", "b", "c"], eject1()).await;
    fail_all(&mut bed).await;
    assert!(bed.balance.stats().panic);
    bed.sites["b"].act(Act::Ok);
    let route = bed.route(10).await;
    let (_, after) = route.split_once('b').unwrap();
    assert_eq!(after, "b".repeat(after.len()), "b alone is healthy: {route}");
    assert!(after.len() >= 7);
    assert_eq!(ejected(&bed), ["a", "c"]);
    assert!(!bed.balance.stats().panic);
}

#[tokio::test(start_paused = true)]
async fn a_failure_in_panic_changes_no_period() {
    let mut bed = Bed::new(&["a", "b"], eject1()).await;
    fail_all(&mut bed).await;
    advance(4 * SECOND).await;
    bed.route(20).await;
    for name in ["a", "b"] {
        assert_eq!((bed.stats(name).ejections, bed.stats(name).returns_in), (1, Some(6 * SECOND)));
    }
}

#[tokio::test(start_paused = true)]
async fn below_the_threshold_health_is_ignored() {
    let names = ["a", "b", "c", "d"];
    let mut bed = Bed::new(&names, eject1().panic_below(0.5)).await;
    bed.eject("a").await;
    bed.eject("b").await;
    assert!(!bed.balance.stats().panic, "half is not below half");
    let route = bed.route(4).await;
    assert_eq!(names.map(|name| share(&route, name)), [0, 0, 2, 2]);
    bed.eject("c").await;
    assert!(bed.balance.stats().panic);
    // All at once, so that no success ends the panic in between.
    let calls: Vec<_> = (0..8).map(|_| bed.start()).collect();
    assert_eq!(names.map(|name| bed.stats(name).in_flight), [2; 4]);
    join_all(calls).await;
    assert!(!bed.balance.stats().panic);
    assert_eq!(names.map(|name| bed.state(name)), [EndpointState::Serving; 4]);
}

#[tokio::test(start_paused = true)]
async fn below_the_threshold_calls_fail_if_that_is_the_rule() {
    let names = ["a", "b", "c", "d"];
    let mut bed = Bed::new(&names, eject1().panic_below(0.5).panic(Panic::Fail)).await;
    for name in ["a", "b", "c"] {
        bed.eject(name).await;
    }
    let error = bed.start().now_or_never().expect("ends at once").unwrap_err();
    assert_eq!((error.kind(), error.counts().ejected), (ErrorKind::Ejected, 3));
    advance(10 * SECOND).await;
    assert_eq!(bed.route(3).await, "abc", "the trials still go out");
    assert_eq!(share(&bed.route(8).await, "d"), 2);
}

// ===== large sets, where snapshots are compiled for many transitions at once =====

#[tokio::test(start_paused = true)]
async fn in_a_large_set_a_gate_closes_before_the_next_snapshot() {
    let (good, bad) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
    let of = |i: usize| if i.is_multiple_of(3) { bad.clone() } else { good.clone() };
    let list = discover::list((0..900).map(|i| (i, Endpoint::new(Direct(Failing(of(i)))))));
    let builder = Builder::new().health(eject1()).starting_at(0);
    let mut balance = builder.balance(list, RoundRobin::new()).unwrap();
    let mut failures = 0;
    for _ in 0..9_000 {
        failures += usize::from(balance.ready().await.unwrap().call(()).await.is_err());
    }
    assert_eq!((failures, balance.stats().counts.ejected), (300, 300));
    bad.store(false, Ordering::Relaxed);
    advance(10 * SECOND).await;
    for _ in 0..300 {
        balance.ready().await.unwrap().call(()).await.unwrap();
    }
    assert_eq!(balance.stats().counts.ejected, 0, "each was tried once");
    advance(10 * MILLISECOND).await;
    let before = balance.stats();
    for _ in 0..9_000 {
        balance.ready().await.unwrap().call(()).await.unwrap();
    }
    let after = balance.stats();
    for (now, then) in after.endpoints.iter().zip(&before.endpoints) {
        assert_eq!(now.picks - then.picks, 10, "endpoint {}", now.name);
    }
}

// ===== trials of endpoints that are not ready =====

/// An endpoint whose readiness is set by the test.
#[derive(Debug, Clone)]
struct Shy {
    name: &'static str,
    readiness: Arc<Mutex<Readiness>>,
    polls: Arc<AtomicUsize>,
}

#[derive(Debug, Clone, Copy)]
enum Readiness {
    Ready,
    Never,
    Fails,
}

impl Shy {
    fn new(name: &'static str, readiness: Readiness) -> Self {
        Self { name, readiness: Arc::new(Mutex::new(readiness)), polls: Arc::default() }
    }

    fn set(&self, readiness: Readiness) {
        *self.readiness.lock().unwrap() = readiness;
    }

    fn polls(&self) -> usize {
        self.polls.load(Ordering::Relaxed)
    }
}

impl Service<()> for Shy {
    type Response = &'static str;
    type Error = Broken;
    type Future = std::future::Ready<Result<&'static str, Broken>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        match *self.readiness.lock().unwrap() {
            Readiness::Ready => Poll::Ready(Ok(())),
            Readiness::Never => Poll::Pending,
            Readiness::Fails => Poll::Ready(Err(Broken(self.name))),
        }
    }

    fn call(&mut self, (): ()) -> Self::Future {
        std::future::ready(Ok(self.name))
    }
}

/// Balances over these, starting at the first.
fn shy(sites: &[&Shy], health: Health) -> Balance<Direct<Shy>, RoundRobin> {
    let endpoint = |site: &&Shy| (site.name, Endpoint::new(Direct((*site).clone())));
    let list = discover::list(sites.iter().map(endpoint).collect::<Vec<_>>());
    Builder::new().health(health).starting_at(0).balance(list, RoundRobin::new()).unwrap()
}

#[tokio::test(start_paused = true)]
#[ignore = "defect: the place of the trial is taken and given back in a busy loop"]
async fn a_call_that_waits_does_not_spin_when_a_trial_is_due_that_it_may_not_take() {
    let (a, b) = (Shy::new("a", Readiness::Fails), Shy::new("b", Readiness::Never));
    let mut balance = shy(&[&a, &b], eject1());
    settle().await;
    let mut call = tokio_test::task::spawn(balance.ready().await.unwrap().call(()));
    assert!(call.poll().is_pending());
    assert_eq!((a.polls(), balance.stats().counts.ejected), (1, 1));
    advance(10 * SECOND).await;
    for _ in 0..3 {
        assert!(call.poll().is_pending());
        settle().await;
    }
    assert!(!call.is_woken(), "it wakes itself over and over");
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_became_ready_is_not_shown_unready() {
    let a = Shy::new("a", Readiness::Never);
    let mut balance = shy(&[&a], Health::new());
    settle().await;
    assert!(balance.ready().await.unwrap().call(()).now_or_never().is_none());
    assert_eq!(balance.stats().endpoint("a").unwrap().state, EndpointState::Unready);
    a.set(Readiness::Ready);
    assert_eq!(balance.ready().await.unwrap().call(()).await.unwrap(), "a");
    assert_eq!(balance.stats().endpoint("a").unwrap().state, EndpointState::Serving);
}

#[tokio::test(start_paused = true)]
async fn the_place_of_a_trial_is_given_back_when_its_service_is_never_ready() {
    let (a, b) = (Shy::new("a", Readiness::Fails), Shy::new("b", Readiness::Ready));
    let mut balance = shy(&[&a, &b], eject1());
    settle().await;
    assert_eq!(balance.ready().await.unwrap().call(()).await.unwrap(), "b");
    assert_eq!(balance.stats().counts.ejected, 1);
    a.set(Readiness::Never);
    advance(10 * SECOND).await;
    for round in 1..=5 {
        assert_eq!(balance.ready().await.unwrap().call(()).await.unwrap(), "b");
        assert!(a.polls() > round, "a was tried in round {round}");
        assert_eq!(balance.stats().endpoint("a").unwrap().state, EndpointState::Ejected);
    }
    a.set(Readiness::Ready);
    assert_eq!(balance.ready().await.unwrap().call(()).await.unwrap(), "a");
    assert_eq!(balance.stats().endpoint("a").unwrap().state, EndpointState::Serving);
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_fails_to_become_ready_has_failed_and_the_call_goes_elsewhere() {
    let (a, b) = (Shy::new("a", Readiness::Fails), Shy::new("b", Readiness::Ready));
    let mut balance = shy(&[&a, &b], eject1());
    settle().await;
    for seconds in [10, 20, 40] {
        assert_eq!(balance.ready().await.unwrap().call(()).await.unwrap(), "b");
        let stats = balance.stats();
        assert_eq!(stats.endpoint("a").unwrap().returns_in, Some(seconds * SECOND));
        advance(seconds * SECOND).await;
    }
}

/// Fails after a while, and notes how many of its calls run at once.
#[derive(Clone)]
struct Crowd {
    fails: bool,
    calls: Arc<AtomicUsize>,
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Service<()> for Crowd {
    type Response = ();
    type Error = Broken;
    type Future = Pin<Box<dyn Future<Output = Result<(), Broken>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            this.calls.fetch_add(1, Ordering::SeqCst);
            this.most.fetch_max(this.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
            this.now.fetch_sub(1, Ordering::SeqCst);
            if this.fails { Err(Broken("crowd")) } else { Ok(()) }
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_trial_at_a_time_also_under_concurrency() {
    let crowd =
        |fails| Crowd { fails, calls: Arc::default(), now: Arc::default(), most: Arc::default() };
    let (good, bad) = (crowd(false), crowd(true));
    let endpoint = |crowd: &Crowd| Endpoint::new(Direct(crowd.clone()));
    let list = discover::list([("bad", endpoint(&bad)), ("good", endpoint(&good))]);
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
    assert_eq!(bad.most.load(Ordering::SeqCst), 1);
    let trials = bad.calls.load(Ordering::SeqCst);
    assert!(trials > 1, "there were trials");
    assert_eq!(trials + good.calls.load(Ordering::SeqCst), 16 * 200 + 1);
    assert_eq!(balance.stats().endpoint("bad").unwrap().ejections, trials as u64);
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
    assert_eq!((stats.state, stats.consecutive_failures), (EndpointState::Serving, 0));
}
