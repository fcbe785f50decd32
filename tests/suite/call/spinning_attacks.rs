//! Attacks on calls that wait: waiting is not spinning.
//! somebody waits for them, and whether waiting ever turns into spinning.

use counterpoise::{Attempts, Balance, Builder, observe::EndpointState, policy::RoundRobin};
use tokio::time::advance;
use tokio_test::task::{self};
use tower::Service;

use super::attacks::{Leash, Probes, attend, over};
use crate::{
    bed::{SECOND, eject1},
    probes::{Gate, Probe, call},
    support::{Answer, settle},
};

// ===== waiting is not spinning =====

/// Both endpoints ejected by their own readiness, and not ready.
async fn outage(leash: &Leash) -> (Probe, Probe, Probes<Leash>) {
    let (a, b) = (
        Probe::gated("a", Gate::Fails),
        Probe::gated("b", Gate::Fails),
    );
    let builder = Builder::new().health(eject1());
    let (handle, mut balance) = over(&[("a", &a), ("b", &b)], builder, leash.clone()).await;
    call(&mut balance).await.unwrap_err();
    assert_eq!(balance.stats().counts.ejected, 2);
    assert!(balance.stats().panic);
    (a, b, (handle, balance))
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_in_an_outage_does_not_spin_when_a_trial_is_due() {
    let leash = Leash::default();
    let (a, b, (_handle, mut balance)) = outage(&leash).await;
    a.turn(Gate::Shut);
    b.turn(Gate::Shut);
    let mut waiting = task::spawn(balance.call(()));
    assert!(attend(&mut waiting).await.is_none());
    let asked = leash.asked();
    advance(10 * SECOND).await;
    assert!(attend(&mut waiting).await.is_none());
    assert!(
        leash.asked() < asked + 50,
        "asked {} times",
        leash.asked() - asked
    );
    b.turn(Gate::Open);
    assert_eq!(
        attend(&mut waiting).await.unwrap().unwrap(),
        Answer::From("b")
    );
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_in_an_outage_do_not_wake_each_other_for_ever() {
    let leash = Leash::default();
    let (a, b, (_handle, mut balance)) = outage(&leash).await;
    a.turn(Gate::Shut);
    b.turn(Gate::Shut);
    let mut waiting: Vec<_> = (0..5).map(|_| task::spawn(balance.call(()))).collect();
    for waiting in &mut waiting {
        assert!(attend(waiting).await.is_none());
    }
    advance(10 * SECOND).await;
    let mut rounds = 0;
    while waiting
        .iter()
        .any(|waiting| rounds == 0 || waiting.is_woken())
    {
        rounds += 1;
        assert!(rounds < 50, "they wake each other for ever");
        for waiting in &mut waiting {
            assert!(waiting.poll().is_pending());
        }
        settle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_has_to_wait_does_not_spin_when_a_trial_is_due() {
    let (a, b) = (
        Probe::gated("a", Gate::Fails),
        Probe::gated("b", Gate::Open),
    );
    let builder = Builder::new().health(eject1());
    let (_handle, balance) = over(&[("a", &a), ("b", &b)], builder, RoundRobin::new()).await;
    let attempts = Attempts::new();
    let once = |mut balance: Balance<_, _>| async move { call(&mut balance).await };
    attempts.scope(once(balance.clone())).await.unwrap();
    assert_eq!(balance.stats().counts.ejected, 1);
    // Now `b` is busy, and the period of `a` is over.
    b.turn(Gate::Shut);
    a.turn(Gate::Open);
    advance(10 * SECOND).await;
    let mut retry = task::spawn(attempts.scope(once(balance.clone())));
    // To wait for `b` would be allowed, to go to `a` is better.
    if let Some(answer) = attend(&mut retry).await {
        assert_eq!(answer.unwrap(), Answer::From("a"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_was_drained_under_a_waiting_call_does_not_make_it_spin() {
    let (a, b) = (
        Probe::gated("a", Gate::Fails),
        Probe::gated("b", Gate::Open),
    );
    let builder = Builder::new().health(eject1());
    let leash = Leash::default();
    let (_handle, mut balance) = over(&[("a", &a), ("b", &b)], builder, leash).await;
    call(&mut balance).await.unwrap();
    a.turn(Gate::Shut);
    b.turn(Gate::Shut);
    advance(10 * SECOND).await;
    let mut waiting = task::spawn(balance.call(()));
    assert!(attend(&mut waiting).await.is_none());
    assert_eq!(
        balance.stats().endpoint("a").unwrap().state,
        EndpointState::OnTrial
    );
    let _ = balance.set_capacity("a", 0.0);
    assert!(attend(&mut waiting).await.is_none());
    let _ = balance.set_capacity("a", 1.0);
    a.turn(Gate::Open);
    let answer = attend(&mut waiting)
        .await
        .expect("a is due, open and ready");
    assert_eq!(answer.unwrap(), Answer::From("a"));
}
