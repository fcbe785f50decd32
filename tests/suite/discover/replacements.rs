//! Duplicates, removals and replacements.

use std::time::Duration;

use counterpoise::{
    Balance, Builder, discover,
    policy::{Picker, Policy, RoundRobin},
};
use tokio_test::task;
use tower::{Service, ServiceExt};

use crate::{
    probes::{answers, call, count, feed, for_each_policy, insert, remove},
    support::{Act, Answer, Site, Sites, settle},
};

// ===== B92, B93, B95: duplicates, removals, replacements =====

#[tokio::test(start_paused = true)]
async fn b92_a_key_is_one_member_with_the_latest_service_and_weight() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let (old, new, b) = (Site::new("old"), Site::new("new"), Site::new("b"));
        let (feed, changes) = feed();
        let mut balance = Builder::new()
            .starting_at(0)
            .balance(changes, policy)
            .unwrap();
        feed.unbounded_send(insert("a", old.endpoint().weight(2)))
            .unwrap();
        feed.unbounded_send(insert("a", new.endpoint().weight(3)))
            .unwrap();
        feed.unbounded_send(insert("b", b.endpoint())).unwrap();
        settle().await;
        assert_eq!(old.instances(), 1, "the former service is dropped");
        assert_eq!(balance.stats().endpoint("a").unwrap().weight, 3);
        let answers = answers(&mut balance, 100).await;
        assert_eq!(
            ["old", "new", "b"].map(|name| count(&answers, name)),
            [0, 50, 50]
        );
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b92_two_keys_of_one_service_are_two_members() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let (shared, b) = (Site::new("shared"), Site::new("b"));
        let endpoints = [
            ("a1", shared.endpoint()),
            ("a2", shared.endpoint()),
            ("b", b.endpoint()),
        ];
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
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let sites = Sites::new(&["a", "b"]);
        sites["b"].act(Act::After(Duration::from_secs(60)));
        let (handle, changes) = discover::channel();
        handle.set(["a", "b"].map(|name| (name, sites[name].endpoint())));
        let mut balance = Builder::new()
            .starting_at(1)
            .balance(changes, policy)
            .unwrap();
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
    assert_eq!(
        balance.stats().endpoint("a").unwrap().consecutive_failures,
        1
    );
    assert_eq!(answers(&mut balance, 2).await, ["new", "new"]);
    assert_eq!((old.calls(), old.instances()), (1, 1));
    assert_eq!(balance.stats().endpoint("a").unwrap().picks, 3);
}

#[tokio::test(start_paused = true)]
async fn b95_a_batch_that_replaces_everybody_has_no_empty_moment() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let sites = Sites::new(&["a", "b", "c", "d"]);
        let (feed, changes) = feed();
        let mut balance = Builder::new()
            .starting_at(0)
            .balance(changes, policy)
            .unwrap();
        for name in ["a", "b"] {
            feed.unbounded_send(insert(name, sites[name].endpoint()))
                .unwrap();
        }
        settle().await;
        assert_eq!(answers(&mut balance, 2).await, ["a", "b"]);
        let generation = balance.stats().generation;
        for name in ["a", "b"] {
            feed.unbounded_send(remove(name)).unwrap();
        }
        for name in ["c", "d"] {
            feed.unbounded_send(insert(name, sites[name].endpoint()))
                .unwrap();
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
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let sites = Sites::new(&["a", "b", "c", "d"]);
        let (feed, changes) = feed();
        let mut balance = Builder::new()
            .starting_at(0)
            .balance(changes, policy)
            .unwrap();
        let mut waiting = task::spawn(balance.ready().await.unwrap().call(()));
        assert!(waiting.poll().is_pending());
        for name in ["a", "b"] {
            feed.unbounded_send(insert(name, sites[name].endpoint()))
                .unwrap();
        }
        for change in [remove("a"), remove("b")] {
            feed.unbounded_send(change).unwrap();
        }
        for name in ["c", "d"] {
            feed.unbounded_send(insert(name, sites[name].endpoint()))
                .unwrap();
        }
        settle().await;
        assert_eq!(waiting.await.unwrap(), Answer::From("c"));
    }
    for_each_policy!(case);
}
