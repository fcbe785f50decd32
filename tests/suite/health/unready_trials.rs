//! Trials of endpoints that are not ready.

use counterpoise::{
    Balance, Builder, Direct, Health, discover, observe::EndpointState, policy::RoundRobin,
};
use futures::FutureExt;
use tokio::time::advance;
use tower::{Service, ServiceExt};

use crate::{
    bed::{SECOND, eject1},
    support::{Answer, Gate, Site, settle},
};

// ===== trials of endpoints that are not ready =====

/// Balances over these, starting at the first.
fn over<const N: usize>(
    endpoints: [(&'static str, &Site); N],
    health: Health,
) -> Balance<Direct<Site>, RoundRobin> {
    let list = discover::list(endpoints.map(|(name, endpoint)| (name, endpoint.endpoint())));
    Builder::new()
        .health(health)
        .starting_at(0)
        .balance(list, RoundRobin::new())
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_does_not_spin_when_a_trial_is_due_that_it_may_not_take() {
    let (a, b) = (Site::gated("a", Gate::Fails), Site::gated("b", Gate::Shut));
    let mut balance = over([("a", &a), ("b", &b)], eject1());
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
async fn a_call_that_waits_for_an_endpoint_may_be_its_trial() {
    let (a, b) = (Site::gated("a", Gate::Shut), Site::gated("b", Gate::Shut));
    let mut balance = over([("a", &a), ("b", &b)], eject1());
    settle().await;
    let mut call = tokio_test::task::spawn(balance.ready().await.unwrap().call(()));
    assert!(call.poll().is_pending());
    // Another call finds that `a` fails to become ready.
    a.turn(Gate::Fails);
    assert!(
        balance
            .ready()
            .await
            .unwrap()
            .call(())
            .now_or_never()
            .is_none()
    );
    assert_eq!(
        balance.stats().endpoint("a").unwrap().state,
        EndpointState::Ejected
    );
    a.turn(Gate::Shut);
    advance(10 * SECOND).await;
    for _ in 0..3 {
        assert!(call.poll().is_pending());
        settle().await;
    }
    assert!(!call.is_woken(), "it wakes itself over and over");
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_became_ready_is_not_shown_unready() {
    let a = Site::gated("a", Gate::Shut);
    let mut balance = over([("a", &a)], Health::new());
    settle().await;
    assert!(
        balance
            .ready()
            .await
            .unwrap()
            .call(())
            .now_or_never()
            .is_none()
    );
    assert_eq!(
        balance.stats().endpoint("a").unwrap().state,
        EndpointState::Unready
    );
    a.turn(Gate::Open);
    assert_eq!(
        balance.ready().await.unwrap().call(()).await.unwrap(),
        Answer::From("a")
    );
    assert_eq!(
        balance.stats().endpoint("a").unwrap().state,
        EndpointState::Serving
    );
}

#[tokio::test(start_paused = true)]
async fn the_place_of_a_trial_is_given_back_when_its_service_is_never_ready() {
    let (a, b) = (Site::gated("a", Gate::Fails), Site::gated("b", Gate::Open));
    let mut balance = over([("a", &a), ("b", &b)], eject1());
    settle().await;
    assert_eq!(
        balance.ready().await.unwrap().call(()).await.unwrap(),
        Answer::From("b")
    );
    assert_eq!(balance.stats().counts.ejected, 1);
    a.turn(Gate::Shut);
    advance(10 * SECOND).await;
    for round in 1..=5 {
        assert_eq!(
            balance.ready().await.unwrap().call(()).await.unwrap(),
            Answer::From("b")
        );
        assert!(a.polls() > round, "a was tried in round {round}");
        assert_eq!(
            balance.stats().endpoint("a").unwrap().state,
            EndpointState::Ejected
        );
    }
    a.turn(Gate::Open);
    assert_eq!(
        balance.ready().await.unwrap().call(()).await.unwrap(),
        Answer::From("a")
    );
    assert_eq!(
        balance.stats().endpoint("a").unwrap().state,
        EndpointState::Serving
    );
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_fails_to_become_ready_has_failed_and_the_call_goes_elsewhere() {
    let (a, b) = (Site::gated("a", Gate::Fails), Site::gated("b", Gate::Open));
    let mut balance = over([("a", &a), ("b", &b)], eject1());
    settle().await;
    for seconds in [10, 20, 40] {
        assert_eq!(
            balance.ready().await.unwrap().call(()).await.unwrap(),
            Answer::From("b")
        );
        let stats = balance.stats();
        assert_eq!(
            stats.endpoint("a").unwrap().returns_in,
            Some(seconds * SECOND)
        );
        advance(seconds * SECOND).await;
    }
}
