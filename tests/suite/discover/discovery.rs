//! How the set follows discovery: batches, errors, ends, and what an empty set means.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use counterpoise::{
    Balance, BalanceLayer, Builder, Direct, Health, discover,
    error::ErrorKind,
    observe::{Discovery, EndpointState},
    policy::{BoxPolicy, ModuloRoundRobin, Pick, RoundRobin},
};
use futures::{SinkExt, Stream, StreamExt, channel::mpsc, stream};
use tokio_test::task;
use tower::{Layer, Service, ServiceExt, buffer::Buffer, discover::Change};

use crate::{
    probes::{Compiles, Item, answers, call, count, feed, for_each_policy, insert, name, remove},
    support::{Act, Answer, Broken, Site, Sites, settle},
};

/// The names of the members, in order.
fn members<P: counterpoise::policy::Policy>(balance: &Balance<Direct<Site>, P>) -> Vec<String> {
    balance.stats().endpoints.iter().map(|endpoint| endpoint.name.to_string()).collect()
}

// ===== B50: bad input is contained =====

#[tokio::test(start_paused = true)]
async fn b50_a_policy_that_panics_once_is_reported_and_compiled_anew() {
    async fn case<P: Pick<()>>(policy: P) {
        let sites = Sites::new(&["a", "b", "c", "d"]);
        let (handle, changes) = discover::channel();
        let policy = Compiles::panics_at(policy, 2);
        let mut balance = Builder::new().starting_at(0).balance(changes, policy).unwrap();
        handle.set(["a", "b"].map(|name| (name, sites[name].endpoint())));
        settle().await;
        handle.insert("c", sites["c"].endpoint());
        settle().await;
        let stats = balance.stats();
        assert_eq!(stats.policy_panics, 1);
        assert!(stats.last_policy_panic.unwrap().contains("compile 2 fails"));
        assert_eq!(answers(&mut balance, 4).await, ["a", "b", "a", "b"]);
        handle.insert("d", sites["d"].endpoint());
        settle().await;
        assert_eq!(answers(&mut balance, 4).await, ["a", "b", "c", "d"]);
        assert_eq!(balance.stats().policy_panics, 1);
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b50_a_policy_that_panics_at_once_is_named_in_the_error() {
    let sites = Sites::new(&["a", "b"]);
    let (handle, changes) = discover::channel();
    let policy = Compiles::panics_at(RoundRobin::new(), 1);
    let mut balance = Builder::new().starting_at(0).balance(changes, policy).unwrap();
    handle.insert("a", sites["a"].endpoint());
    settle().await;
    let error = call(&mut balance).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Policy);
    assert!(error.to_string().contains("compile 1 fails"), "{error}");
    handle.insert("b", sites["b"].endpoint());
    settle().await;
    assert_eq!(answers(&mut balance, 2).await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn b50_an_ejection_after_a_failed_compile_publishes_the_members_too() {
    let sites = Sites::new(&["a", "b", "c"]);
    let (handle, changes) = discover::channel();
    let health = Health::new().consecutive_failures(1);
    let policy = Compiles::panics_at(RoundRobin::new(), 2);
    let builder = Builder::new().starting_at(0).health(health);
    let mut balance = builder.balance(changes, policy).unwrap();
    handle.set(["a", "b"].map(|name| (name, sites[name].endpoint())));
    settle().await;
    handle.set(["b", "c"].map(|name| (name, sites[name].endpoint())));
    settle().await;
    assert_eq!(balance.stats().policy_panics, 1);
    sites["b"].act(Act::Err);
    assert_eq!(call(&mut balance).await.unwrap_err().endpoint(), Some("b"));
    // The ejection has compiled anew: b is out, c is in.
    assert_eq!(answers(&mut balance, 3).await, ["c", "c", "c"]);
}

#[tokio::test(start_paused = true)]
async fn b50_the_worst_weights_break_nothing() {
    async fn case<P: Pick<()>>(policy: P) {
        let sites = Sites::new(&["a", "b", "c", "d"]);
        let (handle, changes) = discover::channel();
        let mut balance = Builder::new().starting_at(0).balance(changes, policy).unwrap();
        handle.set(["a", "b"].map(|name| (name, sites[name].endpoint())));
        settle().await;
        handle.insert("c", sites["c"].endpoint().weight(0));
        settle().await;
        assert_eq!(answers(&mut balance, 2).await, ["a", "b"]);
        handle.insert("d", sites["d"].endpoint().weight(u32::MAX));
        settle().await;
        let answers = answers(&mut balance, 300).await;
        assert_eq!(["a", "b", "c", "d"].map(|name| count(&answers, name)), [100, 100, 0, 100]);
        assert_eq!(balance.stats().endpoint("c").unwrap().state, EndpointState::Drained);
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b50_a_key_that_panics_stops_discovery_visibly_and_calls_go_on() {
    struct Key(u8);
    impl PartialEq for Key {
        fn eq(&self, other: &Self) -> bool {
            self.0 == other.0
        }
    }
    impl Eq for Key {}
    impl std::hash::Hash for Key {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }
    impl Clone for Key {
        fn clone(&self) -> Self {
            Self(self.0)
        }
    }
    impl std::fmt::Display for Key {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            assert!(self.0 < 3, "a key without a name");
            self.0.fmt(f)
        }
    }
    let sites = Sites::new(&["a", "b", "c"]);
    let (handle, changes) = discover::channel();
    let health = Health::new().consecutive_failures(1);
    let builder = Builder::new().starting_at(0).health(health);
    let mut balance = builder.balance(changes, RoundRobin::new()).unwrap();
    handle.insert(Key(0), sites["a"].endpoint());
    handle.insert(Key(1), sites["b"].endpoint());
    settle().await;
    handle.insert(Key(2), sites["c"].endpoint());
    handle.insert(Key(3), sites["c"].endpoint());
    settle().await;
    assert_eq!(balance.stats().discovery, Discovery::Stopped);
    assert!(handle.is_closed());
    assert_eq!(answers(&mut balance, 2).await, ["a", "b"]);
    sites["a"].act(Act::Err);
    call(&mut balance).await.unwrap_err();
    sites["a"].act(Act::Ok);
    let answers = answers(&mut balance, 4).await;
    // The batch is lost whole, and statistics and picks agree on the set before it.
    assert_eq!(balance.stats().counts.members, 2);
    assert_eq!(["a", "b", "c"].map(|name| count(&answers, name)), [0, 4, 0]);
}

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
    async fn case<P: Pick<()>>(policy: P) {
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
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
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
    assert_eq!(call(&mut balance).await.unwrap_err().kind(), ErrorKind::DiscoveryEnded);
}

// ===== B84: errors =====

#[tokio::test(start_paused = true)]
async fn b84_an_error_keeps_the_set_is_counted_and_changes_go_on() {
    async fn case<P: Pick<()>>(policy: P) {
        let sites = Sites::new(&["a", "b", "c"]);
        let (feed, changes) = feed();
        let mut balance = Builder::new().starting_at(0).balance(changes, policy).unwrap();
        for name in ["a", "b"] {
            feed.unbounded_send(insert(name, sites[name].endpoint())).unwrap();
        }
        feed.unbounded_send(Err(Broken("discovery"))).unwrap();
        settle().await;
        let stats = balance.stats();
        assert_eq!((stats.discovery_errors, stats.discovery), (1, Discovery::Following));
        assert_eq!(stats.last_discovery_error.unwrap().to_string(), "discovery is broken");
        assert_eq!(answers(&mut balance, 4).await, ["a", "b", "a", "b"]);
        feed.unbounded_send(insert("c", sites["c"].endpoint())).unwrap();
        settle().await;
        assert_eq!(answers(&mut balance, 3).await, ["b", "c", "a"]);
        let stats = balance.stats();
        assert_eq!(stats.discovery_errors, 1);
        assert!(stats.last_discovery_error.is_none(), "a change has come since");
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
    assert!(sites.iter().all(|site| site.instances() == 1), "former services are dropped");
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
            feed.unbounded_send(insert(key, sites[key].endpoint().weight(i))).unwrap();
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
        assert_eq!([weight("a"), weight("b"), weight("c")], [9_999, 9_997, 9_998]);
    }
    assert!(["a", "b", "c"].iter().all(|name| sites[name].instances() == 3));
}

// ===== B88, B90: the empty set =====

#[tokio::test(start_paused = true)]
async fn b88_an_empty_set_fails_at_once_and_can_be_left() {
    async fn case<P: Pick<()>>(policy: P) {
        let site = Site::new("a");
        let (handle, changes) = discover::channel();
        let mut balance = Builder::new().starting_at(0).balance(changes, policy).unwrap();
        handle.insert("a", site.endpoint());
        settle().await;
        handle.remove(&"a");
        settle().await;
        let mut failing = task::spawn(balance.ready().await.unwrap().call(()));
        let Poll::Ready(Err(error)) = failing.poll() else { panic!("it waits or works") };
        assert_eq!((error.kind(), error.counts().members), (ErrorKind::Empty, 0));
        assert_eq!(error.to_string(), "there are no endpoints");
        handle.insert("a", site.endpoint());
        settle().await;
        assert_eq!(answers(&mut balance, 2).await, ["a", "a"]);
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b88_with_the_wait_policy_a_call_completes_when_an_endpoint_joins() {
    async fn case<P: Pick<()>>(policy: P) {
        let site = Site::new("a");
        let (handle, changes) = discover::channel();
        let builder = Builder::new().wait_when_empty(true);
        let mut balance = builder.balance(changes, policy).unwrap();
        handle.insert("a", site.endpoint());
        settle().await;
        handle.remove(&"a");
        settle().await;
        let mut waiting = task::spawn(balance.ready().await.unwrap().call(()));
        assert!(waiting.poll().is_pending());
        assert_eq!(balance.stats().waiting, 1);
        handle.insert("a", site.endpoint());
        settle().await;
        assert!(waiting.is_woken());
        assert_eq!(waiting.await.unwrap(), Answer::From("a"));
        assert_eq!(balance.stats().waiting, 0);
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b88_before_the_first_update_calls_wait_as_long_as_configured() {
    async fn case<P: Pick<()>>(policy: P) {
        let (_handle, changes) = discover::channel::<&str, Direct<Site>>();
        let builder = Builder::new().wait_for_endpoints(Duration::from_secs(7));
        let mut balance = builder.balance(changes, policy).unwrap();
        let start = tokio::time::Instant::now();
        let error = call(&mut balance).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Empty);
        assert_eq!(start.elapsed(), Duration::from_secs(7));
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b88_a_shutdown_with_calls_in_flight_lets_them_finish() {
    async fn case<P: Pick<()>>(policy: P) {
        let site = Site::new("a");
        site.act(Act::After(Duration::from_secs(1)));
        let (handle, changes) = discover::channel();
        let mut balance = Builder::new().balance(changes, policy).unwrap();
        handle.insert("a", site.endpoint());
        settle().await;
        let running = balance.ready().await.unwrap().call(());
        handle.remove(&"a");
        settle().await;
        assert_eq!(running.await.unwrap(), Answer::From("a"));
        assert_eq!(call(&mut balance).await.unwrap_err().kind(), ErrorKind::Empty);
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b88_an_empty_list_is_an_error_and_no_hang() {
    let mut balance = Balance::new(Sites::new(&[]).list(&[]), RoundRobin::new());
    settle().await;
    let mut failing = task::spawn(balance.ready().await.unwrap().call(()));
    let Poll::Ready(Err(error)) = failing.poll() else { panic!("it waits or works") };
    assert_eq!(error.kind(), ErrorKind::DiscoveryEnded);
}

#[tokio::test(start_paused = true)]
async fn b90_the_last_endpoint_can_be_removed() {
    async fn case<P: Pick<()>>(policy: P) {
        let site = Site::new("a");
        let (feed, changes) = feed();
        let mut balance = Builder::new().balance(changes, policy).unwrap();
        feed.unbounded_send(insert("a", site.endpoint())).unwrap();
        settle().await;
        feed.unbounded_send(remove("a")).unwrap();
        settle().await;
        call(&mut balance).await.unwrap_err();
        assert_eq!((site.calls(), site.instances()), (0, 1));
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b90_the_last_endpoints_are_kept_when_asked_for_until_another_joins() {
    async fn case<P: Pick<()>>(policy: P) {
        let sites = Sites::new(&["a", "b", "c"]);
        let (handle, changes) = discover::channel();
        let builder = Builder::new().starting_at(0).keep_last(true);
        let mut balance = builder.balance(changes, policy).unwrap();
        handle.set(["a", "b"].map(|name| (name, sites[name].endpoint())));
        settle().await;
        handle.set([]);
        settle().await;
        assert_eq!(answers(&mut balance, 4).await, ["a", "b", "a", "b"]);
        let states: Vec<_> = balance.stats().endpoints.iter().map(|one| one.state).collect();
        assert_eq!(states, [EndpointState::Kept, EndpointState::Kept]);
        handle.insert("c", sites["c"].endpoint());
        settle().await;
        assert_eq!(answers(&mut balance, 2).await, ["c", "c"]);
        let stats = balance.stats();
        assert_eq!(stats.endpoints.len(), 1);
        assert_eq!(stats.endpoints[0].state, EndpointState::Serving);
        assert_eq!((sites["a"].instances(), sites["b"].instances()), (1, 1));
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b90_a_kept_endpoint_that_is_inserted_again_is_a_new_member() {
    let site = Site::new("a");
    let (handle, changes) = discover::channel();
    let builder = Builder::new().keep_last(true);
    let mut balance = builder.balance(changes, RoundRobin::new()).unwrap();
    handle.insert("a", site.endpoint());
    settle().await;
    answers(&mut balance, 3).await;
    handle.remove(&"a");
    settle().await;
    handle.insert("a", site.endpoint());
    settle().await;
    let stats = balance.stats();
    assert_eq!(stats.endpoints.len(), 1);
    assert_eq!((stats.endpoints[0].picks, stats.endpoints[0].state), (0, EndpointState::Serving));
}

#[tokio::test(start_paused = true)]
async fn b90_only_members_are_kept_whatever_a_batch_did_in_between() {
    let sites = Sites::new(&["a", "b"]);
    let a = || insert("a", sites["a"].endpoint());
    let b = || insert("b", sites["b"].endpoint());
    let cases: [(Vec<Item<_>>, &[&str]); 3] = [
        (vec![remove("a"), a(), remove("a")], &["a"]),
        (vec![remove("a"), b(), remove("b")], &["b"]),
        (vec![remove("a"), b(), remove("b"), a()], &["a"]),
    ];
    for (batch, want) in cases {
        let (feed, changes) = feed();
        let builder = Builder::new().keep_last(true);
        let balance = builder.balance(changes, RoundRobin::new()).unwrap();
        feed.unbounded_send(a()).unwrap();
        settle().await;
        for change in batch {
            feed.unbounded_send(change).unwrap();
        }
        settle().await;
        assert_eq!(members(&balance), want);
    }
}

// ===== B92, B93, B95: duplicates, removals, replacements =====

#[tokio::test(start_paused = true)]
async fn b92_a_key_is_one_member_with_the_latest_service_and_weight() {
    async fn case<P: Pick<()>>(policy: P) {
        let (old, new, b) = (Site::new("old"), Site::new("new"), Site::new("b"));
        let (feed, changes) = feed();
        let mut balance = Builder::new().starting_at(0).balance(changes, policy).unwrap();
        feed.unbounded_send(insert("a", old.endpoint().weight(2))).unwrap();
        feed.unbounded_send(insert("a", new.endpoint().weight(3))).unwrap();
        feed.unbounded_send(insert("b", b.endpoint())).unwrap();
        settle().await;
        assert_eq!(old.instances(), 1, "the former service is dropped");
        assert_eq!(balance.stats().endpoint("a").unwrap().weight, 3);
        let answers = answers(&mut balance, 100).await;
        assert_eq!(["old", "new", "b"].map(|name| count(&answers, name)), [0, 50, 50]);
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b92_two_keys_of_one_service_are_two_members() {
    async fn case<P: Pick<()>>(policy: P) {
        let (shared, b) = (Site::new("shared"), Site::new("b"));
        let endpoints = [("a1", shared.endpoint()), ("a2", shared.endpoint()), ("b", b.endpoint())];
        let list = discover::list(endpoints);
        let mut balance = Builder::new().starting_at(0).balance(list, policy).unwrap();
        settle().await;
        assert_eq!(answers(&mut balance, 3).await, ["shared", "shared", "b"]);
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b92_of_equal_keys_in_a_list_the_last_one_counts() {
    let (first, last) = (Site::new("first"), Site::new("last"));
    let list = discover::list([("a", first.endpoint()), ("a", last.endpoint())]);
    let mut balance = Balance::new(list, RoundRobin::new());
    settle().await;
    assert_eq!(answers(&mut balance, 2).await, ["last", "last"]);
    assert_eq!(balance.stats().counts.members, 1);
}

#[tokio::test(start_paused = true)]
async fn b93_a_removed_endpoint_finishes_its_calls_and_gets_no_other() {
    async fn case<P: Pick<()>>(policy: P) {
        let sites = Sites::new(&["a", "b"]);
        sites["b"].act(Act::After(Duration::from_secs(60)));
        let (handle, changes) = discover::channel();
        handle.set(["a", "b"].map(|name| (name, sites[name].endpoint())));
        let mut balance = Builder::new().starting_at(1).balance(changes, policy).unwrap();
        settle().await;
        let mut running = task::spawn(balance.ready().await.unwrap().call(()));
        assert!(running.poll().is_pending());
        handle.remove(&"b");
        settle().await;
        assert_eq!(answers(&mut balance, 4).await, ["a"; 4]);
        assert_eq!(running.await.unwrap(), Answer::From("b"));
        settle().await;
        assert_eq!((sites["b"].calls(), sites["b"].instances()), (1, 1));
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b93_a_replaced_service_gets_no_further_call_and_health_stays() {
    let (old, new) = (Site::new("old"), Site::new("new"));
    old.act(Act::Err);
    let (handle, changes) = discover::channel();
    handle.insert("a", old.endpoint());
    let mut balance = Balance::new(changes, RoundRobin::new());
    settle().await;
    call(&mut balance).await.unwrap_err();
    handle.insert("a", new.endpoint());
    settle().await;
    assert_eq!(balance.stats().endpoint("a").unwrap().consecutive_failures, 1);
    assert_eq!(answers(&mut balance, 2).await, ["new", "new"]);
    assert_eq!((old.calls(), old.instances()), (1, 1));
    assert_eq!(balance.stats().endpoint("a").unwrap().picks, 3);
}

#[tokio::test(start_paused = true)]
async fn b95_a_batch_that_replaces_everybody_has_no_empty_moment() {
    async fn case<P: Pick<()>>(policy: P) {
        let sites = Sites::new(&["a", "b", "c", "d"]);
        let (feed, changes) = feed();
        let mut balance = Builder::new().starting_at(0).balance(changes, policy).unwrap();
        for name in ["a", "b"] {
            feed.unbounded_send(insert(name, sites[name].endpoint())).unwrap();
        }
        settle().await;
        assert_eq!(answers(&mut balance, 2).await, ["a", "b"]);
        let generation = balance.stats().generation;
        for name in ["a", "b"] {
            feed.unbounded_send(remove(name)).unwrap();
        }
        for name in ["c", "d"] {
            feed.unbounded_send(insert(name, sites[name].endpoint())).unwrap();
        }
        for _ in 0..32 {
            call(&mut balance).await.unwrap();
            tokio::task::yield_now().await;
        }
        assert_eq!(balance.stats().generation, generation + 1);
        assert_eq!(answers(&mut balance, 2).await, ["c", "d"]);
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b95_a_waiting_call_is_served_by_the_new_endpoints() {
    async fn case<P: Pick<()>>(policy: P) {
        let sites = Sites::new(&["a", "b", "c", "d"]);
        let (feed, changes) = feed();
        let mut balance = Builder::new().starting_at(0).balance(changes, policy).unwrap();
        let mut waiting = task::spawn(balance.ready().await.unwrap().call(()));
        assert!(waiting.poll().is_pending());
        for name in ["a", "b"] {
            feed.unbounded_send(insert(name, sites[name].endpoint())).unwrap();
        }
        for change in [remove("a"), remove("b")] {
            feed.unbounded_send(change).unwrap();
        }
        for name in ["c", "d"] {
            feed.unbounded_send(insert(name, sites[name].endpoint())).unwrap();
        }
        settle().await;
        assert_eq!(waiting.await.unwrap(), Answer::From("c"));
    }
    for_each_policy!(case);
}

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
    assert_eq!((error.kind(), error.counts().members), (ErrorKind::DiscoveryEnded, 1));
    layer.ready_when(1).await.unwrap();
    layer.ready_when(0).await.unwrap();
}

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
    let stream = Endless { site: Site::new("a"), taken: Arc::clone(&taken) };
    let policy = Compiles::new(RoundRobin::new());
    let (layer, driver) = BalanceLayer::pair(stream, policy.clone());
    let mut driver = task::spawn(driver);
    for poll in 1..=64 {
        assert_eq!(policy.count(), 0);
        assert!(driver.poll().is_pending());
        assert!(driver.is_woken(), "more is ready");
        assert_eq!(taken.load(Ordering::SeqCst), poll * 1_024);
    }
    assert_eq!(policy.count(), 1, "65,536 changes are published although more is ready");
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
    async fn case<P: Pick<()>>(policy: P) {
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
        assert_eq!(call(&mut balance).await.unwrap_err().kind(), ErrorKind::DiscoveryEnded);
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

// ===== discover::channel =====

#[tokio::test(start_paused = true)]
async fn removed_and_inserted_in_one_batch_is_a_new_member() {
    let sites = Sites::new(&["a", "b"]);
    let (handle, changes) = discover::channel();
    handle.set(["a", "b"].map(|name| (name, sites[name].endpoint())));
    let health = Health::new().consecutive_failures(1);
    let builder = Builder::new().starting_at(0).health(health);
    let mut balance = builder.balance(changes, RoundRobin::new()).unwrap();
    settle().await;
    sites["a"].act(Act::Err);
    call(&mut balance).await.unwrap_err();
    sites["a"].act(Act::Ok);
    handle.insert("a", sites["a"].endpoint());
    settle().await;
    assert_eq!(balance.stats().endpoint("a").unwrap().state, EndpointState::Ejected);
    handle.remove(&"a");
    handle.insert("a", sites["a"].endpoint());
    settle().await;
    assert_eq!(members(&balance), ["b", "a"]);
    let stats = balance.stats();
    let a = stats.endpoint("a").unwrap();
    assert_eq!((a.state, a.picks, a.ejections), (EndpointState::Serving, 0, 0));
}

/// Takes all that the stream has ready; removals with a minus.
fn take(changes: &mut discover::Changes<&'static str, Direct<Site>>) -> Vec<String> {
    let mut taken = Vec::new();
    let mut next = task::spawn(changes);
    while let Poll::Ready(Some(Ok(change))) = next.poll_next() {
        taken.push(match change {
            Change::Insert(key, endpoint) => format!("{key}{}", endpoint.get_weight()),
            Change::Remove(key) => format!("-{key}"),
        });
    }
    taken
}

#[test]
fn a_channel_merges_by_key_what_was_not_taken_yet() {
    let site = Site::new("a");
    let of = |weight| site.endpoint().weight(weight);
    let (handle, mut changes) = discover::channel();
    handle.insert("a", of(1));
    handle.insert("b", of(1));
    handle.insert("a", of(2));
    assert_eq!(take(&mut changes), ["a2", "b1"]);
    handle.insert("c", of(1));
    handle.remove(&"c");
    handle.remove(&"nobody");
    assert_eq!(take(&mut changes), [""; 0], "never told, never taken back");
    handle.remove(&"a");
    handle.insert("a", of(3));
    handle.remove(&"a");
    handle.insert("a", of(4));
    assert_eq!(take(&mut changes), ["-a", "a4"]);
    handle.insert("a", of(5));
    handle.remove(&"a");
    assert_eq!(take(&mut changes), ["-a"]);
    handle.insert("a", of(6));
    handle.remove(&"a");
    assert_eq!(take(&mut changes), [""; 0]);
}

#[test]
fn a_key_between_its_removal_and_its_return_can_be_removed_again() {
    let site = Site::new("a");
    let (handle, mut changes) = discover::channel();
    handle.insert("a", site.endpoint());
    assert_eq!(take(&mut changes), ["a1"]);
    handle.remove(&"a");
    handle.insert("a", site.endpoint());
    {
        let mut next = task::spawn(&mut changes);
        assert!(matches!(next.poll_next(), Poll::Ready(Some(Ok(Change::Remove("a"))))));
    }
    handle.remove(&"a");
    assert_eq!(take(&mut changes), [""; 0]);
    assert_eq!(site.instances(), 1);
}

#[test]
fn a_set_is_the_difference_to_what_was_told() {
    let site = Site::new("a");
    let (handle, mut changes) = discover::channel();
    let set = |names: &[&'static str]| {
        handle.set(names.iter().map(|&name| (name, site.endpoint())).collect::<Vec<_>>());
    };
    set(&["a", "b"]);
    assert_eq!(take(&mut changes), ["a1", "b1"]);
    set(&["b", "c"]);
    assert_eq!(take(&mut changes), ["-a", "b1", "c1"]);
    set(&["x"]);
    set(&["b", "c"]);
    let mut taken = take(&mut changes);
    taken.sort();
    assert_eq!(taken, ["-b", "-c", "b1", "c1"], "they had left in between");
    set(&[]);
    let mut taken = take(&mut changes);
    taken.sort();
    assert_eq!(taken, ["-b", "-c"]);
}

#[test]
fn members_of_a_channel_join_in_the_order_in_which_they_were_inserted() {
    let site = Site::new("a");
    let (handle, mut changes) = discover::channel();
    handle.set(["a", "b"].map(|name| (name, site.endpoint())));
    take(&mut changes);
    handle.remove(&"a");
    handle.insert("c", site.endpoint());
    handle.insert("a", site.endpoint());
    let taken = take(&mut changes);
    let place = |change: &str| taken.iter().position(|taken| taken == change).unwrap();
    assert!(place("c1") < place("a1"), "as if one by one: {taken:?}");
}

#[test]
fn a_channel_that_nobody_drains_stays_as_small_as_its_keys() {
    let site = Site::new("a");
    let (handle, changes) = discover::channel();
    for i in 0..100_000 {
        handle.insert(i, site.endpoint());
        handle.remove(&(i - 10));
    }
    assert_eq!(site.instances(), 11, "ten members and the test's own");
    assert_eq!(format!("{handle:?}"), "Handle { pending: 10, .. }");
    drop(changes);
    assert_eq!(site.instances(), 1);
    assert!(handle.is_closed());
    handle.insert(0, site.endpoint());
    assert_eq!(site.instances(), 1, "nobody listens");
}

#[test]
fn a_channel_ends_with_its_last_handle_and_after_its_last_change() {
    let site = Site::new("a");
    let (handle, changes) = discover::channel();
    let clone = handle.clone();
    let mut next = task::spawn(changes);
    assert!(next.poll_next().is_pending());
    clone.insert("a", site.endpoint());
    assert!(next.is_woken());
    drop(handle);
    assert!(matches!(next.poll_next(), Poll::Ready(Some(Ok(Change::Insert("a", _))))));
    assert!(next.poll_next().is_pending());
    clone.insert("b", site.endpoint());
    drop(clone);
    assert!(next.is_woken());
    assert!(matches!(next.poll_next(), Poll::Ready(Some(Ok(Change::Insert("b", _))))));
    assert!(matches!(next.poll_next(), Poll::Ready(None)));
}

#[tokio::test(start_paused = true)]
async fn clones_of_a_handle_change_one_set_from_anywhere() {
    let (handle, changes) = discover::channel();
    let balance = Balance::new(changes, BoxPolicy::<()>::new(ModuloRoundRobin::new()));
    let threads: Vec<_> = (0..4)
        .map(|i| {
            let (handle, site) = (handle.clone(), Site::new(name("s", i)));
            std::thread::spawn(move || {
                for _ in 0..100 {
                    handle.insert(name("k", i), site.endpoint());
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    settle().await;
    assert_eq!(balance.stats().counts.members, 4);
    drop(handle);
    settle().await;
    assert_eq!(balance.stats().discovery, Discovery::Ended);
}
