//! Endpoints that shed calls, and balancers that fail fast.

use std::time::Duration;

use counterpoise::{
    AttemptsLayer, Builder, Direct, Endpoint, Health, Outcome, discover,
    error::ErrorKind,
    health::PanicMode,
    observe::EndpointState,
    policy::{Picker, Policy, RoundRobin},
};
use tokio::time::advance;
use tower::{
    BoxError, ServiceBuilder, ServiceExt,
    limit::ConcurrencyLimit,
    load_shed::{LoadShed, error::Overloaded},
};

use crate::{
    probes::{Gate, answers, call, for_each_policy, over, probes, start},
    support::{Act, Answer, Site, Sites, retries::Retries, settle},
};

// ===== B110, B112 =====

#[tokio::test(start_paused = true)]
async fn b110_shed_load_is_an_outcome_like_any_other() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let sites = Sites::new(&["a", "b"]);
        let shed = |name| {
            let limited = ConcurrencyLimit::new(sites[name].clone(), 1);
            (name, Endpoint::new(Direct(LoadShed::new(limited))))
        };
        let list = discover::list([shed("a"), shed("b")]);
        let health = Health::new().consecutive_failures(3);
        let builder = Builder::new().starting_at(0).health(health);
        let balance = builder.balance(list, policy).unwrap();
        settle().await;
        sites["a"].act(Act::Hang);
        let mut held = start(&balance);
        assert!(held.poll().is_pending());
        let mut refused = 0;
        for _ in 0..20 {
            match call(&mut balance.clone()).await {
                Ok(answer) => assert_eq!(answer, Answer::From("b")),
                Err(error) => {
                    assert_eq!(error.endpoint(), Some("a"));
                    assert!(error.find::<Overloaded>().is_some());
                    refused += 1;
                }
            }
        }
        assert_eq!(refused, 3, "then it is out");
        assert_eq!((sites["a"].calls(), sites["b"].calls()), (1, 17));
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b110_shed_load_that_is_ignored_keeps_its_turns_and_the_retry_moves_on() {
    let sites = Sites::new(&["a", "b"]);
    let shed = |name| {
        let limited = ConcurrencyLimit::new(sites[name].clone(), 1);
        (name, Endpoint::new(Direct(LoadShed::new(limited))))
    };
    let list = discover::list([shed("a"), shed("b")]);
    let builder = Builder::new()
        .starting_at(0)
        .health(Health::new().consecutive_failures(1))
        .classify_fn(|result: Result<&Answer, &BoxError>| match result {
            Err(error) if error.is::<Overloaded>() => Outcome::Overload,
            Err(_) => Outcome::Failure,
            Ok(_) => Outcome::Success,
        });
    let balance = builder.balance(list, RoundRobin::new()).unwrap();
    settle().await;
    sites["a"].act(Act::Hang);
    let mut held = start(&balance);
    assert!(held.poll().is_pending());
    let stack = ServiceBuilder::new()
        .layer(AttemptsLayer::new())
        .retry(Retries::new(1))
        .service(balance.clone());
    for _ in 0..20 {
        assert_eq!(stack.clone().oneshot(()).await.unwrap(), Answer::From("b"));
    }
    let stats = balance.stats();
    let a = stats.endpoint("a").unwrap();
    assert_eq!((a.state, a.failures), (EndpointState::Serving, 0));
    assert!(a.overloads >= 10, "it keeps its turns");
    assert_eq!(sites["b"].calls(), 20);
}

#[tokio::test(start_paused = true)]
async fn b112_failing_fast_ends_with_the_first_endpoint_that_is_back() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let [a, b] = probes([Gate::Open, Gate::Open]);
        let minute = Duration::from_secs(60);
        let health = Health::new()
            .consecutive_failures(1)
            .base_ejection(minute)
            .jitter(0.0)
            .panic_mode(PanicMode::Fail);
        let mut balance = over(Builder::new().health(health), &[&a, &b], policy).await;
        for probe in [&a, &b] {
            probe.act(Act::Err);
            call(&mut balance).await.unwrap_err();
        }
        a.act(Act::Ok);
        for _ in 0..1_000 {
            let error = call(&mut balance).await.unwrap_err();
            assert_eq!(
                (error.kind(), error.counts().ejected),
                (ErrorKind::Ejected, 2)
            );
        }
        assert_eq!((a.calls(), b.calls()), (1, 1));
        advance(minute).await;
        assert_eq!(answers(&mut balance, 1).await, ["p1"]);
        assert_eq!(
            balance.stats().endpoint("0").unwrap().state,
            EndpointState::Serving
        );
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b112_failing_fast_ends_with_a_new_endpoint() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let site = Site::new("a");
        let (handle, changes) = discover::channel();
        let mut balance = Builder::new().balance(changes, policy).unwrap();
        handle.insert("a", site.endpoint());
        settle().await;
        handle.remove(&"a");
        settle().await;
        for _ in 0..1_000 {
            assert_eq!(
                call(&mut balance).await.unwrap_err().kind(),
                ErrorKind::Empty
            );
        }
        handle.insert("a", site.endpoint());
        settle().await;
        assert_eq!(answers(&mut balance, 1).await, ["a"]);
    }
    for_each_policy!(case);
}
