//! Former endpoints leave nothing behind.

use std::{sync::Arc, task::Poll, time::Duration};

use counterpoise::{
    Balance, Builder, discover,
    policy::{Picker, Policy, RoundRobin},
};
use tokio_test::task;
use tower::{Service, ServiceExt, discover::Change};

use crate::{
    probes::{Item, answers, call, feed, for_each_policy, insert, remove},
    support::{Act, Broken, Site, Sites, settle},
};

// ===== B113: state of former endpoints =====

/// A key that knows how many of its kind live.
#[derive(Debug)]
struct Counted(u32, Arc<()>);

impl Clone for Counted {
    fn clone(&self) -> Self {
        Self(self.0, Arc::clone(&self.1))
    }
}

impl PartialEq for Counted {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Counted {}

impl std::hash::Hash for Counted {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl std::fmt::Display for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[tokio::test(start_paused = true)]
async fn b113_a_hundred_thousand_former_endpoints_leave_nothing_behind() {
    let (site, alive) = (Site::new("a"), Arc::new(()));
    let (sender, changes) = futures::channel::mpsc::unbounded::<Result<_, Broken>>();
    let mut balance = Builder::new()
        .starting_at(0)
        .balance(changes, RoundRobin::new())
        .unwrap();
    let key = |number| Counted(number, Arc::clone(&alive));
    for round in 0..10_000_u32 {
        for number in 10 * round..10 * round + 10 {
            if let Some(former) = number.checked_sub(10) {
                sender
                    .unbounded_send(Ok(Change::Remove(key(former))))
                    .unwrap();
            }
            sender
                .unbounded_send(Ok(Change::Insert(key(number), site.endpoint())))
                .unwrap();
        }
        balance.ready_when(1).await.unwrap();
        tokio::task::yield_now().await;
        for _ in 0..10 {
            call(&mut balance).await.unwrap();
        }
    }
    settle().await;
    let stats = balance.stats();
    assert_eq!(stats.endpoints.len(), 10);
    assert!(
        stats
            .endpoints
            .iter()
            .all(|endpoint| endpoint.in_flight == 0)
    );
    assert_eq!(site.calls(), 100_000);
    assert_eq!(site.instances(), 11, "ten members and the test's own");
    assert_eq!(Arc::strong_count(&alive), 11, "ten keys and the test's own");
}

#[tokio::test(start_paused = true)]
async fn b113_an_idle_clone_keeps_no_removed_endpoint_alive() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let sites = Sites::new(&["a", "b"]);
        let (handle, changes) = discover::channel();
        handle.set(["a", "b"].map(|name| (name, sites[name].endpoint())));
        let mut balance = Builder::new().balance(changes, policy).unwrap();
        settle().await;
        answers(&mut balance, 4).await;
        let idle = balance.clone();
        handle.remove(&"a");
        settle().await;
        assert_eq!(sites["a"].instances(), 1);
        drop((balance, idle));
    }
    for_each_policy!(case);
}

// ===== services live as long as they are needed =====

#[tokio::test(start_paused = true)]
async fn a_former_service_is_dropped_when_its_last_call_ends() {
    let (old, new) = (Site::new("old"), Site::new("new"));
    old.act(Act::After(Duration::from_secs(1)));
    let (feed, changes) = feed();
    let send = |item: Item<_>| feed.unbounded_send(item).unwrap();
    send(insert("a", old.endpoint()));
    let mut balance = Balance::new(changes, RoundRobin::new());
    settle().await;
    let mut running = task::spawn(balance.ready().await.unwrap().call(()));
    assert!(matches!(running.poll(), Poll::Pending));
    send(insert("a", new.endpoint()));
    settle().await;
    assert_eq!(balance.stats().endpoint("a").unwrap().in_flight, 1);
    running.await.unwrap();
    let stats = balance.stats();
    let node = stats.endpoint("a").unwrap();
    assert_eq!((node.in_flight, node.successes, old.instances()), (0, 1, 1));
    send(remove("a"));
    settle().await;
    assert_eq!(new.instances(), 1);
}
