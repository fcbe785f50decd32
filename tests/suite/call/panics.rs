//! Panics of services are failures and reach the caller.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use counterpoise::{
    Balance, Builder, Direct, Endpoint, Health, Target, call::AtHead, discover,
    health::ErrorsAreFailures, observe::EndpointState, policy::RoundRobin,
};
use futures::FutureExt;
use tokio::time::advance;
use tower::{Service, ServiceExt};

use crate::{
    probes::{Gate, Probe, answers},
    support::{Act, Answer, Broken, Site, Sites, settle},
};

// ===== panics of services =====

/// A target that panics when it is attached.
struct Unattachable;

impl<C> Target<C> for Unattachable {
    type Service = Probe;
    type Judge = AtHead<ErrorsAreFailures>;

    fn attach(&self, _client: &C) -> Probe {
        panic!("attach panics");
    }
}

/// Checks that a panic was one failure of the only endpoint, and left nothing running.
async fn failed_once<T: Target<(), Service = Probe> + Send + Sync + 'static>(
    target: T,
    probe: &Probe,
    panics: impl AsyncFnOnce(&mut Balance<T, RoundRobin>),
) {
    let list = discover::list([("a", Endpoint::new(target))]);
    let mut balance = Balance::new(list, RoundRobin::new());
    settle().await;
    panics(&mut balance).await;
    let stats = balance.stats();
    let node = stats.endpoint("a").unwrap();
    assert_eq!((node.in_flight, stats.waiting), (0, 0));
    assert_eq!(
        (
            node.picks,
            node.failures,
            node.consecutive_failures,
            node.drops
        ),
        (1, 1, 1, 0)
    );
    drop(balance);
    settle().await;
    assert_eq!(probe.instances(), 1);
}

async fn panics_in_call<T>(balance: &mut Balance<T, RoundRobin>)
where
    T: Target<(), Service = Probe, Judge = AtHead<ErrorsAreFailures>> + Send + Sync + 'static,
{
    let ready = balance.ready().await.unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(ready.call(())))).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_attach_is_a_failure_and_reaches_the_caller() {
    let probe = Probe::gated("a", Gate::Open);
    failed_once(Unattachable, &probe, panics_in_call).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_poll_ready_is_a_failure_and_reaches_the_caller() {
    let probe = Probe::gated("a", Gate::Panics);
    failed_once(Direct(probe.clone()), &probe, panics_in_call).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_poll_ready_during_a_wait_is_a_failure_and_reaches_the_caller() {
    let probe = Probe::gated("a", Gate::Shut);
    failed_once(Direct(probe.clone()), &probe, async |balance| {
        let waiting = tokio::spawn(balance.clone().oneshot(()));
        settle().await;
        assert_eq!(balance.stats().waiting, 1);
        probe.turn(Gate::Panics);
        assert!(waiting.await.unwrap_err().is_panic());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_future_is_a_failure_and_reaches_the_caller() {
    let probe = Probe::gated("a", Gate::Open);
    probe.act(Act::Panic);
    failed_once(Direct(probe.clone()), &probe, async |balance| {
        let running = tokio::spawn(balance.clone().oneshot(()));
        assert!(running.await.unwrap_err().is_panic());
    })
    .await;
    let caught = AssertUnwindSafe(
        Balance::new(discover::list([("a", probe.endpoint())]), RoundRobin::new()).oneshot(()),
    );
    assert!(caught.catch_unwind().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_services_call_is_a_failure_and_reaches_the_caller() {
    let panics =
        tower::service_fn(|()| -> std::future::Ready<Result<(), Broken>> { panic!("call panics") });
    let list = discover::list([("a", Endpoint::new(Direct(panics)))]);
    let mut balance = Balance::new(list, RoundRobin::new());
    settle().await;
    let ready = balance.ready().await.unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(ready.call(())))).is_err());
    let stats = balance.stats();
    let node = stats.endpoint("a").unwrap();
    assert_eq!((node.in_flight, node.picks, node.failures), (0, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_classifier_is_a_failure_and_reaches_the_caller() {
    let site = Site::new("a");
    let list = discover::list([("a", site.endpoint())]);
    let builder = Builder::new().classify_fn(|_: Result<&Answer, &Broken>| panic!("classify"));
    let balance = builder.balance(list, RoundRobin::new()).unwrap();
    settle().await;
    assert!(
        tokio::spawn(balance.clone().oneshot(()))
            .await
            .unwrap_err()
            .is_panic()
    );
    let stats = balance.stats();
    let node = stats.endpoint("a").unwrap();
    assert_eq!((node.in_flight, node.picks, node.failures), (0, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_trial_gives_its_place_back_and_ejects_again() {
    let sites = Sites::new(&["a", "b"]);
    let health = Health::new().consecutive_failures(1).jitter(0.0);
    let builder = Builder::new().starting_at(0).health(health);
    let list = sites.list(&["a", "b"]);
    let mut balance = builder.balance(list, RoundRobin::new()).unwrap();
    settle().await;
    sites["a"].act(Act::Panic);
    assert!(
        tokio::spawn(balance.clone().oneshot(()))
            .await
            .unwrap_err()
            .is_panic()
    );
    assert_eq!(
        balance.stats().endpoint("a").unwrap().state,
        EndpointState::Ejected
    );
    advance(Duration::from_secs(10)).await;
    assert!(
        tokio::spawn(balance.clone().oneshot(()))
            .await
            .unwrap_err()
            .is_panic()
    );
    assert_eq!(balance.stats().endpoint("a").unwrap().ejections, 2);
    sites["a"].act(Act::Ok);
    advance(Duration::from_secs(20)).await;
    assert_eq!(answers(&mut balance, 1).await, ["a"]);
    assert_eq!(
        balance.stats().endpoint("a").unwrap().state,
        EndpointState::Serving
    );
}
