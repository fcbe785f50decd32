//! Health belongs to a key for as long as that is a member.

use counterpoise::observe::EndpointState;
use tokio::time::advance;

use super::ejection::play;
use crate::{
    bed::{Bed, MILLISECOND, SECOND, eject1, eject3, share},
    support::{Act, Site, settle},
};

// ===== discovery =====

#[tokio::test(start_paused = true)]
async fn b71_announcing_again_forgets_no_ejection() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.eject("b").await;
    let old = bed.calls("b");
    advance(2 * SECOND).await;
    let new = Site::new("new");
    bed.handle.insert("b", new.endpoint());
    settle().await;
    assert_eq!(bed.state("b"), EndpointState::Ejected);
    assert_eq!(bed.stats("b").returns_in, Some(8 * SECOND));
    advance(8 * SECOND - MILLISECOND).await;
    assert_eq!(bed.route(10).await, "a".repeat(10));
    advance(MILLISECOND).await;
    assert_eq!(bed.route(1).await, "new", "the new service is tried");
    assert_eq!((bed.calls("b"), new.calls()), (old, 1));
    assert_eq!(bed.state("b"), EndpointState::Serving);
}

#[tokio::test(start_paused = true)]
async fn b71_leaving_and_joining_all_the_time_is_not_unhealthy() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    for _ in 0..100 {
        bed.handle.remove(&"b");
        bed.announce("b", 1).await;
        assert_eq!(bed.state("b"), EndpointState::Serving);
        assert_eq!(bed.route(2).await.replace("ba", "ab"), "ab");
        advance(500 * MILLISECOND).await;
    }
    assert_eq!(["a", "b"].map(|name| bed.calls(name)), [100, 100]);
}

#[tokio::test(start_paused = true)]
async fn b71_removal_ends_an_ejection() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.eject("b").await;
    bed.remove("b").await;
    bed.announce("b", 1).await;
    let stats = bed.stats("b");
    assert_eq!(
        (stats.state, stats.ejections, stats.picks),
        (EndpointState::Serving, 0, 0)
    );
    assert_eq!(share(&bed.route(10).await, "b"), 5);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_weight_forgets_neither_ejection_nor_count() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.eject("b").await;
    advance(2 * SECOND).await;
    bed.announce("b", 5).await;
    assert_eq!(bed.stats("b").returns_in, Some(8 * SECOND));
    bed.sites["a"].act(Act::Err);
    bed.route(2).await;
    bed.announce("a", 7).await;
    assert_eq!(bed.stats("a").consecutive_failures, 2);
    bed.route(1).await;
    assert_eq!(bed.state("a"), EndpointState::Ejected);
}

#[tokio::test(start_paused = true)]
async fn a_call_reports_to_its_endpoint_even_if_that_was_announced_again() {
    let mut bed = Bed::new(&["a", "b"], eject1()).await;
    bed.sites["a"].act(Act::FailAfter(SECOND));
    let call = bed.start();
    bed.handle.insert("a", Site::new("new").endpoint());
    settle().await;
    assert_eq!(bed.stats("a").in_flight, 1);
    assert!(call.await.is_err());
    assert_eq!(
        (bed.stats("a").in_flight, bed.state("a")),
        (0, EndpointState::Ejected)
    );
}

#[tokio::test(start_paused = true)]
async fn a_drained_endpoint_keeps_its_count() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    play(&mut bed, &[Act::Err, Act::Err]).await;
    bed.announce("a", 0).await;
    assert_eq!(bed.route(6).await, "bbbbbb");
    bed.announce("a", 1).await;
    assert_eq!(bed.stats("a").consecutive_failures, 2);
    bed.route(2).await;
    assert_eq!(bed.state("a"), EndpointState::Ejected);
}
