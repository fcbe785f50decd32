//! Waiting for the first endpoints.

use counterpoise::{Balance, BalanceLayer, discover, error::ErrorKind, policy::RoundRobin};
use tokio_test::task;

use crate::{
    probes::{feed, insert},
    support::{Broken, Site, Sites, settle},
};

// ===== B97: waiting for the first endpoints =====

#[tokio::test(start_paused = true)]
async fn b97_ready_when_waits_for_so_many() {
    let sites = Sites::new(&["a", "b"]);
    let (handle, changes) = discover::channel();
    let balance = Balance::new(changes, RoundRobin::new());
    let mut ready = task::spawn(balance.ready_when(2));
    assert!(ready.poll().is_pending());
    handle.insert("a", sites["a"].endpoint());
    settle().await;
    assert!(ready.poll().is_pending());
    handle.insert("b", sites["b"].endpoint());
    settle().await;
    assert!(ready.is_woken());
    ready.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn b97_ready_when_fails_with_the_error_of_discovery() {
    let site = Site::new("a");
    let (feed, changes) = feed();
    let balance = Balance::new(changes, RoundRobin::new());
    feed.unbounded_send(insert("a", site.endpoint())).unwrap();
    feed.unbounded_send(Err(Broken("discovery"))).unwrap();
    let error = balance.ready_when(2).await.unwrap_err();
    assert_eq!(error.find::<Broken>().unwrap().0, "discovery");
    assert_eq!(error.counts().members, 1);
    balance.ready_when(1).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn b97_ready_when_fails_when_discovery_ends_with_fewer() {
    let sites = Sites::new(&["a"]);
    let layer = BalanceLayer::new(sites.list(&["a"]), RoundRobin::new());
    let error = layer.ready_when(2).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.counts().members),
        (ErrorKind::DiscoveryEnded, 1)
    );
    layer.ready_when(1).await.unwrap();
    layer.ready_when(0).await.unwrap();
}
