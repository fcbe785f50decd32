//! The empty set.

use std::{task::Poll, time::Duration};

use counterpoise::{
    Balance, Builder, Direct, discover,
    error::ErrorKind,
    observe::EndpointState,
    policy::{Picker, Policy, RoundRobin},
};
use tokio_test::task;
use tower::{Service, ServiceExt};

use super::members;
use crate::{
    probes::{Item, answers, call, feed, for_each_policy, insert, remove},
    support::{Act, Answer, Site, Sites, settle},
};

// ===== B88, B90: the empty set =====

#[tokio::test(start_paused = true)]
async fn b88_an_empty_set_fails_at_once_and_can_be_left() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let site = Site::new("a");
        let (handle, changes) = discover::channel();
        let mut balance = Builder::new()
            .starting_at(0)
            .balance(changes, policy)
            .unwrap();
        handle.insert("a", site.endpoint());
        settle().await;
        handle.remove(&"a");
        settle().await;
        let mut failing = task::spawn(balance.ready().await.unwrap().call(()));
        let Poll::Ready(Err(error)) = failing.poll() else {
            panic!("it waits or works")
        };
        assert_eq!(
            (error.kind(), error.counts().members),
            (ErrorKind::Empty, 0)
        );
        assert_eq!(error.to_string(), "there are no endpoints");
        handle.insert("a", site.endpoint());
        settle().await;
        assert_eq!(answers(&mut balance, 2).await, ["a", "a"]);
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b88_with_the_wait_policy_a_call_completes_when_an_endpoint_joins() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
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
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
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
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
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
        assert_eq!(
            call(&mut balance).await.unwrap_err().kind(),
            ErrorKind::Empty
        );
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b88_an_empty_list_is_an_error_and_no_hang() {
    let mut balance = Balance::new(Sites::new(&[]).list(&[]), RoundRobin::new());
    settle().await;
    let mut failing = task::spawn(balance.ready().await.unwrap().call(()));
    let Poll::Ready(Err(error)) = failing.poll() else {
        panic!("it waits or works")
    };
    assert_eq!(error.kind(), ErrorKind::DiscoveryEnded);
}

#[tokio::test(start_paused = true)]
async fn b90_the_last_endpoint_can_be_removed() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
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
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let sites = Sites::new(&["a", "b", "c"]);
        let (handle, changes) = discover::channel();
        let builder = Builder::new().starting_at(0).keep_last(true);
        let mut balance = builder.balance(changes, policy).unwrap();
        handle.set(["a", "b"].map(|name| (name, sites[name].endpoint())));
        settle().await;
        handle.set([]);
        settle().await;
        assert_eq!(answers(&mut balance, 4).await, ["a", "b", "a", "b"]);
        let states: Vec<_> = balance
            .stats()
            .endpoints
            .iter()
            .map(|one| one.state)
            .collect();
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
    assert_eq!(
        (stats.endpoints[0].picks, stats.endpoints[0].state),
        (0, EndpointState::Serving)
    );
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
