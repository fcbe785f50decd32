//! The driver: how long it lives, and balancers outside a runtime.

use std::time::Duration;

use counterpoise::{
    Balance, BalanceLayer, Builder, discover,
    observe::Discovery,
    policy::{Picker, Policy, RoundRobin},
};
use tower::{Layer, Service, ServiceExt};

use crate::{
    probes::{answers, call, for_each_policy},
    support::{Act, Answer, Site, Sites, settle},
};

// ===== B115: background work =====

fn tasks() -> usize {
    tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks()
}

#[tokio::test(start_paused = true)]
async fn b115_a_thousand_balancers_leave_no_task_behind() {
    async fn case<P: Policy<Picker: Picker<()>> + Default>() {
        let (site, before) = (Site::new("a"), tasks());
        for _ in 0..1_000 {
            let (handle, changes) = discover::channel();
            handle.insert("a", site.endpoint());
            let mut balance = Builder::new().balance(changes, P::default()).unwrap();
            assert_eq!(answers(&mut balance, 1).await, ["a"]);
            assert_eq!(tasks(), before + 1);
            drop(balance);
            settle().await;
            assert_eq!(tasks(), before);
            assert!(handle.is_closed(), "the stream is dropped");
        }
        assert_eq!(site.instances(), 1, "all services are dropped");
    }
    case::<RoundRobin>().await;
    case::<counterpoise::policy::ModuloRoundRobin>().await;
}

#[tokio::test(start_paused = true)]
async fn b115_calls_in_flight_outlive_the_last_balancer() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let site = Site::new("a");
        site.act(Act::After(Duration::from_secs(1)));
        let (handle, changes) = discover::channel();
        handle.insert("a", site.endpoint());
        let mut balance = Builder::new().balance(changes, policy).unwrap();
        settle().await;
        let ok = balance.ready().await.unwrap().call(());
        let dropped = balance.ready().await.unwrap().call(());
        drop(balance);
        settle().await;
        assert_eq!((tasks(), site.instances()), (0, 1));
        assert!(handle.is_closed());
        assert_eq!(ok.await.unwrap(), Answer::From("a"));
        drop(dropped);
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b115_a_waiting_call_keeps_discovery_going_until_it_is_served() {
    let site = Site::new("a");
    let (handle, changes) = discover::channel();
    let waiting = tokio::spawn(Balance::new(changes, RoundRobin::new()).oneshot(()));
    settle().await;
    assert_eq!(tasks(), 2);
    handle.insert("a", site.endpoint());
    assert_eq!(waiting.await.unwrap().unwrap(), Answer::From("a"));
    settle().await;
    assert_eq!((tasks(), site.instances()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn b115_a_layer_alone_keeps_the_set_and_its_last_drop_ends_it() {
    let site = Site::new("a");
    let (handle, changes) = discover::channel();
    handle.insert("a", site.endpoint());
    let layer = BalanceLayer::new(changes, RoundRobin::new());
    drop::<Balance<_, _, _>>(layer.layer(()));
    settle().await;
    assert_eq!((tasks(), site.instances()), (1, 2));
    drop(layer);
    settle().await;
    assert_eq!((tasks(), site.instances()), (0, 1));
}

// ===== outside a runtime =====

#[test]
fn a_balancer_made_outside_a_runtime_starts_with_its_first_call() {
    let site = Site::new("a");
    let (handle, changes) = discover::channel();
    handle.insert("a", site.endpoint());
    let layer = BalanceLayer::new(changes, RoundRobin::new());
    let mut balance: Balance<_, _, _> = layer.layer(());
    assert_eq!(layer.stats().discovery, Discovery::Starting);
    let mut early = balance.clone();
    let call_outside = early.call(());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        assert_eq!(tasks(), 0, "nothing has been called here yet");
        assert_eq!(call_outside.await.unwrap(), Answer::From("a"));
        assert_eq!(answers(&mut balance, 1).await, ["a"]);
        assert_eq!(tasks(), 1);
    });
    drop(runtime);
    assert_eq!(
        layer.stats().discovery,
        Discovery::Stopped,
        "its task has died with the runtime"
    );
    assert!(handle.is_closed());
    assert_eq!(
        futures::executor::block_on(call(&mut balance)).unwrap(),
        Answer::From("a")
    );
}

#[test]
fn a_balancer_made_outside_a_runtime_and_never_used_frees_everything() {
    let site = Site::new("a");
    let (handle, changes) = discover::channel();
    handle.insert("a", site.endpoint());
    let balance = Balance::new(changes, RoundRobin::new());
    assert!(!handle.is_closed());
    drop(balance);
    assert!(handle.is_closed());
    assert_eq!(site.instances(), 1);
}

#[test]
fn ready_when_starts_the_driver_too() {
    let sites = Sites::new(&["a", "b"]);
    let balance = Balance::new(sites.list(&["a", "b"]), RoundRobin::new());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(balance.ready_when(2)).unwrap();
}
