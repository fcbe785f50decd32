//! Attacks on events: everything at once, on threads; listeners that call back, panic, and let go
//! of the balancer.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use counterpoise::{
    Balance, BoxError, Builder, Direct, Endpoint, Event, Health, Outcome, Stats,
    checks::{Checks, Probe},
    discover,
    event::Cause,
    health::{LatencyWeights, OutlierDetection, Overload, SlowStart},
    observe::{EndpointState, EndpointStats},
    policy::{LeastRequest, PeakEwma, Picker, Policy, RoundRobin, SmoothWeighted},
};
use futures::future::FutureExt;
use tokio::time::advance;
use tower::Service;

use crate::{
    bed::{MILLISECOND, SECOND, eject1, refusals},
    probes::call,
    support::{Act, Gate, Site, settle},
};

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Numbers that look like chance, by count.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dice(Arc<AtomicU64>);

impl Dice {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(Arc::new((seed << 32).into()))
    }

    pub(crate) fn roll(&self, sides: u64) -> u64 {
        let n = self.0.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) % sides
    }
}

/// An endpoint that does anything.
fn wild(name: &'static str, dice: &Dice) -> Endpoint<Direct<Site>> {
    let (gates, acts) = (dice.clone(), dice.clone());
    let gate = move |_| {
        if gates.roll(50) == 0 {
            Gate::Fails
        } else {
            Gate::Open
        }
    };
    let act = move |_| match acts.roll(12) {
        0 | 1 => Act::Err,
        2 => Act::Reject,
        3 => Act::Yield(1),
        4 => Act::FailAfter(MILLISECOND),
        _ => Act::Ok,
    };
    Site::new(name).gating(gate).acting(act).endpoint()
}

/// What an endpoint is, by what was told.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Life {
    #[default]
    Unborn,
    Serving,
    Out,
    OnTrial,
}

#[derive(Debug, Default, Clone, Copy)]
struct Story {
    life: Life,
    ejections: u64,
}

impl Story {
    /// Takes in an event; returns whether it may come now.
    fn hear(&mut self, event: &Event) -> bool {
        let former = self.life;
        let (may, next) = match event {
            Event::Joined { .. } => (former == Life::Unborn, Life::Serving),
            Event::Left { .. } => (former != Life::Unborn, Life::Unborn),
            Event::OnTrial { .. } => (matches!(former, Life::Out | Life::OnTrial), Life::OnTrial),
            Event::Recovered { .. } => (matches!(former, Life::Out | Life::OnTrial), Life::Serving),
            Event::Ejected {
                cause: Cause::FailedTrial,
                ..
            } => (former == Life::OnTrial, Life::Out),
            // Checks take out who is out already, too.
            Event::Ejected {
                cause: Cause::Checks,
                ..
            } => (former != Life::Unborn, Life::Out),
            Event::Ejected { .. } => (former == Life::Serving, Life::Out),
            _ => (former != Life::Unborn, former),
        };
        if let Event::Ejected { cause, .. } = event {
            self.ejections += u64::from(*cause != Cause::Checks);
        }
        if let Event::Joined { .. } = event {
            self.ejections = 0;
        }
        self.life = next;
        may
    }
}

fn who(event: &Event) -> Option<&Arc<str>> {
    match event {
        Event::Joined { endpoint, .. }
        | Event::Left { endpoint, .. }
        | Event::OnTrial { endpoint, .. }
        | Event::Recovered { endpoint, .. }
        | Event::Ejected { endpoint, .. }
        | Event::WeightChanged { endpoint, .. } => Some(endpoint),
        _ => None,
    }
}

fn everything() -> Health {
    let time = Duration::from_micros(200);
    Health::new()
        .consecutive_failures(2)
        .base_ejection(time)
        .max_ejection(4 * time)
        .max_ejected(0.5)
        .slow_start(SlowStart::new(5 * MILLISECOND))
        .overload(Overload::new().hold(2 * MILLISECOND))
        .outlier_detection(
            OutlierDetection::new()
                .min_calls(1)
                .margin(0.0)
                .false_ejections(0.5)
                .slower_than(1.5),
        )
        .latency_weights(LatencyWeights::new().after(1).min_calls(1))
        .interval(MILLISECOND)
        .drop_counts_after(Duration::ZERO)
}

type Stories = Arc<Mutex<(BTreeMap<Arc<str>, Story>, Vec<String>)>>;

/// A probe that fails one time in three.
fn often_ill(dice: Dice) -> impl Probe<Direct<Site>> {
    move |_: &str, _: &Direct<Site>| {
        let ill = dice.roll(3) == 0;
        async move {
            if ill {
                Err(BoxError::from("ill"))
            } else {
                Ok(())
            }
        }
    }
}

/// Returns whether the statistics show what the events have told.
fn agree(stats: &Stats, stories: &BTreeMap<Arc<str>, Story>) -> bool {
    stats.endpoints.iter().all(|endpoint| {
        let story = stories[&endpoint.name];
        let same_life = match endpoint.state {
            EndpointState::Drained => true,
            // No event comes after a trial that has shown nothing.
            EndpointState::Ejected => matches!(story.life, Life::Out | Life::OnTrial),
            _ => story.life != Life::Out,
        };
        endpoint.in_flight == 0 && story.ejections == endpoint.ejections && same_life
    })
}

/// Calls, drops, push-back, capacities, weights, membership, checks and comparisons at once.
async fn storm<P: Policy<Picker: Picker<()>>>(policy: P) {
    let stories = Stories::default();
    let seen = Arc::clone(&stories);
    let built = Arc::new(OnceLock::new());
    let inside = Arc::clone(&built);
    let (handle, changes) = discover::channel();
    let dice = Dice::default();
    let wild = |name| wild(name, &dice);
    NAMES
        .iter()
        .for_each(|&name| handle.insert(name, wild(name)));
    let builder = Builder::new()
        .health(everything())
        .classify_fn(refusals(Outcome::Overload))
        .on_event(move |event| {
            let (stories, wrong) = &mut *seen.lock().unwrap();
            if let Some(name) = who(event) {
                let story = stories.entry(Arc::clone(name)).or_default();
                let before = *story;
                if !story.hear(event) {
                    wrong.push(format!("{before:?}: {event:?}"));
                }
            }
            if let Some(balance) = inside.get() {
                let counts = Balance::stats(balance).counts;
                if counts.ejected > 3 {
                    wrong.push(format!("beyond the limit: {counts}"));
                }
            }
        });
    let balance = builder.balance(changes, policy).unwrap();
    assert!(built.set(balance.clone()).is_ok());
    balance.ready_when(6).await.unwrap();
    let checks = Checks::new(often_ill(dice.clone()))
        .interval(MILLISECOND)
        .rise(1)
        .fall(1);
    let checker = tokio::spawn(balance.check(checks).unwrap());
    let callers: Vec<_> = (0..8)
        .map(|n| {
            let (mut balance, dice) = (balance.clone(), dice.clone());
            tokio::spawn(async move {
                for i in 0..400 {
                    let mut call = balance.call(());
                    if dice.roll(10) == 0 {
                        let _ = poll_fn(|cx| Poll::Ready(call.poll_unpin(cx).is_ready())).await;
                    } else {
                        let _ = call.await;
                    }
                    if (i + n) % 20 == 0 {
                        let name = NAMES[(i / 20) % 6];
                        let _ = balance.set_capacity(name, dice.roll(4) as f64 / 3.0);
                    }
                }
            })
        })
        .collect();
    for round in 0..200 {
        let name = NAMES[round % 6];
        // All weights stay above zero, and all stay members: the limit is three.
        handle.insert(name, wild(name).weight(1 + dice.roll(5) as u32));
        tokio::task::yield_now().await;
        if round % 10 == 0 {
            handle.remove(&"extra");
            tokio::time::sleep(MILLISECOND).await;
        }
    }
    for caller in callers {
        caller.await.unwrap();
    }
    checker.abort();
    let _ = checker.await;
    // A driver or the delivery of the last events may be about to finish.
    for _ in 0..1_000 {
        if agree(&balance.stats(), &stories.lock().unwrap().0) {
            break;
        }
        tokio::time::sleep(MILLISECOND).await;
    }
    let stats = balance.stats();
    let (stories, wrong) = &*stories.lock().unwrap();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(agree(&stats, stories), "{stories:#?}\n{stats}");
    assert_eq!(stats.waiting, 0);
    let some = |count: fn(&EndpointStats) -> u64| {
        stats.endpoints.iter().all(|endpoint| count(endpoint) > 0)
    };
    assert!(
        some(|e| e.successes) && some(|e| e.failures) && some(|e| e.overloads),
        "{stats}"
    );
    assert!(some(|e| e.ejections) && some(|e| e.drops), "{stats}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn in_a_storm_every_life_is_told_in_order_and_the_limit_holds() {
    storm(RoundRobin::new()).await;
    storm(SmoothWeighted::new()).await;
    storm(LeastRequest::new()).await;
    storm(PeakEwma::new()).await;
}

/// The listener holds the last balancer, and lets go of it at some event.
#[tokio::test(start_paused = true)]
async fn a_listener_may_let_go_of_the_last_balancer() {
    for at in 0..6 {
        let site = Site::new("a");
        let held = Arc::new(Mutex::new(None));
        let (last, count) = (Arc::clone(&held), AtomicUsize::new(0));
        let builder = Builder::new().health(eject1()).on_event(move |_| {
            if count.fetch_add(1, Ordering::SeqCst) == at {
                let balance: Option<Balance<_, _>> = last.lock().unwrap().take();
                drop(balance);
            }
            assert_ne!(count.load(Ordering::SeqCst) % 3, 1, "listeners may panic");
        });
        let (handle, changes) = discover::channel();
        let balance = builder
            .starting_at(0)
            .balance(changes, RoundRobin::new())
            .unwrap();
        let checker = balance.check(Checks::new(|_: &str, _: &Direct<Site>| async { Ok(()) }));
        let checker = tokio::spawn(checker.unwrap());
        let mut other = balance.clone();
        *held.lock().unwrap() = Some(balance);
        // Events: two join, one is ejected, tried, returns, another leaves.
        handle.insert("a", site.endpoint());
        handle.insert("b", site.endpoint());
        if at < 2 {
            drop(other);
            settle().await;
        } else {
            settle().await;
            site.act(Act::Err);
            let failing = other.call(());
            drop(other);
            let _ = failing.await;
            site.act(Act::Ok);
            advance(10 * SECOND).await;
            let balance = held.lock().unwrap().clone();
            let again = balance.map(|mut balance| balance.call(()));
            if let Some(again) = again {
                let _ = again.await;
            }
            handle.remove(&"b");
            settle().await;
        }
        assert!(held.lock().unwrap().is_none(), "at event {at}");
        settle().await;
        assert!(handle.is_closed() && checker.is_finished(), "at event {at}");
        assert_eq!(site.instances(), 1, "at event {at}");
    }
}

/// Listeners that make calls, which fail, and eject others, of which they hear.
#[tokio::test(start_paused = true)]
async fn a_listener_may_make_calls_that_bring_about_more_events() {
    let built = Arc::new(OnceLock::<Balance<Direct<Site>, RoundRobin>>::new());
    let (inside, told) = (Arc::clone(&built), Arc::new(Mutex::new(Vec::new())));
    let heard = Arc::clone(&told);
    let builder = Builder::new().health(eject1()).on_event(move |event| {
        let Event::Ejected { endpoint, .. } = event else {
            return;
        };
        // Nobody tells events inside of others.
        heard.try_lock().unwrap().push(endpoint.to_string());
        let balance = inside.get().unwrap();
        let _ = balance.clone().call(()).now_or_never();
        let _ = balance.set_capacity(endpoint, 0.5);
        assert!(balance.stats().counts.ejected > 0);
        panic!("listeners may panic");
    });
    let sites = NAMES.map(|name| (name, Site::new(name)));
    sites.iter().for_each(|(_, site)| site.act(Act::Err));
    let list = discover::list(sites.iter().map(|(name, site)| (*name, site.endpoint())));
    let balance = builder
        .starting_at(0)
        .balance(list, RoundRobin::new())
        .unwrap();
    assert!(built.set(balance.clone()).is_ok());
    settle().await;
    let mut balance = balance;
    assert!(call(&mut balance).await.is_err());
    let mut told = told.lock().unwrap().clone();
    told.sort_unstable();
    assert_eq!(told, NAMES, "one call brings all of them down");
}
