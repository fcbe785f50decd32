//! What round robin makes of weights: zero drains, and all others are alike.

use std::{any::type_name, time::Duration};

use counterpoise::{
    Builder, Health,
    error::ErrorKind,
    observe::EndpointState,
    policy::{Picker, Policy, RoundRobin},
};
use futures::FutureExt;
use tower::{Service, ServiceExt};

use crate::{
    bed::{Bed, share},
    support::{Act, Answer},
    table::{Numbers, each_rotation, tally},
};

async fn b27<P: Policy<Picker: Picker<()>>>(policy: impl Fn() -> P) {
    let mut numbers = Numbers::new(policy(), Builder::new().starting_at(0));
    numbers.insert(0, 0).await;
    numbers.insert(1, 0).await;
    for _ in 0..10 {
        let call = numbers.balance.ready().await.unwrap().call(());
        let error = call.now_or_never().expect("ends at once").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Drained, "{}", type_name::<P>());
        assert_eq!((error.counts().members, error.counts().drained), (2, 2));
        assert!(
            error.to_string().contains("all weights are zero"),
            "{error}"
        );
    }
    numbers.insert(0, 1).await;
    assert_eq!(numbers.take(10).await, [0; 10]);
}

#[tokio::test]
async fn b27_with_all_weights_zero_calls_fail_at_once_and_say_so() {
    each_rotation!(b27);
}

async fn b28<P: Policy<Picker: Picker<()>>>(policy: impl Fn() -> P) {
    let mut numbers = Numbers::new(policy(), Builder::new().starting_at(0));
    numbers.insert(0, 0).await;
    let call = numbers.balance.ready().await.unwrap().call(());
    let error = call.now_or_never().expect("ends at once").unwrap_err();
    assert_eq!(
        (error.kind(), error.counts().drained),
        (ErrorKind::Drained, 1)
    );
    numbers.insert(1, 1).await;
    assert_eq!(numbers.take(6).await, [1; 6], "{}", type_name::<P>());
}

#[tokio::test]
async fn b28_even_the_only_endpoint_gets_nothing_at_weight_zero() {
    each_rotation!(b28);
}

#[tokio::test(start_paused = true)]
async fn b28_running_calls_finish_on_a_drained_endpoint() {
    let mut bed = Bed::new(&["a", "b"], Health::new()).await;
    bed.sites["a"].act(Act::After(Duration::from_secs(1)));
    let running = bed.start();
    bed.announce("a", 0).await;
    assert_eq!(bed.state("a"), EndpointState::Drained);
    assert_eq!(bed.stats("a").in_flight, 1);
    assert_eq!(bed.route(10).await, "b".repeat(10));
    assert_eq!(running.await.unwrap(), Answer::From("a"));
    assert_eq!((bed.stats("a").in_flight, bed.stats("a").successes), (0, 1));
    assert_eq!(bed.calls("a"), 1);
}

#[tokio::test(start_paused = true)]
async fn b28_an_ejected_endpoint_at_weight_zero_is_not_even_tried() {
    let mut bed = Bed::new(&["a", "b"], Health::new().jitter(0.0)).await;
    bed.eject("a").await;
    let failed = bed.calls("a");
    bed.announce("a", 0).await;
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(bed.route(20).await, "b".repeat(20));
    assert_eq!(
        (bed.calls("a"), bed.state("a")),
        (failed, EndpointState::Drained)
    );
    bed.announce("a", 1).await;
    assert_eq!(bed.route(1).await, "a", "its trial is due at once");
    assert_eq!(share(&bed.route(20).await, "a"), 10);
}

#[tokio::test(start_paused = true)]
async fn b28_a_recovered_endpoint_stays_at_zero() {
    let mut bed = Bed::new(&["a", "b"], Health::new().jitter(0.0)).await;
    bed.eject("a").await;
    tokio::time::advance(Duration::from_secs(10)).await;
    bed.sites["a"].act(Act::After(Duration::from_secs(1)));
    let trial = bed.start();
    bed.announce("a", 0).await;
    trial.await.unwrap();
    assert_eq!(bed.state("a"), EndpointState::Drained);
    assert_eq!(bed.route(20).await, "b".repeat(20));
}

#[tokio::test(start_paused = true)]
async fn b28_a_drained_endpoint_is_not_used_in_panic() {
    let mut bed = Bed::new(&["a", "b", "c"], Health::new().consecutive_failures(1)).await;
    bed.announce("c", 0).await;
    bed.eject("a").await;
    bed.eject("b").await;
    assert!(bed.balance.stats().panic);
    bed.sites["a"].act(Act::Err);
    bed.sites["b"].act(Act::Err);
    bed.route(20).await;
    assert_eq!(bed.calls("c"), 0);
}

async fn b29<P: Policy<Picker: Picker<()>>>(policy: impl Fn() -> P) {
    let mut numbers = Numbers::below(2, policy(), 0).await;
    assert_eq!(tally(2, &numbers.take(10).await), [5, 5]);
    numbers.insert(1, 0).await;
    assert_eq!(
        tally(2, &numbers.take(10).await),
        [10, 0],
        "{}",
        type_name::<P>()
    );
    numbers.insert(1, 9).await;
    assert_eq!(
        tally(2, &numbers.take(10).await),
        [5, 5],
        "{}",
        type_name::<P>()
    );
    numbers.insert(0, 0).await;
    assert_eq!(
        tally(2, &numbers.take(10).await),
        [0, 10],
        "{}",
        type_name::<P>()
    );
    numbers.insert(0, 1).await;
    assert_eq!(
        tally(2, &numbers.take(10).await),
        [5, 5],
        "{}",
        type_name::<P>()
    );
}

#[tokio::test]
async fn b29_a_change_of_weight_alone_takes_effect_at_once() {
    each_rotation!(b29);
}

#[tokio::test]
async fn b29_a_new_weight_shows_in_the_next_snapshot() {
    let numbers = Numbers::below(2, RoundRobin::new(), 0).await;
    let before = numbers.balance.stats();
    numbers.insert(1, 9).await;
    let after = numbers.balance.stats();
    assert_eq!(after.generation, before.generation + 1);
    let weights = |stats: &counterpoise::Stats| -> Vec<u32> {
        stats
            .endpoints
            .iter()
            .map(|endpoint| endpoint.weight)
            .collect()
    };
    assert_eq!(
        (weights(&before), weights(&after)),
        (vec![1, 1], vec![1, 9])
    );
    assert_eq!(after.endpoint("1").unwrap().effective_weight, 9.0);
}

#[tokio::test(start_paused = true)]
async fn b30_a_recovered_endpoint_has_its_weight_and_its_full_share() {
    let mut bed = Bed::new(&["a", "b"], Health::new().jitter(0.0)).await;
    bed.announce("a", 9).await;
    bed.eject("a").await;
    assert_eq!(
        (bed.stats("a").weight, bed.stats("a").effective_weight),
        (9, 0.0)
    );
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(bed.route(1).await, "a", "the trial");
    assert_eq!(
        (bed.stats("a").weight, bed.stats("a").effective_weight),
        (9, 9.0)
    );
    assert_eq!(share(&bed.route(100).await, "a"), 50);
}

async fn b31<P: Policy<Picker: Picker<()>>>(policy: impl Fn() -> P) {
    let mut numbers = Numbers::new(policy(), Builder::new().starting_at(0));
    numbers.insert(0, u32::MAX).await;
    numbers.insert(1, u32::MAX).await;
    numbers.insert(2, 1).await;
    let answers = numbers.take(3_000).await;
    assert_eq!(tally(3, &answers), [1_000; 3], "{}", type_name::<P>());
    assert_eq!(
        numbers.balance.stats().endpoints[0].effective_weight,
        f64::from(u32::MAX)
    );
}

#[tokio::test]
async fn b31_the_largest_weights_do_not_overflow() {
    each_rotation!(b31);
}

async fn b31_many<P: Policy<Picker: Picker<()>>>(policy: impl Fn() -> P) {
    let mut numbers = Numbers::new(policy(), Builder::new().starting_at(0));
    numbers.fill(0..10_000, u32::MAX).await;
    let answers = numbers.take(20_000).await;
    assert_eq!(
        tally(10_000, &answers),
        vec![2; 10_000],
        "{}",
        type_name::<P>()
    );
}

#[tokio::test]
async fn b31_ten_thousand_endpoints_of_the_largest_weight_take_turns() {
    each_rotation!(b31_many);
}
