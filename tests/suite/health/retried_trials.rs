//! A retry beside an endpoint that is due to be tried.

use std::time::Duration;

use counterpoise::{Attempts, Builder, Health, policy::RoundRobin};
use tokio::time::advance;
use tower::ServiceExt;

use crate::support::{Act, Answer, Sites};

#[tokio::test(start_paused = true)]
async fn a_retry_does_not_try_the_endpoint_that_just_failed_it() {
    let names = ["a", "b"];
    let sites = Sites::new(&names);
    sites["a"].act(Act::Err);
    let health = Health::new().consecutive_failures(1).jitter(0.0);
    let balance = Builder::new()
        .health(health.base_ejection(Duration::from_secs(1)))
        .starting_at(0)
        .balance(sites.list(&names), RoundRobin::new())
        .unwrap();
    let attempts = Attempts::new();
    attempts
        .scope(balance.clone().oneshot(()))
        .await
        .unwrap_err();
    // The pause before the retry is longer than the ejection.
    advance(Duration::from_secs(2)).await;
    let answer = attempts.scope(balance.clone().oneshot(())).await;
    assert_eq!(answer.unwrap(), Answer::From("b"));
    // The next request tries the endpoint.
    balance.oneshot(()).await.unwrap_err();
    assert_eq!(sites["a"].calls(), 2);
}
