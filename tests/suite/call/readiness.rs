//! Readiness: it belongs to one instance, its errors are failures, and a timeout covers it.

use std::{task::Poll, time::Duration};

use counterpoise::{
    AttemptsLayer, Balance, Builder, Direct, Endpoint, Health, discover,
    error::ErrorKind,
    observe::EndpointState,
    policy::{Picker, Policy, RoundRobin},
};
use tokio::time::{Instant, advance};
use tokio_test::task;
use tower::{
    Service, ServiceBuilder, ServiceExt, limit::ConcurrencyLimit, service_fn,
    timeout::error::Elapsed,
};

use crate::{
    probes::{Gate, answers, call, count, for_each_policy, over, probes, start},
    support::{Act, Answer, Broken, Site, retries::Retries, settle},
};

// ===== B98: readiness belongs to one instance =====

#[tokio::test(start_paused = true)]
async fn b98_every_call_is_on_the_instance_that_was_made_ready() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let [a, b] = probes([Gate::Open, Gate::Open]);
        b.act(Act::Err);
        let builder = Builder::new().health(Health::off());
        let balance = over(builder, &[&a, &b], policy).await;
        for _ in 0..1_000 {
            let stack = ServiceBuilder::new()
                .retry(Retries::new(1))
                .service(balance.clone());
            let _ = call(&mut { stack }).await;
        }
        let stats = balance.stats();
        let picks = |name| stats.endpoint(name).unwrap().picks as usize;
        assert_eq!(
            (a.polls(), a.calls()),
            (picks("0"), picks("0")),
            "one ready per call"
        );
        assert_eq!(
            (b.polls(), b.calls()),
            (picks("1"), picks("1")),
            "one ready per call"
        );
        // a, then b and the retry at a, again and again: each attempt takes the next turn.
        assert_eq!((a.calls(), b.calls()), (1_000, 999));
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn clones_carry_no_readiness() {
    let [a] = probes([Gate::Open]);
    let mut balance = over(Builder::new(), &[&a], RoundRobin::new()).await;
    let ready = balance.ready().await.unwrap();
    let mut clone = ready.clone();
    assert_eq!(a.polls(), 0, "ready reserves nothing");
    assert_eq!(ready.call(()).await.unwrap(), Answer::From("p1"));
    assert_eq!(
        clone.ready().await.unwrap().call(()).await.unwrap(),
        Answer::From("p1")
    );
    assert_eq!((a.polls(), a.calls()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn ready_reserves_nothing_and_never_fails() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let limited = service_fn(async |()| Ok::<_, Broken>(Answer::From("limited")));
        let limited = ConcurrencyLimit::new(limited, 1);
        let list = discover::list([("a", Endpoint::new(Direct(limited)))]);
        let balance = Builder::new().balance(list, policy).unwrap();
        settle().await;
        let mut idle = vec![balance.clone(); 100];
        for clone in &mut idle {
            let ready = task::spawn(clone.ready()).poll().is_ready();
            assert!(ready);
        }
        // A hundred clones that are ready and do not call starve nobody.
        assert!(matches!(start(&balance).poll(), Poll::Ready(Ok(_))));
    }
    for_each_policy!(case);
    let (_handle, changes) = discover::channel::<&str, Direct<Site>>();
    let mut empty = Balance::new(changes, RoundRobin::new());
    assert!(matches!(
        task::spawn(empty.ready()).poll(),
        Poll::Ready(Ok(_))
    ));
}

// ===== B105, B106: readiness and health =====

#[tokio::test(start_paused = true)]
async fn b105_a_readiness_error_is_a_failure_and_no_removal() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let [a, b] = probes([Gate::Open, Gate::FailsOnce]);
        let health = Health::new().consecutive_failures(1).jitter(0.0);
        let mut balance = over(Builder::new().health(health), &[&a, &b], policy).await;
        assert_eq!(answers(&mut balance, 10).await, ["p1"; 10]);
        let stats = balance.stats();
        let node = stats.endpoint("1").unwrap();
        assert_eq!(
            (node.state, node.failures, node.ejections),
            (EndpointState::Ejected, 1, 1)
        );
        assert_eq!(
            (stats.counts.members, stats.counts.ejected, b.polls()),
            (2, 1, 1)
        );
        advance(Duration::from_secs(10)).await;
        assert_eq!(answers(&mut balance, 1).await, ["p2"], "the trial");
        assert_eq!(count(&answers(&mut balance, 10).await, "p2"), 5);
        assert_eq!(
            balance.stats().endpoint("1").unwrap().state,
            EndpointState::Serving
        );
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b105_when_nobody_becomes_ready_the_error_names_the_last() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let [a, b] = probes([Gate::Fails, Gate::Fails]);
        let mut balance = over(Builder::new(), &[&a, &b], policy).await;
        let error = call(&mut balance).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.endpoint()),
            (ErrorKind::ReadyFailed, Some("1"))
        );
        assert_eq!(error.find::<Broken>().unwrap().0, "p2");
        assert!(error.is_unsent() && error.is_unavailable());
        assert_eq!(
            (a.polls(), b.polls()),
            (1, 1),
            "each is asked once for one call"
        );
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b106_health_is_judged_by_outcomes_and_not_by_readiness() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let [a, b] = probes([Gate::Open, Gate::Open]);
        a.act(Act::Err);
        let health = Health::new().consecutive_failures(3).jitter(0.0);
        let balance = over(Builder::new().health(health), &[&a, &b], policy).await;
        let stack = ServiceBuilder::new()
            .layer(AttemptsLayer::new())
            .retry(Retries::new(1))
            .service(balance.clone());
        let call_all = async || {
            for _ in 0..100 {
                call(&mut stack.clone()).await.unwrap();
            }
        };
        call_all().await;
        assert_eq!(a.calls(), 3);
        advance(Duration::from_secs(10)).await;
        call_all().await;
        assert_eq!(a.calls(), 4, "one trial in the next period");
        a.act(Act::Ok);
        advance(Duration::from_secs(20)).await;
        call_all().await;
        assert_eq!(a.calls(), 4 + 1 + 50 - 1 + usize::from(a.calls() > 54));
        assert_eq!(
            balance.stats().endpoint("0").unwrap().state,
            EndpointState::Serving
        );
    }
    for_each_policy!(case);
}

// ===== B107: timeouts =====

#[tokio::test(start_paused = true)]
async fn b107_a_timeout_above_covers_the_wait() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let [a, b] = probes([Gate::Shut, Gate::Shut]);
        let balance = over(Builder::new(), &[&a, &b], policy).await;
        let second = Duration::from_secs(1);
        let stack = ServiceBuilder::new()
            .timeout(second)
            .service(balance.clone());
        let start = Instant::now();
        let error = stack.oneshot(()).await.unwrap_err();
        assert!(error.is::<Elapsed>());
        assert_eq!(start.elapsed(), second);
        assert_eq!(balance.stats().waiting, 0);
        let (a, b) = (a.instances(), b.instances());
        assert_eq!((a, b), (2, 2), "no service is left behind");
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b107_without_a_timeout_the_crates_own_patience_ends_the_wait() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let [a, b, c] = probes([Gate::Shut, Gate::Shut, Gate::Shut]);
        let mut balance = over(Builder::new(), &[&a, &b, &c], policy).await;
        let start = Instant::now();
        let error = call(&mut balance).await.unwrap_err();
        assert_eq!(start.elapsed(), Duration::from_secs(30));
        assert_eq!(
            (error.kind(), error.counts().unready),
            (ErrorKind::ReadyTimeout, 3)
        );
        assert_eq!(error.counts().members, 3);
    }
    for_each_policy!(case);
}
