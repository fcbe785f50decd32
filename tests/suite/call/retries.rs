//! Retries: they go to another endpoint.

use std::task::Poll;

use counterpoise::{
    Attempts, AttemptsLayer, Builder, Health,
    policy::{Picker, Policy, RoundRobin},
};
use tower::{ServiceBuilder, ServiceExt};

use crate::{
    probes::{Gate, call, for_each_policy, over, probes, start},
    support::{Act, Answer, retries::Retries},
};

// ===== B108: retries =====

#[tokio::test(start_paused = true)]
async fn b108_no_retry_goes_to_the_endpoint_that_failed_it() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let [a, b] = probes([Gate::Open, Gate::Open]);
        let builder = Builder::new().health(Health::off());
        let balance = over(builder, &[&a, &b], policy).await;
        let stack = ServiceBuilder::new()
            .layer(AttemptsLayer::new())
            .retry(Retries::new(1))
            .service(balance.clone());
        for round in 0..100 {
            for probe in [&a, &b] {
                probe.act(Act::Err);
            }
            let before = a.calls();
            let mut first = start(&stack);
            let other = if a.calls() > before { "p2" } else { "p1" };
            for probe in [&a, &b] {
                probe.act(Act::Ok);
            }
            assert_eq!(
                start(&balance).await.unwrap(),
                Answer::From(other),
                "in between"
            );
            let Poll::Ready(Ok(retried)) = first.poll() else {
                panic!("not retried")
            };
            assert_eq!(retried, Answer::From(other));
            if round % 2 == 0 {
                // So that the next round fails at the other.
                call(&mut balance.clone()).await.unwrap();
            }
        }
        assert_eq!((a.calls(), b.calls()), (175, 175));
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b108_with_nobody_else_the_retry_goes_to_the_same() {
    let [a] = probes([Gate::Open]);
    a.act(Act::Err);
    let builder = Builder::new().health(Health::off());
    let balance = over(builder, &[&a], RoundRobin::new()).await;
    let stack = ServiceBuilder::new()
        .layer(AttemptsLayer::new())
        .retry(Retries::new(2))
        .service(balance);
    stack.oneshot(()).await.unwrap_err();
    assert_eq!(a.calls(), 3, "a preference, not a ban");
}

#[tokio::test(start_paused = true)]
async fn b108_each_of_many_retries_goes_to_another() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let all = probes([Gate::Open; 7]);
        all.iter().for_each(|probe| probe.act(Act::Err));
        let refs: Vec<_> = all.iter().collect();
        let builder = Builder::new().health(Health::off());
        let balance = over(builder, &refs, policy).await;
        for round in 1..=20 {
            let attempts = Attempts::new();
            let retry = ServiceBuilder::new()
                .retry(Retries::new(6))
                .service(balance.clone());
            attempts.scope(retry.oneshot(())).await.unwrap_err();
            let mut names: Vec<_> = attempts.names().iter().map(ToString::to_string).collect();
            names.sort();
            assert_eq!(names, ["0", "1", "2", "3", "4", "5", "6"]);
            assert!(all.iter().all(|probe| probe.calls() == round));
        }
    }
    for_each_policy!(case);
}
