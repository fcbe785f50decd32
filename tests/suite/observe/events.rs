//! Events: each thing once, in order, whoever brings it about and whatever listeners do.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use counterpoise::{
    Balance, Builder, Direct, Endpoint, Event, Health, discover,
    event::{Cause, WeightCause},
    health::{CapacityChange, LatencyWeights, Overload, PanicMode, SlowStart},
    policy::RoundRobin,
};
use tokio::time::advance;
use tower::{Service, ServiceExt};

use crate::{
    bed::{MILLISECOND, SECOND, eject1, eject3},
    fleet::{Fleet, Push, Worker},
    probes::{feed, insert},
    support::{Act, Broken, Site, settle},
};

/// What was told, in short.
#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

/// Who, and what: `Joined` and so on.
fn short(event: &Event) -> (String, &'static str) {
    match event {
        Event::Joined { endpoint, .. } => (endpoint.to_string(), "joined"),
        Event::Ejected { endpoint, .. } => (endpoint.to_string(), "ejected"),
        Event::OnTrial { endpoint, .. } => (endpoint.to_string(), "tried"),
        Event::Recovered { endpoint, .. } => (endpoint.to_string(), "recovered"),
        Event::WeightChanged { endpoint, .. } => (endpoint.to_string(), "weighed"),
        Event::Left { endpoint, .. } => (endpoint.to_string(), "left"),
        Event::DiscoveryFailed { error, .. } => (error.to_string(), "failed"),
        Event::NothingEligible { .. } => (String::new(), "nothing"),
        _ => unreachable!("{event:?}"),
    }
}

impl Log {
    fn listener(&self) -> impl Fn(&Event) + Send + Sync + 'static {
        let log = self.clone();
        move |event| {
            let (who, what) = short(event);
            log.0
                .lock()
                .unwrap()
                .push(format!("{who} {what}").trim().to_owned());
        }
    }

    /// Returns what was told since last asked.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

async fn logged(health: Health, set: &[(&'static str, u32)]) -> (Fleet<RoundRobin>, Log) {
    let log = Log::default();
    let builder = Builder::new().health(health).on_event(log.listener());
    let fleet = Fleet::new(builder, RoundRobin::new(), set).await;
    (fleet, log)
}

const AB: [(&str, u32); 2] = [("a", 1), ("b", 1)];

#[tokio::test(start_paused = true)]
async fn b117_the_life_of_an_endpoint_is_told_once_and_in_order() {
    let (mut fleet, log) = logged(eject3(), &AB).await;
    fleet.eject("a").await;
    fleet.route(10).await;
    advance(10 * SECOND).await;
    fleet.route(10).await;
    fleet.leave("a").await;
    fleet.route(10).await;
    let want = [
        "a joined",
        "b joined",
        "a ejected",
        "a tried",
        "a recovered",
        "a left",
    ];
    assert_eq!(log.take(), want);
}

#[tokio::test(start_paused = true)]
async fn b117_an_ejection_says_until_when_and_what_for() {
    let told: Arc<Mutex<Vec<_>>> = Arc::default();
    let tell = Arc::clone(&told);
    let builder = Builder::new().health(eject3()).on_event(move |event| {
        if let Event::Ejected {
            returns_in, cause, ..
        } = event
        {
            tell.lock().unwrap().push((*returns_in, *cause));
        }
    });
    let mut fleet = Fleet::new(builder, RoundRobin::new(), &AB).await;
    fleet.eject("a").await;
    fleet.act("a", Act::Err);
    advance(10 * SECOND).await;
    fleet.route(1).await;
    let want = [(10, Cause::ConsecutiveFailures), (20, Cause::FailedTrial)];
    assert_eq!(
        *told.lock().unwrap(),
        want.map(|(s, cause)| (Some(s * SECOND), cause))
    );
}

#[tokio::test(start_paused = true)]
async fn trials_and_returns_in_panic_are_told() {
    let (mut fleet, log) = logged(eject1(), &AB).await;
    fleet.eject("a").await;
    fleet.eject("b").await;
    log.take();
    let first = fleet.route(4).await[0];
    assert_eq!(log.take(), [format!("{first} recovered")]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_told_in_its_order() {
    let (mut fleet, log) = logged(Health::new(), &AB).await;
    log.take();
    // B leaves and a new B joins; A is replaced; C joins.
    fleet.handle.remove(&"b");
    fleet.join_all(&[("b", 1), ("a", 3), ("c", 1)]).await;
    assert_eq!(log.take(), ["b left", "b joined", "a weighed", "c joined"]);
    let names: Vec<_> = fleet
        .balance
        .stats()
        .endpoints
        .iter()
        .map(|e| e.name.to_string())
        .collect();
    assert_eq!(names, ["a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn who_is_kept_has_not_left() {
    let log = Log::default();
    let builder = Builder::new().keep_last(true).on_event(log.listener());
    let mut fleet = Fleet::new(builder, RoundRobin::new(), &AB).await;
    log.take();
    fleet.leave("a").await;
    fleet.leave("b").await;
    assert_eq!(log.take(), ["a left"]);
    fleet.join("c", 1).await;
    let mut told = log.take();
    told.sort();
    assert_eq!(told, ["b left", "c joined"]);
}

#[tokio::test(start_paused = true)]
async fn nothing_eligible_is_told_once_each_time() {
    for panic in [PanicMode::UseAll, PanicMode::Fail] {
        let (mut fleet, log) = logged(eject1().panic_mode(panic), &AB).await;
        assert_eq!(
            log.take(),
            ["a joined", "b joined"],
            "nothing was in service before"
        );
        fleet.eject("a").await;
        fleet.act("b", Act::Err);
        let _ = fleet.call(None).await;
        assert_eq!(log.take(), ["a ejected", "b ejected", "nothing"]);
        fleet.act("b", Act::Ok);
        fleet.act("a", Act::Err);
        let _ = fleet.call(Some(1)).await;
        let _ = fleet.call(Some(2)).await;
        let _ = log.take();
        fleet.act("a", Act::Ok);
        advance(20 * SECOND).await;
        for _ in 0..4 {
            let _ = fleet.call(None).await;
        }
        assert!(!log.take().contains(&"nothing".into()));
        fleet.join("a", 0).await;
        fleet.join("b", 0).await;
        assert_eq!(log.take(), ["a weighed", "b weighed", "nothing"]);
        fleet.leave("a").await;
        fleet.leave("b").await;
        assert_eq!(log.take(), ["a left", "b left"], "it was so before");
        fleet.join("c", 1).await;
        fleet.leave("c").await;
        assert_eq!(log.take(), ["c joined", "c left", "nothing"]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_discovery_is_told_and_the_set_stays() {
    let (log, site) = (Log::default(), Site::new("a"));
    let (feed, changes) = feed();
    let builder = Builder::new().on_event(log.listener());
    let balance: Balance<Direct<Site>, RoundRobin> =
        builder.balance(changes, RoundRobin::new()).unwrap();
    feed.unbounded_send(insert("a", site.endpoint())).unwrap();
    feed.unbounded_send(Err(Broken("dns"))).unwrap();
    feed.unbounded_send(insert("b", site.endpoint())).unwrap();
    settle().await;
    assert_eq!(log.take(), ["a joined", "dns is broken failed", "b joined"]);
    assert_eq!(balance.stats().endpoints.len(), 2);
}

/// Weight, what of it counts, and why, as told.
type Weights = Arc<Mutex<Vec<(u32, f64, WeightCause)>>>;

async fn weights(health: Health) -> (Fleet<RoundRobin>, Weights) {
    let told = Weights::default();
    let tell = Arc::clone(&told);
    let builder = Builder::new().health(health).on_event(move |event| {
        if let Event::WeightChanged {
            weight,
            effective_weight,
            cause,
            ..
        } = event
        {
            tell.lock()
                .unwrap()
                .push((*weight, *effective_weight, *cause));
        }
    });
    (Fleet::new(builder, RoundRobin::new(), &AB).await, told)
}

#[tokio::test(start_paused = true)]
async fn changes_of_weight_are_told_with_their_cause() {
    let (mut fleet, told) = weights(Health::new().overload(Overload::new().floor(0.5))).await;
    fleet.join("a", 4).await;
    fleet.join("a", 4).await;
    for _ in 0..2 {
        assert_eq!(
            fleet.balance.set_capacity("a", 0.5),
            CapacityChange::Applied
        );
    }
    fleet.act("a", Act::Reject);
    for _ in 0..3 {
        fleet.route(2).await;
        advance(SECOND).await;
    }
    fleet.act("a", Act::Ok);
    // It comes back in steps, which are not told.
    for _ in 0..100 {
        fleet.route(2).await;
        advance(SECOND).await;
    }
    let want = [
        (4, 4.0, WeightCause::Discovery),
        (4, 2.0, WeightCause::Capacity),
        (4, 1.0, WeightCause::Overload),
    ];
    assert_eq!(*told.lock().unwrap(), want);
}

#[tokio::test(start_paused = true)]
async fn the_steps_of_a_slow_start_are_not_told_and_those_by_latency_are() {
    let health = Health::new()
        .slow_start(SlowStart::new(10 * SECOND))
        .latency_weights(LatencyWeights::new().after(1));
    let (mut fleet, told) = weights(health).await;
    fleet.join("c", 1).await;
    fleet.act("c", Act::After(100 * MILLISECOND));
    ["a", "b"]
        .iter()
        .for_each(|name| fleet.act(name, Act::After(MILLISECOND)));
    while fleet
        .balance
        .stats()
        .endpoint("c")
        .unwrap()
        .effective_weight
        < 0.8
    {
        fleet.route(1).await;
    }
    assert!(told.lock().unwrap().is_empty());
    fleet.route(300).await;
    let told = told.lock().unwrap();
    let (_, effective, cause) = *told.first().expect("it is slow");
    assert_eq!(cause, WeightCause::Latency);
    assert!((effective - 0.8).abs() < 0.01, "{effective}");
}

#[tokio::test(start_paused = true)]
async fn a_listener_may_look_at_the_balancer_and_change_it() {
    type Inner =
        Balance<Direct<crate::fleet::Worker>, RoundRobin, (), counterpoise::call::AtHead<Push>>;
    let (log, inner) = (Log::default(), Arc::new(OnceLock::<Inner>::new()));
    let listener = {
        let inner = Arc::clone(&inner);
        move |event: &Event| {
            let Some(balance) = inner.get() else { return };
            let seen = balance.stats();
            match event {
                Event::Ejected { endpoint, .. } => {
                    assert!(seen.endpoint(endpoint).is_some());
                    let change = balance.set_capacity("b", 0.5);
                    assert_eq!(change, CapacityChange::Applied);
                }
                Event::Recovered { .. } => drop(format!("{:?}", balance.set_capacity("b", 1.0))),
                _ => {}
            }
        }
    };
    let builder = Builder::new()
        .health(eject1())
        .on_event(listener)
        .on_event(log.listener());
    let mut fleet = Fleet::new(builder, RoundRobin::new(), &AB).await;
    assert!(inner.set(fleet.balance.clone()).is_ok());
    fleet.eject("a").await;
    assert_eq!(
        fleet.stats("b").effective_weight,
        0.5,
        "told before the call has ended"
    );
    advance(10 * SECOND).await;
    fleet.bring_back("a").await;
    let want = [
        "a joined",
        "b joined",
        "a ejected",
        "b weighed",
        "a tried",
        "a recovered",
    ];
    assert_eq!(log.take()[..6], want);
    assert_eq!(fleet.stats("b").effective_weight, 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_panics_disturbs_nobody() {
    let log = Log::default();
    let bad = |event: &Event| assert!(matches!(event, Event::Joined { .. }), "I do not like it");
    let builder = Builder::new()
        .health(eject1())
        .on_event(bad)
        .on_event(log.listener());
    let mut fleet = Fleet::new(builder, RoundRobin::new(), &AB).await;
    fleet.eject("a").await;
    advance(10 * SECOND).await;
    fleet.bring_back("a").await;
    fleet.leave("a").await;
    let want = [
        "a joined",
        "b joined",
        "a ejected",
        "a tried",
        "a recovered",
        "a left",
    ];
    assert_eq!(log.take(), want);
    assert_eq!(fleet.route(3).await, ["b"; 3]);
}

// ===== under threads =====

/// Fails by its own count: mostly for a while, then not for a while.
fn moody(start: usize) -> Endpoint<Direct<Worker>> {
    let act = move |n| {
        if (start + n) % 7 < 3 {
            Act::FailYield(1)
        } else {
            Act::Yield(1)
        }
    };
    Worker::new("moody").acting(act).endpoint()
}

/// Returns whether a life is told as lives go: `joined (ejected tried* recovered?)* left`.
fn is_life(told: &[&str]) -> bool {
    let mut state = "left";
    for &what in told {
        let may = match what {
            "joined" => state == "left",
            "ejected" => ["joined", "recovered", "tried"].contains(&state),
            "tried" => ["ejected", "tried"].contains(&state),
            "recovered" => ["ejected", "tried"].contains(&state),
            "left" => state != "left",
            _ => return false,
        };
        if !may {
            return false;
        }
        state = what;
    }
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_threads_every_life_is_told_in_order() {
    const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    let log = Log::default();
    let health = eject1().base_ejection(Duration::from_nanos(1)).growth(1.0);
    let (handle, changes) = discover::channel();
    NAMES
        .iter()
        .enumerate()
        .for_each(|(n, &name)| handle.insert(name, moody(n)));
    let builder = Builder::new().health(health).on_event(log.listener());
    let balance = builder.balance(changes, RoundRobin::new()).unwrap();
    balance.ready_when(6).await.unwrap();
    let callers: Vec<_> = (0..12)
        .map(|_| {
            let mut balance = balance.clone();
            tokio::spawn(async move {
                for _ in 0..250 {
                    let _ = balance.ready().await.unwrap().call(None).await;
                }
            })
        })
        .collect();
    for round in 0..100 {
        handle.remove(&NAMES[round % 3]);
        if round % 2 == 0 {
            tokio::task::yield_now().await;
        }
        handle.insert(NAMES[round % 3], moody(round));
        tokio::task::yield_now().await;
    }
    for caller in callers {
        caller.await.unwrap();
    }
    let told = log.take();
    let mut lives: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (who, what) in told.iter().filter_map(|line| line.split_once(' ')) {
        lives.entry(who).or_default().push(what);
    }
    for (who, life) in &lives {
        assert!(is_life(life), "{who}: {life:?}");
    }
    assert_eq!(lives.len(), NAMES.len());
    // Of those who stayed, every ejection was told.
    for name in &NAMES[3..] {
        let told = lives[name]
            .iter()
            .filter(|&&what| what == "ejected")
            .count();
        assert_eq!(
            told as u64,
            balance.stats().endpoint(name).unwrap().ejections
        );
    }
}
