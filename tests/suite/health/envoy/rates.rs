//! Envoy's recorded judgements by rate, and ours by comparison with the peers.

use counterpoise::{Health, health::OutlierDetection};

use crate::{
    bed::MILLISECOND,
    health::envoy::timeline::{Ejection, Row, Timeline, rate_row, replayed_under, share},
};

/// Our settings for the same, but for the margin.
fn health(row: &Row, margin: f64) -> Health {
    let interval = row.time("interval") as u32 * MILLISECOND;
    let outliers = OutlierDetection::new().min_calls(20).margin(margin);
    row.health().interval(interval).outlier_detection(outliers)
}

async fn both(name: &str, margin: f64) -> (Timeline, Timeline) {
    let row = rate_row(name);
    (
        Timeline::recorded(&row),
        replayed_under(&row, health(&row, margin)).await,
    )
}

/// The host that fails every other call is the one that is out, from the first interval on.
fn assert_alike(envoy: &Timeline, ours: &Timeline) {
    let hosts = |timeline: &Timeline| {
        let hosts = timeline.ejections.iter().map(|out| out.host);
        hosts.collect::<Vec<_>>()
    };
    assert!(hosts(envoy).len() > 1 && hosts(envoy).iter().all(|&host| host == 0));
    assert!(hosts(ours).len() > 1 && hosts(ours).iter().all(|&host| host == 0));
    // Both were decided by the calls of the same interval.
    let (theirs, own) = (&envoy.ejections[0], &ours.ejections[0]);
    assert!(own.from.abs_diff(theirs.from) <= 8, "{theirs:?}, {own:?}");
    for out in &ours.ejections {
        // A call that went well may have come between its last failure and the judgement.
        assert!(share(ours.during(out), 0) <= 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_percentage_is_a_margin() {
    let (envoy, ours) = both("failure_percentage", 0.4).await;
    assert_alike(&envoy, &ours);
    let (envoy, ours) = both("failure_percentage_below", 0.4).await;
    assert_eq!((envoy.ejections.len(), ours.ejections.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_success_rate_below_the_mean_is_one_above_the_peers() {
    let (envoy, ours) = both("success_rate", 0.1).await;
    assert_alike(&envoy, &ours);
}

/// Without a threshold to set, one failure in four stands out among peers that have none.
#[tokio::test(start_paused = true)]
async fn differs_no_threshold_is_needed() {
    let (envoy, ours) = both("failure_percentage_below", 0.1).await;
    assert_eq!(envoy.ejections.len(), 0);
    assert!(ours.ejections.iter().all(|out| out.host == 0) && !ours.ejections.is_empty());
}

/// A trial that goes well by chance, one in two here, brings the host back sooner than Envoy's
/// timer, until the next judgement. More trials in a row do not.
#[tokio::test(start_paused = true)]
async fn differs_a_trial_may_go_well_by_chance() {
    for (name, margin) in [("failure_percentage", 0.4), ("success_rate", 0.1)] {
        let row = rate_row(name);
        let errors = async |health| replayed_under(&row, health).await.errors();
        let envoy = Timeline::recorded(&row).errors();
        let one = errors(health(&row, margin)).await;
        let three = errors(health(&row, margin).trial_successes(3)).await;
        assert!(one <= envoy + 2, "{name}: {one} {envoy}");
        assert!(5 * three <= 3 * envoy, "{name}: {three} {envoy}");
    }
}

/// Envoy waits for the tick after the period, in which the host may have been out twice as long;
/// ours is tried when it is over.
#[tokio::test(start_paused = true)]
async fn differs_the_period_ends_with_a_trial() {
    let (envoy, ours) = both("failure_percentage", 0.4).await;
    let first = |timeline: &Timeline| {
        timeline
            .ejections
            .first()
            .and_then(|out: &Ejection| out.lasted)
    };
    assert_eq!(first(&envoy), Some(4_000));
    assert_eq!(first(&ours), Some(2_000));
}
