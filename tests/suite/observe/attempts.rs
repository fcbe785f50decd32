//! Errors and attempts name their endpoints.

use std::sync::Arc;

use counterpoise::{
    Attempts, Builder, Health, discover,
    error::ErrorKind,
    policy::{Picker, Policy, RoundRobin},
};
use tower::ServiceExt;

use crate::{
    probes::{Gate, Probe, call, for_each_policy},
    support::{Act, Broken, Sites, settle},
};

// ===== B116: who it was =====

#[tokio::test(start_paused = true)]
async fn b116_an_error_names_its_endpoint_and_keeps_its_cause() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let sites = Sites::new(&["a", "b"]);
        sites["b"].act(Act::Err);
        let list = sites.list(&["a", "b"]);
        let mut balance = Builder::new().starting_at(1).balance(list, policy).unwrap();
        settle().await;
        let error = call(&mut balance).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.endpoint()),
            (ErrorKind::Call, Some("b"))
        );
        assert_eq!(error.find::<Broken>().unwrap().0, "b");
        assert!(error.find::<std::fmt::Error>().is_none());
        assert!(error.to_string().contains("endpoint b"), "{error}");
        assert!(!error.is_unavailable() && !error.is_unsent());
        assert_eq!(error.counts(), counterpoise::error::Counts::default());
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b116_an_error_of_nobody_counts_what_there_was() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let sites = Sites::new(&["a", "b", "c"]);
        let (handle, changes) = discover::channel();
        handle.set([
            ("a", sites["a"].endpoint()),
            ("b", sites["b"].endpoint()),
            ("c", sites["c"].endpoint().weight(0)),
        ]);
        let health = Health::new()
            .consecutive_failures(1)
            .panic_mode(counterpoise::health::PanicMode::Fail);
        let builder = Builder::new().health(health);
        let mut balance = builder.balance(changes, policy).unwrap();
        settle().await;
        for name in ["a", "b"] {
            sites[name].act(Act::Err);
        }
        for _ in 0..2 {
            call(&mut balance).await.unwrap_err();
        }
        let error = call(&mut balance).await.unwrap_err();
        let counts = error.counts();
        assert_eq!((error.kind(), error.endpoint()), (ErrorKind::Ejected, None));
        assert_eq!(
            (
                counts.members,
                counts.ejected,
                counts.drained,
                counts.unready
            ),
            (3, 2, 1, 0)
        );
        assert!(
            error
                .to_string()
                .contains("3 members, 2 ejected, 1 drained, 0 not ready")
        );

        handle.set(["a", "b"].map(|name| (name, sites[name].endpoint().weight(0))));
        settle().await;
        let error = call(&mut balance).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.counts().drained),
            (ErrorKind::Drained, 2)
        );
        assert!(error.is_unavailable() && error.is_unsent());
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b116_attempts_tell_who_answered() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let sites = Sites::new(&["a", "b"]);
        let list = sites.list(&["a", "b"]);
        let balance = Builder::new().starting_at(0).balance(list, policy).unwrap();
        settle().await;
        for want in ["a", "b", "a"] {
            let attempts = Attempts::new();
            attempts.scope(balance.clone().oneshot(())).await.unwrap();
            assert_eq!(attempts.names(), [Arc::from(want)]);
        }
        let attempts = Attempts::new();
        attempts.scope(balance.clone().oneshot(())).await.unwrap();
        attempts.scope(balance.clone().oneshot(())).await.unwrap();
        let names = attempts.names();
        assert_eq!(names.len(), 2);
        assert_ne!(names[0], names[1], "the second prefers the other");
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b116_attempts_name_who_was_sent_to_and_not_who_was_not_ready() {
    let (a, b) = (
        Probe::gated("a", Gate::FailsOnce),
        Probe::gated("b", Gate::Open),
    );
    let list = discover::list([("a", a.endpoint()), ("b", b.endpoint())]);
    let balance = Builder::new()
        .starting_at(0)
        .balance(list, RoundRobin::new())
        .unwrap();
    settle().await;
    let attempts = Attempts::new();
    attempts.scope(balance.oneshot(())).await.unwrap();
    assert_eq!(attempts.names(), [Arc::from("b")]);
}
