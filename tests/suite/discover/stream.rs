//! The stream of changes: its end, its errors, and changes without traffic.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use counterpoise::{
    Balance, BalanceLayer, Builder, Direct, discover,
    error::ErrorKind,
    observe::Discovery,
    policy::{Picker, Policy, RoundRobin},
};
use futures::{SinkExt, Stream, StreamExt, channel::mpsc, stream};
use tokio_test::task;
use tower::{Layer, Service, ServiceExt, buffer::Buffer};

use super::members;
use crate::{
    probes::{Item, answers, call, feed, for_each_policy, insert, name, remove},
    support::{Broken, Site, Sites, settle},
};

// ===== B83: the end =====

/// A stream that must not be polled after its end.
struct EndsOnce<S>(Option<S>);

impl<S: Stream + Unpin> Stream for EndsOnce<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let stream = self.0.as_mut().expect("polled after its end");
        let polled = stream.poll_next_unpin(cx);
        if let Poll::Ready(None) = polled {
            self.0 = None;
        }
        polled
    }
}

#[tokio::test(start_paused = true)]
async fn b83_an_ended_stream_is_left_alone_and_its_set_stays() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let site = Site::new("a");
        let stream = EndsOnce(Some(stream::iter([insert("a", site.endpoint())])));
        let (layer, driver) = BalanceLayer::pair(stream, policy);
        let mut driver = task::spawn(driver);
        assert!(driver.poll().is_ready());
        assert!(!driver.is_woken());
        let mut balance: Balance<_, _, _> = layer.layer(());
        assert_eq!(balance.stats().discovery, Discovery::Ended);
        for _ in 0..1_000 {
            let mut call = task::spawn(balance.ready().await.unwrap().call(()));
            assert!(call.poll().is_ready());
            assert!(!call.is_woken());
        }
        assert_eq!(site.calls(), 1_000);
        assert!(driver.poll().is_ready(), "an ended driver stays ended");
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b83_the_spawned_driver_ends_with_its_stream() {
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    let site = Site::new("a");
    let stream = EndsOnce(Some(stream::iter([insert("a", site.endpoint())])));
    let mut balance = Balance::new(stream, RoundRobin::new());
    assert_eq!(tasks(), before + 1);
    settle().await;
    assert_eq!(tasks(), before);
    assert_eq!(answers(&mut balance, 2).await, ["a", "a"]);
}

#[tokio::test(start_paused = true)]
async fn b83_an_end_with_nothing_left_is_an_error_for_waiting_and_for_new_calls() {
    let (feed, changes) = feed::<Direct<Site>>();
    let builder = Builder::new().wait_when_empty(true);
    let mut balance = builder.balance(changes, RoundRobin::new()).unwrap();
    let mut waiting = task::spawn(balance.ready().await.unwrap().call(()));
    assert!(waiting.poll().is_pending());
    drop(feed);
    settle().await;
    assert!(waiting.is_woken());
    let error = waiting.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DiscoveryEnded);
    assert_eq!(
        call(&mut balance).await.unwrap_err().kind(),
        ErrorKind::DiscoveryEnded
    );
}

// ===== B84: errors =====

#[tokio::test(start_paused = true)]
async fn b84_an_error_keeps_the_set_is_counted_and_changes_go_on() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let sites = Sites::new(&["a", "b", "c"]);
        let (feed, changes) = feed();
        let mut balance = Builder::new()
            .starting_at(0)
            .balance(changes, policy)
            .unwrap();
        for name in ["a", "b"] {
            feed.unbounded_send(insert(name, sites[name].endpoint()))
                .unwrap();
        }
        feed.unbounded_send(Err(Broken("discovery"))).unwrap();
        settle().await;
        let stats = balance.stats();
        assert_eq!(
            (stats.discovery_errors, stats.discovery),
            (1, Discovery::Following)
        );
        assert_eq!(
            stats.last_discovery_error.unwrap().to_string(),
            "discovery is broken"
        );
        assert_eq!(answers(&mut balance, 4).await, ["a", "b", "a", "b"]);
        feed.unbounded_send(insert("c", sites["c"].endpoint()))
            .unwrap();
        settle().await;
        assert_eq!(answers(&mut balance, 3).await, ["b", "c", "a"]);
        let stats = balance.stats();
        assert_eq!(stats.discovery_errors, 1);
        assert!(
            stats.last_discovery_error.is_none(),
            "a change has come since"
        );
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b84_with_nothing_known_calls_wait_and_then_fail_with_the_error() {
    let (feed, changes) = feed::<Direct<Site>>();
    let mut balance = Balance::new(changes, RoundRobin::new());
    let start = tokio::time::Instant::now();
    feed.unbounded_send(Err(Broken("discovery"))).unwrap();
    let error = call(&mut balance).await.unwrap_err();
    assert_eq!(start.elapsed(), Duration::from_secs(5));
    assert_eq!(error.kind(), ErrorKind::Empty);
    assert_eq!(error.find::<Broken>().unwrap().0, "discovery");
}

#[tokio::test(start_paused = true)]
async fn b84_a_buffer_above_is_not_closed_by_an_error() {
    let site = Site::new("a");
    let (feed, changes) = feed();
    feed.unbounded_send(Err(Broken("discovery"))).unwrap();
    let mut buffer = Buffer::new(Balance::new(changes, RoundRobin::new()), 4);
    call(&mut buffer).await.unwrap_err();
    feed.unbounded_send(insert("a", site.endpoint())).unwrap();
    settle().await;
    assert_eq!(answers(&mut buffer, 2).await, ["a", "a"]);
}

// ===== B85, B87: changes come without traffic, and none is lost =====

#[tokio::test(start_paused = true)]
async fn b85_changes_are_applied_without_traffic() {
    let sites: Vec<_> = (0..10).map(|i| Site::new(name("s", i))).collect();
    let last = Site::new("x");
    let (mut sender, receiver) = mpsc::channel::<Item<_>>(16);
    let mut balance = Balance::new(receiver, RoundRobin::new());
    for i in 0..4_990 {
        let key = name("k", i % 10);
        let change = match i / 10 % 2 {
            0 => insert(key, sites[i % 10].endpoint()),
            _ => remove(key),
        };
        sender.send(change).await.unwrap();
    }
    for i in 0..9 {
        sender.send(remove(name("k", i))).await.unwrap();
    }
    sender.send(remove("k9")).await.unwrap();
    sender.send(insert("x", last.endpoint())).await.unwrap();
    settle().await;
    assert!(
        sites.iter().all(|site| site.instances() == 1),
        "former services are dropped"
    );
    assert_eq!(members(&balance), ["x"]);
    assert_eq!(answers(&mut balance, 1).await, ["x"]);
    assert!(sites.iter().all(|site| site.calls() == 0));
}

#[tokio::test(start_paused = true)]
async fn b87_ten_thousand_changes_end_in_the_final_state() {
    let sites = Sites::new(&["a", "b", "c"]);
    let (feed, changes) = feed();
    let (handle, merged) = discover::channel();
    let streamed = Balance::new(changes, RoundRobin::new());
    let told = Balance::new(merged, RoundRobin::new());
    for i in 0..10_000_u32 {
        let key = ["a", "b", "c"][i as usize % 3];
        if i % 7 < 3 && i < 9_990 {
            feed.unbounded_send(remove(key)).unwrap();
            handle.remove(&key);
        } else {
            feed.unbounded_send(insert(key, sites[key].endpoint().weight(i)))
                .unwrap();
            handle.insert(key, sites[key].endpoint().weight(i));
        }
        if i % 1_000 == 0 {
            tokio::task::yield_now().await;
        }
    }
    settle().await;
    for balance in [&streamed, &told] {
        let stats = balance.stats();
        assert_eq!(stats.endpoints.len(), 3);
        let weight = |name| stats.endpoint(name).unwrap().weight;
        assert_eq!(
            [weight("a"), weight("b"), weight("c")],
            [9_999, 9_997, 9_998]
        );
    }
    assert!(
        ["a", "b", "c"]
            .iter()
            .all(|name| sites[name].instances() == 3)
    );
}
