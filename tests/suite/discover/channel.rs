//! The channel that a program feeds.

use std::task::Poll;

use counterpoise::{
    Balance, Builder, Direct, Health, discover,
    observe::{Discovery, EndpointState},
    policy::{BoxPolicy, ModuloRoundRobin, RoundRobin},
};
use tokio_test::task;
use tower::discover::Change;

use super::members;
use crate::{
    probes::{call, name},
    support::{Act, Site, Sites, settle},
};

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
    assert_eq!(
        balance.stats().endpoint("a").unwrap().state,
        EndpointState::Ejected
    );
    handle.remove(&"a");
    handle.insert("a", sites["a"].endpoint());
    settle().await;
    assert_eq!(members(&balance), ["b", "a"]);
    let stats = balance.stats();
    let a = stats.endpoint("a").unwrap();
    assert_eq!(
        (a.state, a.picks, a.ejections),
        (EndpointState::Serving, 0, 0)
    );
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
        assert!(matches!(
            next.poll_next(),
            Poll::Ready(Some(Ok(Change::Remove("a"))))
        ));
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
        handle.set(
            names
                .iter()
                .map(|&name| (name, site.endpoint()))
                .collect::<Vec<_>>(),
        );
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
    assert!(matches!(
        next.poll_next(),
        Poll::Ready(Some(Ok(Change::Insert("a", _))))
    ));
    assert!(next.poll_next().is_pending());
    clone.insert("b", site.endpoint());
    drop(clone);
    assert!(next.is_woken());
    assert!(matches!(
        next.poll_next(),
        Poll::Ready(Some(Ok(Change::Insert("b", _))))
    ));
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
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    settle().await;
    assert_eq!(balance.stats().counts.members, 4);
    drop(handle);
    settle().await;
    assert_eq!(balance.stats().discovery, Discovery::Ended);
}
