//! Calls that wait while the set and its health change.

use std::{task::Poll, time::Duration};

use counterpoise::{
    Balance, Builder, Health, discover, error::ErrorKind, health::PanicMode,
    observe::EndpointState, policy::RoundRobin,
};
use tokio::time::{Instant, advance};

use crate::{
    probes::{Gate, Probe, answers, call, over, polled, probes, rest, start},
    support::{Act, Answer, settle},
};

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_removed_endpoints_ends_with_the_set() {
    let a = Probe::gated("a", Gate::Shut);
    let (handle, changes) = discover::channel();
    handle.insert("a", a.endpoint());
    let balance = Balance::new(changes, RoundRobin::new());
    settle().await;
    let mut waiting = start(&balance);
    assert!(waiting.poll().is_pending());
    handle.remove(&"a");
    settle().await;
    assert!(waiting.is_woken());
    // An empty set fails at once, unless waiting is configured.
    let Poll::Ready(Err(error)) = waiting.poll() else {
        panic!("it waits for nobody")
    };
    assert_eq!(error.kind(), ErrorKind::Empty);
    assert_eq!(a.instances(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_a_removed_endpoint_goes_to_the_next_that_joins() {
    let (a, b) = (Probe::gated("a", Gate::Shut), Probe::gated("b", Gate::Open));
    let (handle, changes) = discover::channel();
    handle.insert("a", a.endpoint());
    let balance = Balance::new(changes, RoundRobin::new());
    settle().await;
    let mut waiting = start(&balance);
    assert!(waiting.poll().is_pending());
    handle.set([("b", b.endpoint())]);
    settle().await;
    assert_eq!(waiting.await.unwrap(), Answer::From("b"));
    a.turn(Gate::Open);
    assert_eq!((a.calls(), b.calls(), a.instances()), (0, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_quietly_while_an_endpoint_that_failed_it_is_due() {
    let [a, b] = probes([Gate::Fails, Gate::Shut]);
    let health = Health::new().consecutive_failures(1).jitter(0.0);
    let builder = Builder::new()
        .health(health)
        .wait_for_ready(Duration::from_secs(60));
    let balance = over(builder, &[&a, &b], RoundRobin::new()).await;
    let mut waiting = start(&balance);
    assert!(waiting.poll().is_pending());
    assert_eq!(
        balance.stats().endpoint("0").unwrap().state,
        EndpointState::Ejected
    );
    let (result, polls) = polled(waiting).await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::ReadyTimeout);
    assert!(polls <= 10, "a busy loop: {polls} polls");
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_quietly_while_an_endpoint_it_waits_for_is_ejected_and_due() {
    let [a, b] = probes([Gate::Open, Gate::Shut]);
    let health = Health::new().consecutive_failures(1).jitter(0.0);
    let builder = Builder::new()
        .health(health)
        .wait_for_ready(Duration::from_secs(60));
    let balance = over(builder, &[&a, &b], RoundRobin::new()).await;
    a.turn(Gate::Shut);
    let mut waiting = start(&balance);
    assert!(waiting.poll().is_pending());
    a.turn(Gate::Fails);
    let mut other = start(&balance);
    assert!(other.poll().is_pending(), "it waits for b");
    a.turn(Gate::Shut);
    assert_eq!(
        balance.stats().endpoint("0").unwrap().state,
        EndpointState::Ejected
    );
    drop(other);
    let (result, polls) = polled(waiting).await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::ReadyTimeout);
    assert!(polls <= 10, "a busy loop: {polls} polls");
}

#[tokio::test(start_paused = true)]
async fn a_waiting_call_makes_the_next_trial_of_an_endpoint_that_failed_one() {
    let [a, b] = probes([Gate::Open, Gate::Shut]);
    let health = Health::new().consecutive_failures(1).jitter(0.0);
    let builder = Builder::new()
        .health(health)
        .wait_for_ready(Duration::from_secs(300));
    let mut balance = over(builder, &[&a, &b], RoundRobin::new()).await;
    a.act(Act::Err);
    call(&mut balance).await.unwrap_err();
    a.act(Act::After(Duration::from_secs(1)));
    advance(Duration::from_secs(10)).await;
    // The first call tries a, and is dropped too young to count; the second waits for b.
    let mut trial = start(&balance);
    assert!(trial.poll().is_pending());
    let mut waiting = start(&balance);
    rest(&mut waiting);
    assert_eq!(
        balance.stats().endpoint("0").unwrap().state,
        EndpointState::OnTrial
    );
    drop(trial);
    assert!(waiting.is_woken(), "the place of the trial is free");
    let start = Instant::now();
    assert_eq!(waiting.await.unwrap(), Answer::From("p1"));
    // A trial that says nothing is followed by a pause of a hundredth of the period.
    assert_eq!(start.elapsed(), Duration::from_millis(1_100));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_call_goes_to_an_endpoint_that_has_recovered_since_it_failed_it() {
    let [a, b] = probes([Gate::FailsOnce, Gate::Shut]);
    let health = Health::new().consecutive_failures(1).jitter(0.0);
    let mut balance = over(Builder::new().health(health), &[&a, &b], RoundRobin::new()).await;
    let mut waiting = start(&balance);
    rest(&mut waiting);
    advance(Duration::from_secs(10)).await;
    assert_eq!(answers(&mut balance, 1).await, ["p1"], "the trial");
    assert!(waiting.is_woken());
    // One stuck endpoint never blocks a call that another could serve.
    assert!(matches!(
        waiting.poll(),
        Poll::Ready(Ok(Answer::From("p1")))
    ));
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_while_all_are_ejected_fail_or_go_out_and_never_spin() {
    let [a, b] = probes([Gate::Open, Gate::Open]);
    let health = Health::new()
        .consecutive_failures(1)
        .panic_mode(PanicMode::Fail);
    let builder = Builder::new().health(health);
    let mut balance = over(builder, &[&a, &b], RoundRobin::new()).await;
    for probe in [&a, &b] {
        probe.act(Act::Err);
        call(&mut balance).await.unwrap_err();
    }
    let mut failing = start(&balance);
    let Poll::Ready(Err(error)) = failing.poll() else {
        panic!("it waits or works")
    };
    assert_eq!(
        (error.kind(), error.counts().ejected),
        (ErrorKind::Ejected, 2)
    );
    assert!(!failing.is_woken());
    assert_eq!(a.polls() + b.polls(), 2, "nobody was asked");
}
