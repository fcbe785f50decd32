//! Endpoints compared with their peers: outliers by rate and latency, and weights by latency.

use std::time::Duration;

use counterpoise::{
    Builder, Health,
    health::{LatencyWeights, OutlierDetection},
    observe::EndpointState,
    policy::{RoundRobin, SmoothWeighted},
};
use tokio::time::{Instant, advance, sleep_until};

use crate::{
    bed::{MILLISECOND, SECOND},
    fleet::{Fleet, Push},
    support::Act,
};

const TEN: [(&str, u32); 10] = [
    ("a", 1),
    ("b", 1),
    ("c", 1),
    ("d", 1),
    ("e", 1),
    ("f", 1),
    ("g", 1),
    ("h", 1),
    ("i", 1),
    ("j", 1),
];

/// Never ejects for failures in a row.
fn health() -> Health {
    Health::new()
        .consecutive_failures(1_000_000)
        .jitter(0.0)
        .interval(10 * SECOND)
}

fn outliers() -> Health {
    health().outlier_detection(OutlierDetection::new())
}

async fn fleet(health: Health, n: usize) -> Fleet<RoundRobin> {
    let builder = Builder::new()
        .health(health)
        .seed(1)
        .starting_at(0)
        .classify(Push(None));
    Fleet::with(builder, RoundRobin::new(), &TEN[..n]).await
}

/// Calls each endpoint once in turn, so many times; those at bad endpoints do this every so
/// many times.
async fn rounds(fleet: &mut Fleet<RoundRobin>, n: usize, bad: &[&str], act: Act, one_in: usize) {
    for round in 0..n {
        let good = if act == Act::Err {
            Act::Ok
        } else {
            Act::After(10 * MILLISECOND)
        };
        let names: Vec<_> = fleet.sites.keys().copied().collect();
        for name in names {
            let fails = bad.contains(&name) && round % one_in == 0;
            fleet.act(name, if fails { act } else { good });
        }
        let serving = fleet.balance.stats().counts;
        fleet.route(serving.members - serving.ejected).await;
    }
}

fn ejected(fleet: &Fleet<RoundRobin>) -> Vec<String> {
    let stats = fleet.balance.stats();
    let out = stats
        .endpoints
        .iter()
        .filter(|e| e.state == EndpointState::Ejected);
    out.map(|endpoint| endpoint.name.to_string()).collect()
}

/// Has the interval judged that ends now.
async fn judge(fleet: &mut Fleet<RoundRobin>) {
    advance(10 * SECOND).await;
    let names: Vec<_> = fleet.sites.keys().copied().collect();
    names.iter().for_each(|name| fleet.act(name, Act::Ok));
    fleet.route(1).await;
}

#[tokio::test(start_paused = true)]
async fn who_fails_half_of_its_calls_stands_out_among_two_and_more() {
    for n in [2, 3, 10] {
        let mut fleet = fleet(outliers(), n).await;
        rounds(&mut fleet, 60, &["b"], Act::Err, 2).await;
        assert!(ejected(&fleet).is_empty(), "not before the interval ends");
        judge(&mut fleet).await;
        assert_eq!(ejected(&fleet), ["b"], "of {n}");
        // The trial, after the period of other ejections.
        advance(10 * SECOND).await;
        assert_eq!(fleet.route(1).await, ["b"]);
        assert_eq!(fleet.stats("b").state, EndpointState::Serving);
        // What it did before is forgotten: the next interval finds nothing.
        rounds(&mut fleet, 60, &[], Act::Err, 1).await;
        judge(&mut fleet).await;
        assert_eq!((ejected(&fleet).len(), fleet.stats("b").ejections), (0, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn three_bad_ones_of_ten_stand_out() {
    for (one_in, act) in [(1, Act::Err), (2, Act::Err), (3, Act::Err)] {
        let mut fleet = fleet(outliers(), 10).await;
        rounds(&mut fleet, 90, &["b", "e", "j"], act, one_in).await;
        judge(&mut fleet).await;
        assert_eq!(ejected(&fleet), ["b", "e", "j"], "one in {one_in}");
    }
}

#[tokio::test(start_paused = true)]
async fn where_all_do_badly_nobody_stands_out() {
    for n in [1, 2, 3, 10] {
        let mut fleet = fleet(outliers(), n).await;
        let all: Vec<_> = TEN[..n].iter().map(|&(name, _)| name).collect();
        for _ in 0..5 {
            rounds(&mut fleet, 60, &all, Act::Err, 2).await;
            judge(&mut fleet).await;
            assert!(ejected(&fleet).is_empty(), "of {n}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_set_is_never_emptied() {
    for n in [2, 3, 10] {
        let mut fleet = fleet(outliers().base_ejection(300 * SECOND), n).await;
        let mut bad: Vec<&str> = Vec::new();
        for &(name, _) in &TEN[..n] {
            bad.push(name);
            rounds(&mut fleet, 60, &bad, Act::Err, 1).await;
            judge(&mut fleet).await;
        }
        // The last one has nobody to be compared with.
        assert_eq!(fleet.balance.stats().counts.ejected, n - 1, "of {n}");
        assert!(!fleet.balance.stats().panic);
    }
}

#[tokio::test(start_paused = true)]
async fn the_share_that_may_be_ejected_holds_and_the_worst_go_first() {
    let mut fleet = fleet(outliers().max_ejected(0.2), 10).await;
    for round in 0..60 {
        for (name, one_in) in [("b", 2), ("e", 1), ("j", 3)] {
            fleet.act(
                name,
                if round % one_in == 0 {
                    Act::Err
                } else {
                    Act::Ok
                },
            );
        }
        fleet.route(10).await;
    }
    judge(&mut fleet).await;
    assert_eq!(ejected(&fleet), ["b", "e"]);
}

#[tokio::test(start_paused = true)]
async fn consecutive_failures_and_outliers_share_one_limit() {
    let health = outliers()
        .consecutive_failures(30)
        .max_ejected(0.5)
        .base_ejection(60 * SECOND);
    let mut fleet = fleet(health, 3).await;
    // One goes for its failures in a row, within the interval; another is as bad.
    rounds(&mut fleet, 40, &["a"], Act::Err, 1).await;
    assert_eq!(ejected(&fleet), ["a"]);
    rounds(&mut fleet, 40, &["b"], Act::Err, 2).await;
    judge(&mut fleet).await;
    assert_eq!(ejected(&fleet), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn few_calls_say_nothing() {
    let mut fleet = fleet(outliers(), 3).await;
    rounds(&mut fleet, 19, &["b"], Act::Err, 1).await;
    judge(&mut fleet).await;
    assert!(ejected(&fleet).is_empty());
}

#[tokio::test(start_paused = true)]
async fn without_traffic_nothing_happens() {
    let mut fleet = fleet(outliers().latency_weights(LatencyWeights::new()), 3).await;
    let before = fleet.balance.stats().generation;
    for _ in 0..20 {
        advance(10 * SECOND).await;
        assert_eq!(fleet.balance.stats().generation, before);
    }
    // Nor when there is little.
    for _ in 0..20 {
        advance(10 * SECOND).await;
        fleet.route(1).await;
    }
    assert_eq!(
        (fleet.balance.stats().generation, ejected(&fleet).len()),
        (before, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn what_happened_before_an_endpoint_was_drained_is_not_held_against_it() {
    let mut fleet = fleet(outliers(), 3).await;
    rounds(&mut fleet, 60, &["b"], Act::Err, 1).await;
    fleet.join("b", 0).await;
    for _ in 0..3 {
        rounds(&mut fleet, 60, &[], Act::Err, 1).await;
        judge(&mut fleet).await;
    }
    fleet.join("b", 1).await;
    rounds(&mut fleet, 60, &[], Act::Err, 1).await;
    judge(&mut fleet).await;
    assert!(
        ejected(&fleet).is_empty(),
        "these calls ended three intervals ago"
    );
}

#[tokio::test(start_paused = true)]
async fn what_happened_before_a_return_is_not_held_against_it() {
    let health = outliers().consecutive_failures(30).base_ejection(SECOND);
    let mut fleet = fleet(health, 3).await;
    rounds(&mut fleet, 30, &["b"], Act::Err, 1).await;
    assert_eq!(ejected(&fleet), ["b"]);
    advance(SECOND).await;
    // It is back within the interval, and works.
    rounds(&mut fleet, 40, &[], Act::Err, 1).await;
    assert!(ejected(&fleet).is_empty());
    judge(&mut fleet).await;
    assert_eq!((ejected(&fleet).len(), fleet.stats("b").ejections), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn who_is_slow_stands_out_if_that_is_asked_for() {
    for n in [2, 3, 10] {
        for asked in [false, true] {
            let rule = OutlierDetection::new();
            let rule = if asked { rule.slower_than(3.0) } else { rule };
            let mut fleet = fleet(health().outlier_detection(rule), n).await;
            let slow = Act::After(100 * MILLISECOND);
            // The first interval finds what is usual.
            for _ in 0..2 {
                rounds(&mut fleet, 40, &["b"], slow, 1).await;
                judge(&mut fleet).await;
            }
            let out = if asked { vec!["b"] } else { vec![] };
            assert_eq!(ejected(&fleet), out, "of {n}, asked: {asked}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn three_slow_ones_of_ten_stand_out_and_all_slow_ones_do_not() {
    for (slow, out) in [
        (vec!["b", "e", "j"], 3),
        (TEN.map(|(name, _)| name).to_vec(), 0),
    ] {
        let mut fleet = fleet(
            health().outlier_detection(OutlierDetection::new().slower_than(3.0)),
            10,
        )
        .await;
        for _ in 0..2 {
            rounds(&mut fleet, 22, &slow, Act::After(100 * MILLISECOND), 1).await;
            judge(&mut fleet).await;
        }
        assert_eq!(ejected(&fleet).len(), out, "{slow:?}");
    }
}

// ===== weights by latency =====

struct Weighted(Fleet<SmoothWeighted>, Instant);

impl Weighted {
    async fn new(n: usize) -> Self {
        let health = health().latency_weights(LatencyWeights::new());
        let builder = Builder::new()
            .health(health)
            .seed(1)
            .starting_at(0)
            .classify(Push(None));
        Self(
            Fleet::with(builder, SmoothWeighted::new(), &TEN[..n]).await,
            Instant::now(),
        )
    }

    /// Lives through so many intervals in which the first endpoint takes so long and the
    /// others 10 ms; returns the part of its weight that counts.
    async fn after(&mut self, intervals: usize, millis: u64) -> f64 {
        for _ in 0..intervals {
            let names: Vec<_> = self.0.sites.keys().copied().collect();
            names
                .iter()
                .for_each(|name| self.0.act(name, Act::After(10 * MILLISECOND)));
            self.0.act("a", Act::After(Duration::from_millis(millis)));
            self.0.route(names.len() * 45).await;
            self.1 += 10 * SECOND;
            assert!(Instant::now() < self.1, "within the interval");
            sleep_until(self.1).await;
            names.iter().for_each(|name| self.0.act(name, Act::Ok));
            self.0.act("a", Act::Hang);
            // The call that ends the interval says nothing.
            drop(self.0.start());
        }
        (self.0.factor("a") * 1_000.0).round() / 1_000.0
    }
}

#[tokio::test(start_paused = true)]
async fn the_weight_of_who_stays_slow_sinks_and_returns_with_hysteresis() {
    for n in [2, 3, 10] {
        let mut weighted = Weighted::new(n).await;
        assert_eq!(weighted.after(2, 20).await, 1.0, "patience, of {n}");
        assert_eq!(weighted.after(1, 10).await, 1.0);
        assert_eq!(weighted.after(2, 20).await, 1.0, "in a row, of {n}");
        assert_eq!(weighted.after(1, 20).await, 0.8, "of {n}");
        assert_eq!(weighted.after(3, 13).await, 0.8, "in between, of {n}");
        assert_eq!(weighted.after(3, 20).await, 0.64, "in a row again, of {n}");
        assert_eq!(weighted.after(9, 20).await, 0.25, "the floor, of {n}");
        assert_eq!(weighted.after(1, 10).await, 0.313, "of {n}");
        assert_eq!(weighted.after(7, 10).await, 1.0, "of {n}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_gets_too_few_calls_to_tell_gets_its_weight_back() {
    let mut weighted = Weighted::new(3).await;
    assert_eq!(weighted.after(3, 20).await, 0.8);
    // Nobody calls: the next call ends the interval.
    weighted.1 += 10 * SECOND;
    sleep_until(weighted.1).await;
    weighted.0.route(1).await;
    assert_eq!(weighted.0.factor("a"), 1.0);
}

// ===== failures in a row =====

/// B70: no window of time is kept for failures in a row: successes in between count, time
/// alone does not.
#[tokio::test(start_paused = true)]
async fn b70_only_success_forgets_failures_in_a_row() {
    let mut fleet = fleet(Health::new().consecutive_failures(3).jitter(0.0), 2).await;
    for (acts, want) in [("xx.xx.xx.xx", 0), ("x x  x", 1)] {
        let ejections = fleet.stats("a").ejections;
        for act in acts.chars() {
            match act {
                'x' => fleet.act("a", Act::Err),
                '.' => fleet.act("a", Act::Ok),
                _ => advance(3_600 * SECOND).await,
            }
            if act != ' ' {
                fleet.route(2).await;
            }
        }
        assert_eq!(fleet.stats("a").ejections - ejections, want, "{acts}");
        fleet.act("a", Act::Ok);
        if want == 0 {
            fleet.route(2).await;
        }
    }
}
