//! The first update, seen by calls that come while it is being applied.

use std::{
    sync::{Mutex, mpsc},
    thread,
};

use counterpoise::{
    BalanceLayer,
    policy::{Members, Policy},
};
use futures::executor::block_on;
use tokio_test::{assert_pending, task};
use tower::{Layer, ServiceExt};

use crate::support::{Answer, Rotation, Sites};

/// Compiles only when it is allowed to.
struct Slow {
    begun: Mutex<mpsc::Sender<()>>,
    go: Mutex<mpsc::Receiver<()>>,
}

impl Policy for Slow {
    type Picker = Rotation;

    fn build(&self, members: &Members<'_>, _previous: Option<&Rotation>) -> Rotation {
        if !members.is_empty() {
            self.begun.lock().unwrap().send(()).unwrap();
            self.go.lock().unwrap().recv().unwrap();
        }
        Rotation
    }
}

#[test]
fn a_call_waits_while_the_first_update_is_being_applied() {
    let names = ["a"];
    let sites = Sites::new(&names);
    let (begin, begun) = mpsc::channel();
    let (allow, go) = mpsc::channel();
    let policy = Slow {
        begun: Mutex::new(begin),
        go: Mutex::new(go),
    };
    let (layer, driver) = BalanceLayer::pair(sites.list(&names), policy);
    let balance = layer.layer(());
    let driver = thread::spawn(|| block_on(driver));
    begun.recv().unwrap();
    // The update is known, and what it brings is not published yet.
    let mut call = task::spawn(balance.oneshot(()));
    let first = call.poll();
    allow.send(()).unwrap();
    driver.join().unwrap();
    assert_pending!(first);
    assert!(call.is_woken());
    assert_eq!(block_on(call.into_inner()).unwrap(), Answer::From("a"));
}

/// Looks for calls that fall between two steps of the first update.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_at_the_very_start_find_the_endpoints() {
    let names = ["a", "b", "c"];
    for round in 0..1_000 {
        let sites = Sites::new(&names);
        let layer = BalanceLayer::new(sites.list(&names), counterpoise::policy::RoundRobin::new());
        let waits = layer.clone();
        let ready = tokio::spawn(async move { waits.ready_when(3).await });
        for _ in 0..4 {
            layer
                .layer(())
                .oneshot(())
                .await
                .unwrap_or_else(|e| panic!("round {round}: {e}"));
        }
        ready
            .await
            .unwrap()
            .unwrap_or_else(|e| panic!("round {round}: {e}"));
    }
}
