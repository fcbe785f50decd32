//! What counts as a failure, and for how long an endpoint is out.

use counterpoise::{
    Builder, Direct, Health, Outcome, call::Judge, health::Overload, observe::EndpointState,
};
use futures::future::join_all;
use tokio::time::{advance, timeout};
use tower::{Service, ServiceBuilder, ServiceExt};

use crate::{
    bed::{Bed, MILLISECOND, SECOND, eject1, eject3, refusals, share},
    support::{Act, Answer, Broken, Site, retries::Retries, settle},
};

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
    assert_eq!(
        (stats.failures, stats.consecutive_failures, stats.ejections),
        (0, 0, 0)
    );
    assert_eq!(stats.state, EndpointState::Serving);
}

#[tokio::test(start_paused = true)]
async fn b61_an_endpoint_that_hangs_is_ejected_by_the_timeouts_above() {
    let health = eject3().drop_counts_after(500 * MILLISECOND);
    let bed = Bed::new(&["a", "b"], health).await;
    bed.sites["a"].act(Act::Hang);
    let mut client = ServiceBuilder::new()
        .timeout(SECOND)
        .service(bed.balance.clone());
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
    let mut client = ServiceBuilder::new()
        .timeout(SECOND)
        .service(bed.balance.clone());
    for _ in 0..20 {
        let _ = client.ready().await.unwrap().call(()).await;
    }
    assert_eq!(
        (bed.calls("a"), bed.state("a")),
        (5, EndpointState::Ejected)
    );
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
pub(super) async fn play<J>(bed: &mut Bed<J>, acts: &[Act])
where
    J: Judge<Direct<Site>, (), Answer, Broken, Response = Answer> + Send + 'static,
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
    assert_eq!(
        (
            bed.stats("a").successes,
            bed.stats("a").consecutive_failures
        ),
        (100, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn b62_a_classifier_may_call_refusals_failures() {
    let builder = Builder::new()
        .health(eject3())
        .classify_fn(refusals(Outcome::Failure));
    let mut bed = Bed::build(&["a", "b"], builder).await;
    bed.sites["a"].act(Act::Reject);
    assert_eq!(bed.route(12).await, "abababbbbbbb");
    assert_eq!(
        (bed.stats("a").failures, bed.state("a")),
        (3, EndpointState::Ejected)
    );
}

#[tokio::test(start_paused = true)]
async fn b62_what_is_ignored_neither_adds_nor_resets() {
    for outcome in [Outcome::Neutral, Outcome::Overload] {
        let health = eject3().overload(Overload::off());
        let builder = Builder::new().health(health).classify_fn(refusals(outcome));
        let mut bed = Bed::build(&["a", "b"], builder).await;
        play(&mut bed, &[Act::Err, Act::Reject, Act::Err, Act::Reject]).await;
        assert_eq!(bed.stats("a").consecutive_failures, 2, "{outcome:?}");
        let (neutrals, overloads) = (bed.stats("a").neutrals, bed.stats("a").overloads);
        let want = if outcome == Outcome::Neutral {
            (2, 0)
        } else {
            (0, 2)
        };
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
    for (overload, refused) in [(Overload::off(), 1_000), (Overload::new(), 667)] {
        let health = eject1().overload(overload);
        let builder = Builder::new()
            .health(health)
            .classify_fn(refusals(Outcome::Overload));
        let mut bed = Bed::build(&["a", "b"], builder).await;
        bed.sites["a"].act(Act::Reject);
        let route = bed.route(2_000).await;
        // One crowd of push-backs halves the share that is left, once: a third.
        assert_eq!(share(&route, "a"), refused);
        assert_eq!(
            (bed.stats("a").overloads, bed.stats("a").failures),
            (refused as u64, 0)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn switched_off_nobody_is_ejected_and_all_is_counted() {
    let mut bed = Bed::new(&["a", "b"], Health::off()).await;
    bed.sites["a"].act(Act::Err);
    assert_eq!(bed.route(200).await, "ab".repeat(100));
    assert_eq!(
        (bed.stats("a").failures, bed.stats("a").ejections),
        (100, 0)
    );
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
    assert_eq!(
        (bed.stats("a").ejections, bed.stats("a").returns_in),
        (1, Some(5 * SECOND))
    );
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
        assert_eq!(
            share(&bed.route(4).await, "a"),
            1,
            "one trial after {seconds} s"
        );
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
        assert_eq!(
            bed.stats("a").returns_in,
            Some(next * SECOND),
            "served {served} s"
        );
    }
}

// ===== retries =====

#[tokio::test(start_paused = true)]
async fn b75_a_poisonous_request_counts_once_per_attempt() {
    let names = ["a", "b", "c"];
    let mut bed = Bed::new(&names, eject3()).await;
    let client = ServiceBuilder::new()
        .retry(Retries::new(2))
        .service(bed.balance.clone());
    for round in 0..10 {
        names.iter().for_each(|name| bed.sites[name].act(Act::Err));
        let error = client.clone().oneshot(()).await.unwrap_err();
        assert_eq!(error.endpoint(), Some("c"), "the last attempt");
        for name in names {
            assert_eq!(
                bed.stats(name).consecutive_failures,
                1,
                "{name} in round {round}"
            );
            assert_eq!(bed.state(name), EndpointState::Serving);
            bed.sites[name].act(Act::Ok);
        }
        assert_eq!(bed.route(3).await, "abc");
        assert_eq!(
            names.map(|name| bed.stats(name).consecutive_failures),
            [0; 3]
        );
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

#[tokio::test(start_paused = true)]
async fn a_classifier_that_panics_has_seen_a_failure() {
    let panics = |result: Result<&Answer, &Broken>| match result {
        Ok(Answer::Rejected(_)) => panic!("it cannot tell"),
        _ => Outcome::Success,
    };
    let builder = Builder::new().health(eject1()).classify_fn(panics);
    let mut bed = Bed::build(&["a", "b"], builder).await;
    bed.sites["a"].act(Act::Reject);
    assert!(tokio::spawn(bed.start()).await.unwrap_err().is_panic());
    assert_eq!(
        (bed.state("a"), bed.stats("a").in_flight),
        (EndpointState::Ejected, 0)
    );
    assert_eq!(bed.stats("a").failures, 1);
}
