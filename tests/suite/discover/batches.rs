//! Batches: few builds, and polls that end.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use counterpoise::{
    Balance, BalanceLayer, Builder, Direct, discover,
    error::ErrorKind,
    observe::Discovery,
    policy::{Picker, Policy, RoundRobin},
};
use futures::{Stream, channel::mpsc};
use tokio_test::task;
use tower::{Layer, Service, ServiceExt, discover::Change};

use crate::{
    probes::{Compiles, answers, call, feed, for_each_policy, insert},
    support::{Broken, Site},
};

// ===== batches: few compiles, bounded polls =====

#[tokio::test(start_paused = true)]
async fn ten_thousand_inserts_compile_once() {
    let site = Site::new("a");
    let endpoints = || (0..10_000).map(|i| (i, site.endpoint()));
    let changes = endpoints().map(|(key, endpoint)| Ok(Change::Insert(key, endpoint)));
    let (sender, receiver) = mpsc::unbounded::<Result<_, Broken>>();
    changes.for_each(|change| sender.unbounded_send(change).unwrap());
    let (handle, told) = discover::channel();
    handle.set(endpoints());

    async fn compiles<D>(discover: D) -> (usize, u64)
    where
        D: tower::discover::Discover<Key = i32, Service = counterpoise::Endpoint<Direct<Site>>>
            + Send
            + 'static,
        D::Error: Into<counterpoise::BoxError>,
    {
        let policy = Compiles::new(RoundRobin::new());
        let balance = Balance::new(discover, policy.clone());
        balance.ready_when(10_000).await.unwrap();
        (policy.count(), balance.stats().generation)
    }
    assert_eq!(compiles(discover::list(endpoints())).await, (1, 2));
    assert_eq!(compiles(receiver).await, (1, 2));
    assert_eq!(compiles(told).await, (1, 2));
}

/// A stream that is always ready, and counts how much is taken.
struct Endless {
    site: Site,
    taken: Arc<AtomicUsize>,
}

impl Stream for Endless {
    type Item = Result<Change<usize, counterpoise::Endpoint<Direct<Site>>>, Broken>;

    fn poll_next(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let nth = self.taken.fetch_add(1, Ordering::SeqCst);
        Poll::Ready(Some(Ok(Change::Insert(nth % 10, self.site.endpoint()))))
    }
}

#[tokio::test(start_paused = true)]
async fn one_poll_takes_so_many_changes_and_a_batch_has_an_end() {
    let taken = Arc::new(AtomicUsize::new(0));
    let stream = Endless {
        site: Site::new("a"),
        taken: Arc::clone(&taken),
    };
    let policy = Compiles::new(RoundRobin::new());
    let (layer, driver) = BalanceLayer::pair(stream, policy.clone());
    let mut driver = task::spawn(driver);
    for poll in 1..=64 {
        assert_eq!(policy.count(), 0);
        assert!(driver.poll().is_pending());
        assert!(driver.is_woken(), "more is ready");
        assert_eq!(taken.load(Ordering::SeqCst), poll * 1_024);
    }
    assert_eq!(
        policy.count(),
        1,
        "65,536 changes are published although more is ready"
    );
    assert_eq!(layer.stats().counts.members, 10);
    for _ in 0..64 {
        assert!(driver.poll().is_pending());
    }
    assert_eq!(policy.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_idle_driver_is_not_woken() {
    let (_feed, changes) = feed::<Direct<Site>>();
    let (layer, driver) = BalanceLayer::pair(changes, RoundRobin::new());
    let mut driver = task::spawn(driver);
    assert!(driver.poll().is_pending());
    assert!(!driver.is_woken());
    drop(layer);
    assert!(driver.is_woken(), "the last balancer is gone");
    assert!(driver.poll().is_ready());
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_is_dropped_early_is_visible_and_nobody_hangs() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let (_feed, changes) = feed::<Direct<Site>>();
        let builder = Builder::new().wait_when_empty(true);
        let (layer, driver) = builder.pair(changes, policy).unwrap();
        let mut balance: Balance<_, _, _> = layer.layer(());
        assert_eq!(balance.stats().discovery, Discovery::Starting);
        let mut waiting = task::spawn(balance.ready().await.unwrap().call(()));
        assert!(waiting.poll().is_pending());
        drop(driver);
        assert_eq!(balance.stats().discovery, Discovery::Stopped);
        assert!(waiting.is_woken());
        assert_eq!(waiting.await.unwrap_err().kind(), ErrorKind::DiscoveryEnded);
        assert_eq!(
            call(&mut balance).await.unwrap_err().kind(),
            ErrorKind::DiscoveryEnded
        );
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_is_dropped_early_leaves_the_set() {
    let site = Site::new("a");
    let (feed, changes) = feed();
    feed.unbounded_send(insert("a", site.endpoint())).unwrap();
    let (layer, driver) = BalanceLayer::pair(changes, RoundRobin::new());
    let mut driver = task::spawn(driver);
    assert!(driver.poll().is_pending());
    assert_eq!(layer.stats().discovery, Discovery::Following);
    drop(driver);
    assert_eq!(layer.stats().discovery, Discovery::Stopped);
    let mut balance: Balance<_, _, _> = layer.layer(());
    assert_eq!(answers(&mut balance, 2).await, ["a", "a"]);
}
