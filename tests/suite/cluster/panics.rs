//! A policy that panics while it compiles costs nothing but that snapshot.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use counterpoise::{
    Builder, discover,
    policy::{Members, Policy},
};
use tokio::time::advance;
use tower::{Service, ServiceExt};

use crate::{
    bed::{MILLISECOND, SECOND, eject1},
    health::limits::failing,
    support::{Act, Answer, Rotation, Sites, settle},
};

/// Round robin that panics while it compiles, if it is told to.
#[derive(Clone, Default)]
struct Panicking(Arc<AtomicBool>);

impl Policy for Panicking {
    type Picker = Rotation;

    fn build(&self, _members: &Members<'_>, _previous: Option<&Rotation>) -> Rotation {
        assert!(!self.0.load(Ordering::Relaxed), "as it was told to");
        Rotation
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_panics_is_not_asked_again_before_the_next_change() {
    let (fails, policy) = (Arc::new(AtomicBool::new(true)), Panicking::default());
    let builder = Builder::new().health(eject1()).starting_at(0);
    let mut balance = builder
        .balance(failing(300, &fails), policy.clone())
        .unwrap();
    balance.ready().await.unwrap().call(()).await.unwrap_err();
    fails.store(false, Ordering::Relaxed);
    policy.0.store(true, Ordering::Relaxed);
    advance(10 * MILLISECOND).await;
    for _ in 0..10 {
        balance.ready().await.unwrap().call(()).await.unwrap();
    }
    assert_eq!(balance.stats().policy_panics, 1);
    policy.0.store(false, Ordering::Relaxed);
    advance(10 * SECOND).await;
    balance.ready().await.unwrap().call(()).await.unwrap();
    advance(10 * MILLISECOND).await;
    balance.ready().await.unwrap().call(()).await.unwrap();
    assert_eq!(balance.stats().counts.ejected, 0);
    assert_eq!(balance.stats().policy_panics, 1);
}

#[tokio::test(start_paused = true)]
async fn members_that_could_not_be_published_are_so_with_the_next_change_of_any_kind() {
    let (sites, policy) = (Sites::new(&["a", "b", "c", "d"]), Panicking::default());
    let (handle, changes) = discover::channel();
    for name in ["a", "b", "c"] {
        handle.insert(name, sites[name].endpoint());
    }
    let builder = Builder::new().health(eject1()).starting_at(0);
    let mut balance = builder.balance(changes, policy.clone()).unwrap();
    settle().await;
    policy.0.store(true, Ordering::Relaxed);
    handle.remove(&"a");
    handle.insert("d", sites["d"].endpoint());
    settle().await;
    policy.0.store(false, Ordering::Relaxed);
    assert_eq!(balance.stats().policy_panics, 1);
    sites["b"].act(Act::Err);
    while balance.stats().counts.ejected == 0 {
        let _ = balance.ready().await.unwrap().call(()).await;
    }
    let mut answers = Vec::new();
    for _ in 0..10 {
        answers.push(balance.ready().await.unwrap().call(()).await.unwrap());
    }
    let from = |name| {
        answers
            .iter()
            .filter(|answer| **answer == Answer::From(name))
            .count()
    };
    assert_eq!(["a", "b", "c", "d"].map(from), [0, 0, 5, 5]);
}
