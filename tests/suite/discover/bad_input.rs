//! Bad input from discovery is contained.

use counterpoise::{
    Builder, Health, discover,
    error::ErrorKind,
    observe::{Discovery, EndpointState},
    policy::{Picker, Policy, RoundRobin},
};

use crate::{
    probes::{Compiles, answers, call, count, for_each_policy},
    support::{Act, Sites, settle},
};

// ===== B50: bad input is contained =====

#[tokio::test(start_paused = true)]
async fn b50_a_policy_that_panics_once_is_reported_and_compiled_anew() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let sites = Sites::new(&["a", "b", "c", "d"]);
        let (handle, changes) = discover::channel();
        let policy = Compiles::panics_at(policy, 2);
        let mut balance = Builder::new()
            .starting_at(0)
            .balance(changes, policy)
            .unwrap();
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
    let mut balance = Builder::new()
        .starting_at(0)
        .balance(changes, policy)
        .unwrap();
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
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let sites = Sites::new(&["a", "b", "c", "d"]);
        let (handle, changes) = discover::channel();
        let mut balance = Builder::new()
            .starting_at(0)
            .balance(changes, policy)
            .unwrap();
        handle.set(["a", "b"].map(|name| (name, sites[name].endpoint())));
        settle().await;
        handle.insert("c", sites["c"].endpoint().weight(0));
        settle().await;
        assert_eq!(answers(&mut balance, 2).await, ["a", "b"]);
        handle.insert("d", sites["d"].endpoint().weight(u32::MAX));
        settle().await;
        let answers = answers(&mut balance, 300).await;
        assert_eq!(
            ["a", "b", "c", "d"].map(|name| count(&answers, name)),
            [100, 100, 0, 100]
        );
        assert_eq!(
            balance.stats().endpoint("c").unwrap().state,
            EndpointState::Drained
        );
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
