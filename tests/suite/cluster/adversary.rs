//! Attacks on the builds of large sets: what happens to members, health and weights while a picker
//! is built on another thread, and what the picker that is published knows of it.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
    mpsc::{Receiver, Sender, channel},
};

use counterpoise::{
    Balance, Builder, Direct, Event, Health, Stats,
    discover::{self, Handle},
    observe::EndpointState,
    policy::{Members, PickContext, PickResult, Picker, Policy},
};
use futures::FutureExt;
use tokio::time::advance;
use tower::{Layer, Service};

use crate::{
    bed::{SECOND, eject1},
    probes::{Probe, call, name},
    support::{Act, settle},
};

/// What a picker knows of each member: name, effective weight, tier, and whether it is eligible.
type View = Vec<(String, f64, u32, bool)>;

/// Picks the members that were eligible at its build in turn. A build may be held up, once.
#[derive(Clone)]
struct Held {
    /// Whether the next build off the test's thread is held up, and whether it panics then.
    hold: Arc<AtomicBool>,
    panics: Arc<AtomicBool>,
    begun: Sender<()>,
    go: Arc<Mutex<Receiver<()>>>,
    home: std::thread::ThreadId,
    /// What the picker of the last pick knew.
    used: Arc<Mutex<View>>,
}

struct HeldPicker {
    eligible: Vec<usize>,
    view: View,
    used: Arc<Mutex<View>>,
}

impl Held {
    /// Also returns what says that a build has begun, and what lets it go on.
    fn new() -> (Self, Receiver<()>, Sender<()>) {
        let (begun, has_begun) = channel();
        let (say, word) = channel();
        let policy = Self {
            hold: Arc::default(),
            panics: Arc::default(),
            begun,
            go: Arc::new(Mutex::new(word)),
            home: std::thread::current().id(),
            used: Arc::default(),
        };
        (policy, has_begun, say)
    }
}

impl Policy for Held {
    type Picker = HeldPicker;

    fn build(&self, members: &Members<'_>, _previous: Option<&HeldPicker>) -> HeldPicker {
        let away = std::thread::current().id() != self.home;
        if away && self.hold.swap(false, Ordering::SeqCst) {
            self.begun.send(()).unwrap();
            self.go.lock().unwrap().recv().unwrap();
            assert!(
                !self.panics.swap(false, Ordering::SeqCst),
                "as the test says"
            );
        }
        let eligible: Vec<_> = members.eligible().iter().map(|&i| i as usize).collect();
        let view = members.iter().enumerate().map(|(index, member)| {
            (
                member.name().to_owned(),
                member.effective_weight(),
                member.tier(),
                eligible.binary_search(&index).is_ok(),
            )
        });
        HeldPicker {
            view: view.collect(),
            eligible,
            used: Arc::clone(&self.used),
        }
    }
}

impl Picker<()> for HeldPicker {
    fn pick(&self, _request: &(), cx: &PickContext<'_>) -> PickResult {
        self.used.lock().unwrap().clone_from(&self.view);
        let place = cx.ticket() as usize % self.eligible.len();
        PickResult::Member(self.eligible[place])
    }
}

const N: usize = 1_100;

type Large = (
    Vec<Probe>,
    Handle<&'static str, Direct<Probe>>,
    Balance<Direct<Probe>, Held>,
);

async fn large(builder: Builder, policy: &Held) -> Large {
    let probes: Vec<_> = (0..N).map(|i| Probe::new(name("m", i))).collect();
    let (handle, changes) = discover::channel();
    handle.set(probes.iter().map(|probe| (probe.name(), probe.endpoint())));
    let builder = builder.starting_at(0).seed(1);
    let balance = builder.balance(changes, policy.clone()).unwrap();
    balance.ready_when(N).await.unwrap();
    advance(SECOND).await;
    (probes, handle, balance)
}

/// Returns what the statistics say, as a picker's view.
fn view(stats: &Stats) -> View {
    let endpoints = stats.endpoints.iter().map(|endpoint| {
        let serves = matches!(
            endpoint.state,
            EndpointState::Serving | EndpointState::Unready
        );
        let weight = if serves {
            endpoint.effective_weight
        } else {
            -1.0
        };
        (endpoint.name.to_string(), weight, endpoint.tier, serves)
    });
    endpoints.collect()
}

fn used(policy: &Held) -> View {
    let mut view = policy.used.lock().unwrap().clone();
    for member in &mut view {
        if !member.3 {
            member.1 = -1.0;
        }
    }
    view
}

/// Asserts that the picker of the last pick knows what the statistics say.
fn assert_knows(policy: &Held, stats: &Stats, what: &str) {
    let (used, view) = (used(policy), view(stats));
    let differ = used.iter().zip(&view).filter(|(a, b)| a != b);
    assert_eq!(differ.collect::<Vec<_>>(), [], "{what}");
    assert_eq!(used.len(), view.len(), "{what}");
}

/// Ejects a member by one call that fails there.
async fn eject(probes: &[Probe], number: usize, balance: &mut Balance<Direct<Probe>, Held>) {
    probes[number].act(Act::Err);
    let attempts = counterpoise::Attempts::new();
    attempts.prefer(probes[number].name());
    attempts.scope(call(balance)).await.unwrap_err();
    probes[number].act(Act::Ok);
}

const CHANGES: [&str; 7] = [
    "nothing",
    "an ejection",
    "an ejection that is gathered",
    "an ejection and a recovery",
    "a capacity",
    "a capacity of zero",
    "a capacity that is set and taken back",
];

#[tokio::test(start_paused = true)]
async fn what_changes_during_a_build_is_in_the_picker_that_is_published() {
    for (number, change) in CHANGES.into_iter().enumerate() {
        let (policy, has_begun, say) = Held::new();
        let builder = Builder::new().health(eject1());
        let (probes, handle, mut balance) = large(builder, &policy).await;
        policy.hold.store(true, Ordering::SeqCst);
        let newcomer = Probe::new("new");
        handle.insert("new", newcomer.endpoint().tier(3));
        handle.insert(probes[5].name(), probes[5].endpoint().tier(7).weight(2));
        handle.remove(&probes[6].name());
        settle().await;
        has_begun.recv().unwrap();
        assert_eq!(balance.stats().endpoints.len(), N, "not published yet");
        match number {
            1 => eject(&probes, 9, &mut balance).await,
            2 => {
                eject(&probes, 9, &mut balance).await;
                eject(&probes, 10, &mut balance).await;
                // Of a member that leaves with the batch.
                eject(&probes, 6, &mut balance).await;
            }
            3 => {
                eject(&probes, 9, &mut balance).await;
                // The clock stands still while a build runs, unless it is moved.
                advance(11 * SECOND).await;
                call(&mut balance).await.unwrap();
                assert_eq!(balance.stats().counts.ejected, 0);
            }
            4 => drop(balance.set_capacity(probes[9].name(), 0.5)),
            5 => drop(balance.set_capacity(probes[9].name(), 0.0)),
            6 => {
                let _ = balance.set_capacity(probes[9].name(), 0.0);
                let _ = balance.set_capacity(probes[9].name(), 1.0);
            }
            _ => {}
        }
        say.send(()).unwrap();
        while balance.stats().endpoint("new").is_none() {
            tokio::task::yield_now().await;
        }
        let before = probes[6].calls();
        call(&mut balance).await.unwrap();
        let stats = balance.stats();
        assert_knows(&policy, &stats, change);
        assert_eq!(stats.endpoint(probes[5].name()).unwrap().tier, 7);
        assert!(stats.endpoint(probes[6].name()).is_none());
        let out = [9, 10].map(|n| probes[n].calls());
        for _ in 0..N {
            call(&mut balance).await.unwrap();
        }
        assert!(newcomer.calls() > 0, "{change}");
        assert_eq!(probes[6].calls(), before, "{change}: it has left");
        if let 1 | 2 | 5 = number {
            assert_eq!(probes[9].calls(), out[0], "{change}");
        }
        if number == 2 {
            assert_eq!(probes[10].calls(), out[1], "{change}");
        }
    }
}

/// A build that panics on the other thread, and an ejection meanwhile: the former picker stays,
/// nobody out of service gets a call, and the next change publishes everything.
#[tokio::test(start_paused = true)]
async fn a_build_ahead_that_panics_is_made_up_by_the_next_change() {
    let (policy, has_begun, say) = Held::new();
    let builder = Builder::new().health(eject1());
    let (probes, handle, mut balance) = large(builder, &policy).await;
    policy.hold.store(true, Ordering::SeqCst);
    policy.panics.store(true, Ordering::SeqCst);
    handle.insert("new", Probe::new("new").endpoint());
    handle.remove(&probes[6].name());
    settle().await;
    has_begun.recv().unwrap();
    eject(&probes, 9, &mut balance).await;
    say.send(()).unwrap();
    while balance.stats().policy_panics == 0 {
        tokio::task::yield_now().await;
    }
    settle().await;
    let before = [6, 9].map(|n| probes[n].calls());
    for _ in 0..N {
        call(&mut balance).await.unwrap();
    }
    assert_eq!([6, 9].map(|n| probes[n].calls()), before);
    eject(&probes, 11, &mut balance).await;
    advance(SECOND).await;
    eject(&probes, 12, &mut balance).await;
    advance(SECOND).await;
    call(&mut balance).await.unwrap();
    let stats = balance.stats();
    assert_knows(&policy, &stats, "");
    assert_eq!((stats.endpoints.len(), stats.counts.ejected), (N, 3));
}

#[tokio::test(start_paused = true)]
async fn the_last_members_of_a_large_set_are_kept_until_another_joins() {
    let (policy, _has_begun, _say) = Held::new();
    let builder = Builder::new().health(Health::off()).keep_last(true);
    let (probes, handle, mut balance) = large(builder, &policy).await;
    handle.set([]);
    settle().await;
    assert_eq!(balance.stats().endpoints.len(), N);
    call(&mut balance).await.unwrap();
    let new = Probe::new("new");
    handle.insert("new", new.endpoint());
    settle().await;
    let stats = balance.stats();
    assert_eq!(stats.endpoints.len(), 1);
    call(&mut balance).await.unwrap();
    assert_eq!(new.calls(), 1);
    assert_knows(&policy, &stats, "");
    drop(stats);
    settle().await;
    assert!(
        probes.iter().all(|probe| probe.instances() == 1),
        "all are dropped"
    );
}

/// What happens during a build is told before the batch for which it is made.
#[tokio::test(start_paused = true)]
async fn events_of_a_batch_come_when_it_is_applied_and_in_its_order() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&log);
    let builder = Builder::new().health(eject1()).on_event(move |event| {
        let entry = match event {
            Event::Joined { endpoint, .. } => format!("{endpoint} joined"),
            Event::Left { endpoint, .. } => format!("{endpoint} left"),
            Event::Ejected { endpoint, .. } => format!("{endpoint} ejected"),
            Event::WeightChanged { endpoint, .. } => format!("{endpoint} weighed"),
            _ => return,
        };
        noted.lock().unwrap().push(entry);
    });
    let (policy, has_begun, say) = Held::new();
    let (probes, handle, mut balance) = large(builder, &policy).await;
    log.lock().unwrap().clear();
    policy.hold.store(true, Ordering::SeqCst);
    handle.insert("x", Probe::new("x").endpoint());
    handle.insert("x", Probe::new("x").endpoint().weight(2));
    handle.remove(&probes[9].name());
    handle.insert(probes[9].name(), probes[9].endpoint());
    settle().await;
    has_begun.recv().unwrap();
    eject(&probes, 9, &mut balance).await;
    assert_eq!(*log.lock().unwrap(), ["m9 ejected"]);
    say.send(()).unwrap();
    while balance.stats().endpoint("x").is_none() {
        tokio::task::yield_now().await;
    }
    let told = log.lock().unwrap().clone();
    assert_eq!(told[0], "m9 ejected");
    let place = |entry: &str| told.iter().position(|other| other == entry);
    assert!(
        place("m9 left").unwrap() < place("m9 joined").unwrap(),
        "{told:?}"
    );
    assert!(place("x joined").is_some(), "{told:?}");
    let ninth = balance.stats().endpoint("m9").unwrap().clone();
    assert_eq!(ninth.state, EndpointState::Serving, "a new member");
}

/// Without a runtime a large set is built where the driver is polled.
#[test]
fn a_driver_that_is_polled_without_a_runtime_builds_large_sets_itself() {
    let (policy, _has_begun, _say) = Held::new();
    let (handle, changes) = discover::channel();
    let builder = Builder::new().starting_at(0).health(Health::off());
    let (layer, driver) = builder.pair(changes, policy.clone()).unwrap();
    let mut balance: Balance<Direct<Probe>, Held> = layer.layer(());
    let mut driver = tokio_test::task::spawn(driver);
    let probes: Vec<_> = (0..N).map(|i| Probe::new(name("m", i))).collect();
    handle.set(probes.iter().map(|probe| (probe.name(), probe.endpoint())));
    for _ in 0..8 {
        assert!(driver.poll().is_pending());
    }
    assert_eq!(balance.stats().endpoints.len(), N);
    for _ in 0..N {
        balance.call(()).now_or_never().unwrap().unwrap();
    }
    assert!(probes.iter().all(|probe| probe.calls() == 1));
    assert_knows(&policy, &balance.stats(), "");
    drop((balance, layer));
    assert!(driver.poll().is_ready());
}

/// A change of labels alone is one publication, at any size, and the former service is replaced.
#[tokio::test(start_paused = true)]
async fn labels_alone_are_one_publication() {
    let (policy, _has_begun, _say) = Held::new();
    let (probes, handle, mut balance) = large(Builder::new(), &policy).await;
    let generation = balance.stats().generation;
    for probe in &probes[..5] {
        handle.insert(probe.name(), probe.endpoint().tier(4).label("rack", "r1"));
    }
    while balance.stats().generation == generation {
        tokio::task::yield_now().await;
    }
    settle().await;
    let stats = balance.stats();
    assert_eq!(stats.generation, generation + 1);
    let racks = stats
        .endpoints
        .iter()
        .filter(|e| e.labels.get("rack") == Some("r1"));
    assert_eq!(racks.count(), 5);
    call(&mut balance).await.unwrap();
    assert_knows(&policy, &stats, "");
    assert_eq!(
        used(&policy).iter().filter(|member| member.2 == 4).count(),
        5
    );
}
