//! Looking changes nothing: of two balancers with one seed, one is looked at all the time.

use std::any::type_name;

use counterpoise::{
    Builder, Health,
    call::AtHead,
    health::{LatencyWeights, OutlierDetection, SlowStart},
    policy::{Picker, Policy},
};
use futures::join;
use tokio::time::advance;

use crate::{
    bed::{MILLISECOND, SECOND},
    fleet::{Fleet, Job, Push},
    support::Act,
};

const SET: [(&str, u32); 4] = [("a", 1), ("b", 2), ("c", 1), ("d", 3)];

fn health() -> Health {
    let health = Health::new()
        .consecutive_failures(2)
        .base_ejection(2 * SECOND);
    health.slow_start(SlowStart::new(3 * SECOND))
}

fn builder(health: Health) -> Builder<AtHead<Push>> {
    Builder::new()
        .health(health)
        .seed(11)
        .starting_at(4)
        .classify(Push(None))
}

async fn unmoved<P: Policy<Picker: Picker<Job>>>(
    policy: impl Fn() -> P,
    health: Health,
    looks: u32,
) {
    let mut seen = Fleet::with(builder(health.clone()), policy(), &SET[..3]).await;
    let mut unseen = Fleet::with(builder(health), policy(), &SET[..3]).await;
    for step in 0..600 {
        if step == 100 {
            seen.join("d", 3).await;
            unseen.join("d", 3).await;
        }
        act_all(&seen, &unseen, step);
        let (one, other) = join!(seen.route(1), unseen.route(1));
        assert_eq!(one, other, "{} in step {step}", type_name::<P>());
        for _ in 0..looks {
            advance((7 + step % 13) * 4 * MILLISECOND / looks).await;
            let _ = seen.balance.stats().to_string();
        }
    }
}

/// What the endpoints do, by the step.
fn act_all<P: Policy<Picker: Picker<Job>>>(seen: &Fleet<P>, unseen: &Fleet<P>, step: u32) {
    let joined = if step < 100 { 3 } else { 4 };
    let acts = [
        Act::Ok,
        Act::After(MILLISECOND),
        Act::Err,
        Act::Ok,
        Act::Reject,
        Act::Ok,
    ];
    for (at, (name, _)) in (0..).zip(SET).take(joined) {
        let act = acts[(step / (7 + 3 * at) + at) as usize % acts.len()];
        seen.act(name, act);
        unseen.act(name, act);
    }
}

macro_rules! each_with {
    ($health:expr, $looks:expr) => {{
        unmoved(counterpoise::policy::RoundRobin::new, $health, $looks).await;
        unmoved(counterpoise::policy::SmoothWeighted::new, $health, $looks).await;
        unmoved(counterpoise::policy::WeightedRandom::new, $health, $looks).await;
        unmoved(counterpoise::policy::LeastRequest::new, $health, $looks).await;
        unmoved(
            || counterpoise::policy::LeastRequest::new().penalty(SECOND),
            $health,
            $looks,
        )
        .await;
        unmoved(counterpoise::policy::PeakEwma::new, $health, $looks).await;
        unmoved(
            || counterpoise::policy::affinity::RingHash::by(crate::fleet::KEY),
            $health,
            $looks,
        )
        .await;
    }};
}

#[tokio::test(start_paused = true)]
async fn reading_statistics_changes_no_route() {
    each_with!(
        Health::new()
            .consecutive_failures(2)
            .base_ejection(2 * SECOND),
        5
    );
}

#[tokio::test(start_paused = true)]
async fn reading_statistics_changes_no_route_while_capacities_move() {
    each_with!(health(), 5);
}

#[tokio::test(start_paused = true)]
async fn reading_statistics_changes_no_route_while_endpoints_are_compared() {
    let compared = Health::new()
        .outlier_detection(OutlierDetection::new().min_calls(3).false_ejections(0.5))
        .latency_weights(LatencyWeights::new().min_calls(2).after(1))
        .interval(SECOND);
    each_with!(compared.clone(), 5);
}
