//! One set of defaults, and no nonsense.

use std::time::Duration;

use counterpoise::{
    Balance, BalanceLayer, Builder, Direct, Health, discover, health::PanicMode,
    observe::EndpointState, policy::RoundRobin,
};
use tokio::time::advance;
use tower::{Layer, Service, ServiceExt};

use crate::{
    bed::{MILLISECOND, SECOND},
    support::{Act, Site},
};

/// Returns the field that a builder is refused for.
fn refused(builder: Builder) -> &'static str {
    let (_handle, changes) = discover::channel::<&str, Direct<Site>>();
    let error = builder
        .layer(changes, RoundRobin::new())
        .expect_err("nonsense is refused");
    assert!(error.to_string().starts_with(error.field()), "{error}");
    error.field()
}

fn accepted(builder: Builder) -> bool {
    let (_handle, changes) = discover::channel::<&str, Direct<Site>>();
    builder.layer(changes, RoundRobin::new()).is_ok()
}

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

fn refuses<V: Copy>(field: &str, set: impl Fn(Health, V) -> Health, values: &[V]) {
    for &value in values {
        let health = set(Health::new(), value);
        assert_eq!(
            refused(Builder::new().health(health.clone())),
            field,
            "{health:?}"
        );
    }
}

fn accepts<V: Copy>(set: impl Fn(Health, V) -> Health, values: &[V]) {
    for &value in values {
        let health = set(Health::new(), value);
        assert!(
            accepted(Builder::new().health(health.clone())),
            "{health:?}"
        );
    }
}

#[tokio::test]
async fn b73_nonsense_about_health_is_refused_naming_the_field() {
    let no_share = [
        -0.1,
        1.1,
        -f64::MIN_POSITIVE,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ];
    let no_factor = [
        0.0,
        0.99,
        -2.0,
        1e7,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ];
    let no_cap = [
        Duration::ZERO,
        9 * SECOND,
        YEAR + MILLISECOND,
        Duration::MAX,
    ];
    refuses(
        "consecutive_failures",
        Health::consecutive_failures,
        &[0, 1 << 29, u32::MAX],
    );
    refuses("base_ejection", Health::base_ejection, &[Duration::ZERO]);
    refuses("max_ejection", Health::max_ejection, &no_cap);
    refuses(
        "max_ejection",
        Health::base_ejection,
        &[301 * SECOND, Duration::MAX],
    );
    refuses("growth", Health::growth, &no_factor);
    refuses("jitter", Health::jitter, &no_share);
    refuses("trial_successes", Health::trial_successes, &[0]);
    refuses("max_ejected", Health::max_ejected, &no_share);
    refuses("panic_below", Health::panic_below, &no_share);
}

#[tokio::test]
async fn b73_nonsense_is_refused_even_while_health_is_off() {
    assert_eq!(
        refused(Builder::new().health(Health::off().growth(f64::NAN))),
        "growth"
    );
}

#[tokio::test]
async fn b73_nonsense_about_waiting_is_refused_naming_the_field() {
    for wait in [YEAR + MILLISECOND, Duration::MAX] {
        assert_eq!(
            refused(Builder::new().wait_for_endpoints(wait)),
            "wait_for_endpoints"
        );
        assert_eq!(
            refused(Builder::new().wait_for_ready(wait)),
            "wait_for_ready"
        );
    }
}

#[tokio::test]
async fn b73_every_way_to_build_refuses() {
    let bad = || Builder::new().health(Health::new().consecutive_failures(0));
    let changes = || discover::channel::<&str, Direct<Site>>().1;
    let fields = [
        bad()
            .layer(changes(), RoundRobin::new())
            .unwrap_err()
            .field(),
        bad()
            .balance(changes(), RoundRobin::new())
            .unwrap_err()
            .field(),
        bad()
            .pair(changes(), RoundRobin::new())
            .map(drop)
            .unwrap_err()
            .field(),
    ];
    assert_eq!(fields, ["consecutive_failures"; 3]);
}

#[tokio::test]
async fn b73_the_extremes_of_sense_are_accepted() {
    accepts(Health::consecutive_failures, &[1, (1 << 29) - 1]);
    accepts(
        Health::base_ejection,
        &[Duration::from_nanos(1), 300 * SECOND],
    );
    accepts(Health::max_ejection, &[10 * SECOND, YEAR]);
    accepts(Health::growth, &[1.0, 1e6]);
    accepts(Health::jitter, &[0.0, 1.0]);
    accepts(Health::trial_successes, &[1, u32::MAX]);
    accepts(Health::max_ejected, &[0.0, f64::MIN_POSITIVE, 1.0]);
    accepts(Health::panic_below, &[0.0, 1.0]);
    accepts(Health::drop_counts_after, &[Duration::ZERO, Duration::MAX]);
    assert!(accepted(
        Builder::new().wait_for_endpoints(YEAR).wait_for_ready(YEAR)
    ));
    assert!(accepted(
        Builder::new()
            .wait_for_endpoints(Duration::ZERO)
            .max_waiting(0)
    ));
}

#[test]
fn b73_all_defaults_of_health_are_the_documented_ones() {
    let documented = Health::new()
        .consecutive_failures(5)
        .base_ejection(10 * SECOND)
        .max_ejection(300 * SECOND)
        .growth(2.0)
        .jitter(0.2)
        .trial_successes(1)
        .max_ejected(1.0)
        .panic_below(0.0)
        .panic_mode(PanicMode::UseAll)
        .drop_counts_after(SECOND);
    assert_eq!(Health::new(), documented);
    assert_eq!(Health::default(), documented);
}

#[test]
fn b73_all_defaults_of_the_builder_are_the_documented_ones() {
    let documented = Builder::new()
        .health(Health::new())
        .wait_for_endpoints(5 * SECOND)
        .wait_when_empty(false)
        .wait_for_ready(30 * SECOND)
        .max_waiting(10_000)
        .keep_last(false);
    // Builders cannot be compared, but they show all their settings.
    let documented = format!("{documented:?}");
    assert!(documented.contains("max_waiting: 10000"), "{documented}");
    assert_eq!(format!("{:?}", Builder::new()), documented);
    assert_eq!(format!("{:?}", Builder::default()), documented);
}

/// How a balancer with a failing and a hanging endpoint behaves, built in any way.
async fn behaviour(balance: &mut Balance<Direct<Site>, RoundRobin>, bad: &Site) -> Vec<Duration> {
    let mut periods = Vec::new();
    bad.act(Act::Err);
    for failures in [5, 1, 1, 1, 1, 1, 1] {
        let before = bad.calls();
        for _ in 0..100 {
            let _ = balance.ready().await.unwrap().call(()).await;
        }
        assert_eq!(bad.calls(), before + failures);
        let period = balance.stats().endpoint("bad").unwrap().returns_in.unwrap();
        advance(period).await;
        periods.push(period);
    }
    bad.act(Act::Ok);
    balance.ready().await.unwrap().call(()).await.unwrap();
    assert_eq!(
        balance.stats().endpoint("bad").unwrap().state,
        EndpointState::Serving
    );
    periods
}

#[tokio::test(start_paused = true)]
async fn b73_every_way_to_the_defaults_behaves_as_documented() {
    for way in 0..4 {
        let (good, bad) = (Site::new("good"), Site::new("bad"));
        let list = discover::list([("good", good.endpoint()), ("bad", bad.endpoint())]);
        let policy = RoundRobin::new();
        let mut balance = match way {
            0 => Balance::new(list, policy),
            1 => BalanceLayer::new(list, policy).layer(()),
            2 => Builder::new().balance(list, policy).unwrap(),
            _ => Builder::default()
                .health(Health::default())
                .balance(list, policy)
                .unwrap(),
        };
        let periods = behaviour(&mut balance, &bad).await;
        for (period, base) in periods.into_iter().zip([10, 20, 40, 80, 160, 300, 300]) {
            let range = base * SECOND..base * SECOND * 6 / 5;
            assert!(
                range.contains(&period),
                "{period:?} is not in {range:?} in way {way}"
            );
        }
    }
}
