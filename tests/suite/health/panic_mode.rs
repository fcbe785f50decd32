//! What happens when too many endpoints are out.

use counterpoise::{error::ErrorKind, health::PanicMode, observe::EndpointState};
use futures::{FutureExt, future::join_all};
use tokio::time::advance;

use super::limits::{ejected, fail_all};
use crate::{
    bed::{Bed, SECOND, eject1, share},
    support::Act,
};

// ===== panic =====

#[tokio::test(start_paused = true)]
async fn a_success_in_panic_brings_the_endpoint_back_at_once() {
    let mut bed = Bed::new(&["a", "b", "c"], eject1()).await;
    fail_all(&mut bed).await;
    assert!(bed.balance.stats().panic);
    bed.sites["b"].act(Act::Ok);
    let route = bed.route(10).await;
    let (_, after) = route.split_once('b').unwrap();
    assert_eq!(
        after,
        "b".repeat(after.len()),
        "b alone is healthy: {route}"
    );
    assert!(after.len() >= 7);
    assert_eq!(ejected(&bed), ["a", "c"]);
    assert!(!bed.balance.stats().panic);
}

#[tokio::test(start_paused = true)]
async fn a_failure_in_panic_changes_no_period() {
    let mut bed = Bed::new(&["a", "b"], eject1()).await;
    fail_all(&mut bed).await;
    advance(4 * SECOND).await;
    bed.route(20).await;
    for name in ["a", "b"] {
        assert_eq!(
            (bed.stats(name).ejections, bed.stats(name).returns_in),
            (1, Some(6 * SECOND))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn below_the_threshold_health_is_ignored() {
    let names = ["a", "b", "c", "d"];
    let mut bed = Bed::new(&names, eject1().panic_below(0.5)).await;
    bed.eject("a").await;
    bed.eject("b").await;
    assert!(!bed.balance.stats().panic, "half is not below half");
    let route = bed.route(4).await;
    assert_eq!(names.map(|name| share(&route, name)), [0, 0, 2, 2]);
    bed.eject("c").await;
    assert!(bed.balance.stats().panic);
    // All at once, so that no success ends the panic in between.
    let calls: Vec<_> = (0..8).map(|_| bed.start()).collect();
    assert_eq!(names.map(|name| bed.stats(name).in_flight), [2; 4]);
    join_all(calls).await;
    assert!(!bed.balance.stats().panic);
    assert_eq!(
        names.map(|name| bed.state(name)),
        [EndpointState::Serving; 4]
    );
}

#[tokio::test(start_paused = true)]
async fn below_the_threshold_calls_fail_if_that_is_the_rule() {
    let names = ["a", "b", "c", "d"];
    let mut bed = Bed::new(
        &names,
        eject1().panic_below(0.5).panic_mode(PanicMode::Fail),
    )
    .await;
    for name in ["a", "b", "c"] {
        bed.eject(name).await;
    }
    let error = bed
        .start()
        .now_or_never()
        .expect("ends at once")
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.counts().ejected),
        (ErrorKind::Ejected, 3)
    );
    advance(10 * SECOND).await;
    assert_eq!(bed.route(3).await, "abc", "the trials still go out");
    assert_eq!(share(&bed.route(8).await, "d"), 2);
}
