//! How long things live: members, drivers, calls; and what a panic may not break.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use counterpoise::{
    Attempts, Balance, BalanceLayer, Builder, Direct, Endpoint, Health, Target, discover,
    error::ErrorKind,
    observe::{Discovery, EndpointState},
    policy::{BoxPolicy, Choice, Pick, Policy, RoundRobin, Turn, View},
};
use futures::FutureExt;
use tokio::time::advance;
use tokio_test::task;
use tower::{Layer, Service, ServiceExt, discover::Change};

use crate::{
    probes::{Gate, Item, Probe, answers, call, feed, for_each_policy, insert, remove},
    support::{Act, Answer, Broken, Site, Sites, settle},
};

// ===== B113: state of former endpoints =====

/// A key that knows how many of its kind live.
#[derive(Debug)]
struct Counted(u32, Arc<()>);

impl Clone for Counted {
    fn clone(&self) -> Self {
        Self(self.0, Arc::clone(&self.1))
    }
}

impl PartialEq for Counted {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Counted {}

impl std::hash::Hash for Counted {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl std::fmt::Display for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[tokio::test(start_paused = true)]
async fn b113_a_hundred_thousand_former_endpoints_leave_nothing_behind() {
    let (site, alive) = (Site::new("a"), Arc::new(()));
    let (sender, changes) = futures::channel::mpsc::unbounded::<Result<_, Broken>>();
    let mut balance = Builder::new().starting_at(0).balance(changes, RoundRobin::new()).unwrap();
    let key = |number| Counted(number, Arc::clone(&alive));
    for round in 0..10_000_u32 {
        for number in 10 * round..10 * round + 10 {
            if let Some(former) = number.checked_sub(10) {
                sender.unbounded_send(Ok(Change::Remove(key(former)))).unwrap();
            }
            sender.unbounded_send(Ok(Change::Insert(key(number), site.endpoint()))).unwrap();
        }
        balance.ready_when(1).await.unwrap();
        tokio::task::yield_now().await;
        for _ in 0..10 {
            call(&mut balance).await.unwrap();
        }
    }
    settle().await;
    let stats = balance.stats();
    assert_eq!(stats.endpoints.len(), 10);
    assert!(stats.endpoints.iter().all(|endpoint| endpoint.in_flight == 0));
    assert_eq!(site.calls(), 100_000);
    assert_eq!(site.instances(), 11, "ten members and the test's own");
    assert_eq!(Arc::strong_count(&alive), 11, "ten keys and the test's own");
}

#[tokio::test(start_paused = true)]
async fn b113_an_idle_clone_keeps_no_removed_endpoint_alive() {
    async fn case<P: Pick<()>>(policy: P) {
        let sites = Sites::new(&["a", "b"]);
        let (handle, changes) = discover::channel();
        handle.set(["a", "b"].map(|name| (name, sites[name].endpoint())));
        let mut balance = Builder::new().balance(changes, policy).unwrap();
        settle().await;
        answers(&mut balance, 4).await;
        let idle = balance.clone();
        handle.remove(&"a");
        settle().await;
        assert_eq!(sites["a"].instances(), 1);
        drop((balance, idle));
    }
    for_each_policy!(case);
}

// ===== B115: background work =====

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

#[tokio::test(start_paused = true)]
async fn b115_a_thousand_balancers_leave_no_task_behind() {
    async fn case<P: Pick<()> + Default>() {
        let (site, before) = (Site::new("a"), tasks());
        for _ in 0..1_000 {
            let (handle, changes) = discover::channel();
            handle.insert("a", site.endpoint());
            let mut balance = Builder::new().balance(changes, P::default()).unwrap();
            assert_eq!(answers(&mut balance, 1).await, ["a"]);
            assert_eq!(tasks(), before + 1);
            drop(balance);
            settle().await;
            assert_eq!(tasks(), before);
            assert!(handle.is_closed(), "the stream is dropped");
        }
        assert_eq!(site.instances(), 1, "all services are dropped");
    }
    case::<RoundRobin>().await;
    case::<counterpoise::policy::ModuloRoundRobin>().await;
}

#[tokio::test(start_paused = true)]
async fn b115_calls_in_flight_outlive_the_last_balancer() {
    async fn case<P: Pick<()>>(policy: P) {
        let site = Site::new("a");
        site.act(Act::After(Duration::from_secs(1)));
        let (handle, changes) = discover::channel();
        handle.insert("a", site.endpoint());
        let mut balance = Builder::new().balance(changes, policy).unwrap();
        settle().await;
        let ok = balance.ready().await.unwrap().call(());
        let dropped = balance.ready().await.unwrap().call(());
        drop(balance);
        settle().await;
        assert_eq!((tasks(), site.instances()), (0, 1));
        assert!(handle.is_closed());
        assert_eq!(ok.await.unwrap(), Answer::From("a"));
        drop(dropped);
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b115_a_waiting_call_keeps_discovery_going_until_it_is_served() {
    let site = Site::new("a");
    let (handle, changes) = discover::channel();
    let waiting = tokio::spawn(Balance::new(changes, RoundRobin::new()).oneshot(()));
    settle().await;
    assert_eq!(tasks(), 2);
    handle.insert("a", site.endpoint());
    assert_eq!(waiting.await.unwrap().unwrap(), Answer::From("a"));
    settle().await;
    assert_eq!((tasks(), site.instances()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn b115_a_layer_alone_keeps_the_set_and_its_last_drop_ends_it() {
    let site = Site::new("a");
    let (handle, changes) = discover::channel();
    handle.insert("a", site.endpoint());
    let layer = BalanceLayer::new(changes, RoundRobin::new());
    drop::<Balance<_, _, _>>(layer.layer(()));
    settle().await;
    assert_eq!((tasks(), site.instances()), (1, 2));
    drop(layer);
    settle().await;
    assert_eq!((tasks(), site.instances()), (0, 1));
}

// ===== outside a runtime =====

#[test]
fn a_balancer_made_outside_a_runtime_starts_with_its_first_call() {
    let site = Site::new("a");
    let (handle, changes) = discover::channel();
    handle.insert("a", site.endpoint());
    let layer = BalanceLayer::new(changes, RoundRobin::new());
    let mut balance: Balance<_, _, _> = layer.layer(());
    assert_eq!(layer.stats().discovery, Discovery::Starting);
    let mut early = balance.clone();
    let call_outside = early.call(());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        assert_eq!(tasks(), 0, "nothing has been called here yet");
        assert_eq!(call_outside.await.unwrap(), Answer::From("a"));
        assert_eq!(answers(&mut balance, 1).await, ["a"]);
        assert_eq!(tasks(), 1);
    });
    drop(runtime);
    assert_eq!(layer.stats().discovery, Discovery::Stopped, "its task has died with the runtime");
    assert!(handle.is_closed());
    assert_eq!(futures::executor::block_on(call(&mut balance)).unwrap(), Answer::From("a"));
}

#[test]
fn a_balancer_made_outside_a_runtime_and_never_used_frees_everything() {
    let site = Site::new("a");
    let (handle, changes) = discover::channel();
    handle.insert("a", site.endpoint());
    let balance = Balance::new(changes, RoundRobin::new());
    assert!(!handle.is_closed());
    drop(balance);
    assert!(handle.is_closed());
    assert_eq!(site.instances(), 1);
}

#[test]
fn ready_when_starts_the_driver_too() {
    let sites = Sites::new(&["a", "b"]);
    let balance = Balance::new(sites.list(&["a", "b"]), RoundRobin::new());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(balance.ready_when(2)).unwrap();
}

// ===== B116: who it was =====

#[tokio::test(start_paused = true)]
async fn b116_an_error_names_its_endpoint_and_keeps_its_cause() {
    async fn case<P: Pick<()>>(policy: P) {
        let sites = Sites::new(&["a", "b"]);
        sites["b"].act(Act::Err);
        let list = sites.list(&["a", "b"]);
        let mut balance = Builder::new().starting_at(1).balance(list, policy).unwrap();
        settle().await;
        let error = call(&mut balance).await.unwrap_err();
        assert_eq!((error.kind(), error.endpoint()), (ErrorKind::Call, Some("b")));
        assert_eq!(error.find::<Broken>().unwrap().0, "b");
        assert!(error.find::<std::fmt::Error>().is_none());
        assert!(error.to_string().contains("endpoint b"), "{error}");
        assert!(!error.is_unavailable() && !error.is_unsent());
        assert_eq!(error.counts(), counterpoise::error::Counts::default());
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b116_an_error_of_nobody_counts_what_there_was() {
    async fn case<P: Pick<()>>(policy: P) {
        let sites = Sites::new(&["a", "b", "c"]);
        let (handle, changes) = discover::channel();
        handle.set([
            ("a", sites["a"].endpoint()),
            ("b", sites["b"].endpoint()),
            ("c", sites["c"].endpoint().weight(0)),
        ]);
        let health =
            Health::new().consecutive_failures(1).panic_mode(counterpoise::health::PanicMode::Fail);
        let builder = Builder::new().health(health);
        let mut balance = builder.balance(changes, policy).unwrap();
        settle().await;
        for name in ["a", "b"] {
            sites[name].act(Act::Err);
        }
        for _ in 0..2 {
            call(&mut balance).await.unwrap_err();
        }
        let error = call(&mut balance).await.unwrap_err();
        let counts = error.counts();
        assert_eq!((error.kind(), error.endpoint()), (ErrorKind::Ejected, None));
        assert_eq!((counts.members, counts.ejected, counts.drained, counts.unready), (3, 2, 1, 0));
        assert!(error.to_string().contains("3 members, 2 ejected, 1 drained, 0 not ready"));

        handle.set(["a", "b"].map(|name| (name, sites[name].endpoint().weight(0))));
        settle().await;
        let error = call(&mut balance).await.unwrap_err();
        assert_eq!((error.kind(), error.counts().drained), (ErrorKind::Drained, 2));
        assert!(error.is_unavailable() && error.is_unsent());
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b116_attempts_tell_who_answered() {
    async fn case<P: Pick<()>>(policy: P) {
        let sites = Sites::new(&["a", "b"]);
        let list = sites.list(&["a", "b"]);
        let balance = Builder::new().starting_at(0).balance(list, policy).unwrap();
        settle().await;
        for want in ["a", "b", "a"] {
            let attempts = Attempts::new();
            attempts.scope(balance.clone().oneshot(())).await.unwrap();
            assert_eq!(attempts.names(), [Arc::from(want)]);
        }
        let attempts = Attempts::new();
        attempts.scope(balance.clone().oneshot(())).await.unwrap();
        attempts.scope(balance.clone().oneshot(())).await.unwrap();
        let names = attempts.names();
        assert_eq!(names.len(), 2);
        assert_ne!(names[0], names[1], "the second prefers the other");
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b116_attempts_name_who_was_sent_to_and_not_who_was_not_ready() {
    let (a, b) = (Probe::new("a", Gate::FailsOnce), Probe::new("b", Gate::Open));
    let list = discover::list([("a", a.endpoint()), ("b", b.endpoint())]);
    let balance = Builder::new().starting_at(0).balance(list, RoundRobin::new()).unwrap();
    settle().await;
    let attempts = Attempts::new();
    attempts.scope(balance.oneshot(())).await.unwrap();
    assert_eq!(attempts.names(), [Arc::from("b")]);
}

// ===== panics of services =====

/// A target that panics when it is attached.
struct Unattachable;

impl<C> Target<C> for Unattachable {
    type Service = Probe;

    fn attach(&self, _client: &C) -> Probe {
        panic!("attach panics");
    }
}

/// Checks that a panic was one failure of the only endpoint, and left nothing running.
async fn failed_once<T: Target<(), Service = Probe> + Send + Sync + 'static>(
    target: T,
    probe: &Probe,
    panics: impl AsyncFnOnce(&mut Balance<T, RoundRobin>),
) {
    let list = discover::list([("a", Endpoint::new(target))]);
    let mut balance = Balance::new(list, RoundRobin::new());
    settle().await;
    panics(&mut balance).await;
    let stats = balance.stats();
    let node = stats.endpoint("a").unwrap();
    assert_eq!((node.in_flight, stats.waiting), (0, 0));
    assert_eq!((node.picks, node.failures, node.consecutive_failures, node.drops), (1, 1, 1, 0));
    drop(balance);
    settle().await;
    assert_eq!(probe.site.instances(), 1);
}

async fn panics_in_call<T>(balance: &mut Balance<T, RoundRobin>)
where
    T: Target<(), Service = Probe> + Send + Sync + 'static,
{
    let ready = balance.ready().await.unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(ready.call(())))).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_attach_is_a_failure_and_reaches_the_caller() {
    let probe = Probe::new("a", Gate::Open);
    failed_once(Unattachable, &probe, panics_in_call).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_poll_ready_is_a_failure_and_reaches_the_caller() {
    let probe = Probe::new("a", Gate::Panics);
    failed_once(Direct(probe.clone()), &probe, panics_in_call).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_poll_ready_during_a_wait_is_a_failure_and_reaches_the_caller() {
    let probe = Probe::new("a", Gate::Shut);
    failed_once(Direct(probe.clone()), &probe, async |balance| {
        let waiting = tokio::spawn(balance.clone().oneshot(()));
        settle().await;
        assert_eq!(balance.stats().waiting, 1);
        probe.turn(Gate::Panics);
        assert!(waiting.await.unwrap_err().is_panic());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_future_is_a_failure_and_reaches_the_caller() {
    let probe = Probe::new("a", Gate::Open);
    probe.act(Act::Panic);
    failed_once(Direct(probe.clone()), &probe, async |balance| {
        let running = tokio::spawn(balance.clone().oneshot(()));
        assert!(running.await.unwrap_err().is_panic());
    })
    .await;
    let caught = AssertUnwindSafe(
        Balance::new(discover::list([("a", probe.endpoint())]), RoundRobin::new()).oneshot(()),
    );
    assert!(caught.catch_unwind().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_services_call_is_a_failure_and_reaches_the_caller() {
    let panics =
        tower::service_fn(|()| -> std::future::Ready<Result<(), Broken>> { panic!("call panics") });
    let list = discover::list([("a", Endpoint::new(Direct(panics)))]);
    let mut balance = Balance::new(list, RoundRobin::new());
    settle().await;
    let ready = balance.ready().await.unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(ready.call(())))).is_err());
    let stats = balance.stats();
    let node = stats.endpoint("a").unwrap();
    assert_eq!((node.in_flight, node.picks, node.failures), (0, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_classifier_is_a_failure_and_reaches_the_caller() {
    let site = Site::new("a");
    let list = discover::list([("a", site.endpoint())]);
    let builder = Builder::new().classify_fn(|_: Result<&Answer, &Broken>| panic!("classify"));
    let balance = builder.balance(list, RoundRobin::new()).unwrap();
    settle().await;
    assert!(tokio::spawn(balance.clone().oneshot(())).await.unwrap_err().is_panic());
    let stats = balance.stats();
    let node = stats.endpoint("a").unwrap();
    assert_eq!((node.in_flight, node.picks, node.failures), (0, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_trial_gives_its_place_back_and_ejects_again() {
    let sites = Sites::new(&["a", "b"]);
    let health = Health::new().consecutive_failures(1).jitter(0.0);
    let builder = Builder::new().starting_at(0).health(health);
    let list = sites.list(&["a", "b"]);
    let mut balance = builder.balance(list, RoundRobin::new()).unwrap();
    settle().await;
    sites["a"].act(Act::Panic);
    assert!(tokio::spawn(balance.clone().oneshot(())).await.unwrap_err().is_panic());
    assert_eq!(balance.stats().endpoint("a").unwrap().state, EndpointState::Ejected);
    advance(Duration::from_secs(10)).await;
    assert!(tokio::spawn(balance.clone().oneshot(())).await.unwrap_err().is_panic());
    assert_eq!(balance.stats().endpoint("a").unwrap().ejections, 2);
    sites["a"].act(Act::Ok);
    advance(Duration::from_secs(20)).await;
    assert_eq!(answers(&mut balance, 1).await, ["a"]);
    assert_eq!(balance.stats().endpoint("a").unwrap().state, EndpointState::Serving);
}

// ===== policies that misbehave =====

/// A policy that does what the test says, and counts how often it is asked.
#[derive(Clone)]
struct Says {
    choose: fn(&Turn<'_>, usize) -> Choice,
    asked: Arc<AtomicUsize>,
}

impl Says {
    fn new(choose: fn(&Turn<'_>, usize) -> Choice) -> Self {
        Self { choose, asked: Arc::default() }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Policy for Says {
    type Table = ();

    fn compile(&self, _view: &View<'_>, _previous: Option<&()>) {}
}

impl<Req: ?Sized> Pick<Req> for Says {
    fn pick(&self, _table: &(), _request: &Req, turn: &Turn<'_>) -> Choice {
        (self.choose)(turn, self.asked.fetch_add(1, Ordering::SeqCst))
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_panics_in_a_pick_reaches_the_caller_and_loses_nothing() {
    async fn case<P: Pick<()>>(policy: P) {
        let site = Site::new("a");
        let list = discover::list([("a", site.endpoint())]);
        let mut balance = Builder::new().balance(list, policy).unwrap();
        settle().await;
        let ready = balance.ready().await.unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| drop(ready.call(())))).is_err());
        let stats = balance.stats();
        assert_eq!((stats.waiting, stats.endpoint("a").unwrap().picks), (0, 0));
        assert_eq!(answers(&mut balance, 3).await, ["a"; 3]);
        assert_eq!(site.instances(), 2);
    }
    let once = || {
        Says::new(|_, nth| {
            assert_ne!(nth, 0, "the first pick panics");
            Choice::Any
        })
    };
    case(once()).await;
    case(BoxPolicy::new(once())).await;
}

#[tokio::test(start_paused = true)]
async fn an_index_out_of_range_is_an_error_of_the_call() {
    async fn case<P: Pick<()>>(policy: P) {
        let sites = Sites::new(&["a", "b"]);
        let list = sites.list(&["a", "b"]);
        let mut balance = Builder::new().balance(list, policy).unwrap();
        settle().await;
        let error = call(&mut balance).await.unwrap_err();
        assert_eq!((error.kind(), error.endpoint()), (ErrorKind::Policy, None));
        assert!(error.to_string().contains("member 2 of 2"), "{error}");
        assert!(error.is_unsent() && !error.is_unavailable());
        assert_eq!((sites["a"].calls(), sites["b"].calls()), (0, 0));
        assert_eq!(balance.stats().waiting, 0);
    }
    case(Says::new(|_, _| Choice::Member(2))).await;
    case(BoxPolicy::new(Says::new(|_, _| Choice::Member(2)))).await;
    let list = Sites::new(&["a"]).list(&["a"]);
    let mut balance = Balance::new(list, Says::new(|_, _| Choice::Member(usize::MAX)));
    settle().await;
    assert_eq!(call(&mut balance).await.unwrap_err().kind(), ErrorKind::Policy);
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_fails_with_the_reason() {
    async fn case<P: Pick<()>>(policy: P) {
        let site = Site::new("a");
        let list = discover::list([("a", site.endpoint())]);
        let mut balance = Builder::new().balance(list, policy).unwrap();
        settle().await;
        let error = call(&mut balance).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Policy);
        assert!(error.to_string().contains("not today"), "{error}");
        assert_eq!((site.calls(), balance.stats().waiting), (0, 0));
    }
    case(Says::new(|_, _| Choice::Refuse("not today"))).await;
    case(BoxPolicy::new(Says::new(|_, _| Choice::Refuse("not today")))).await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_final() {
    let refuses_once = Says::new(|_, nth| match nth {
        0 => Choice::Refuse("not today"),
        _ => Choice::Any,
    });
    let site = Site::new("a");
    let list = discover::list([("a", site.endpoint())]);
    let mut balance = Balance::new(list, refuses_once.clone());
    settle().await;
    assert_eq!(call(&mut balance).await.unwrap_err().kind(), ErrorKind::Policy);
    assert_eq!((refuses_once.asked(), site.calls()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_drained_or_ejected_member_that_a_careless_policy_names_gets_no_call() {
    async fn case<P: Pick<()>>(policy: P) {
        let sites = Sites::new(&["a", "b", "c"]);
        let (handle, changes) = discover::channel();
        handle.set(["a", "b", "c"].map(|name| (name, sites[name].endpoint())));
        let health = Health::new().consecutive_failures(1);
        let builder = Builder::new().starting_at(0).health(health);
        let mut balance = builder.balance(changes, policy).unwrap();
        settle().await;
        assert_eq!(answers(&mut balance, 2).await, ["a", "a"]);
        handle.insert("a", sites["a"].endpoint().weight(0));
        settle().await;
        let others = answers(&mut balance, 100).await;
        assert!(others.iter().all(|name| ["b", "c"].contains(name)), "a is drained");
        assert_eq!((sites["b"].calls(), sites["c"].calls()), (50, 50), "in turn");

        handle.insert("a", sites["a"].endpoint());
        settle().await;
        sites["a"].act(Act::Err);
        call(&mut balance).await.unwrap_err();
        answers(&mut balance, 100).await;
        assert_eq!(sites["a"].calls(), 3, "a is ejected");
        assert_eq!((sites["b"].calls(), sites["c"].calls()), (100, 100), "in turn");
    }
    case(Says::new(|_, _| Choice::Member(0))).await;
    case(BoxPolicy::new(Says::new(|_, _| Choice::Member(0)))).await;
}

#[tokio::test(start_paused = true)]
async fn any_is_a_rotation_over_the_eligible() {
    let sites = Sites::new(&["a", "b", "c"]);
    let list = sites.list(&["a", "b", "c"]);
    let any = Says::new(|_, _| Choice::Any);
    let mut balance = Builder::new().starting_at(1).balance(list, any).unwrap();
    settle().await;
    assert_eq!(answers(&mut balance, 4).await, ["b", "c", "a", "b"]);
}

// ===== services live as long as they are needed =====

#[tokio::test(start_paused = true)]
async fn a_former_service_is_dropped_when_its_last_call_ends() {
    let (old, new) = (Site::new("old"), Site::new("new"));
    old.act(Act::After(Duration::from_secs(1)));
    let (feed, changes) = feed();
    let send = |item: Item<_>| feed.unbounded_send(item).unwrap();
    send(insert("a", old.endpoint()));
    let mut balance = Balance::new(changes, RoundRobin::new());
    settle().await;
    let mut running = task::spawn(balance.ready().await.unwrap().call(()));
    assert!(matches!(running.poll(), Poll::Pending));
    send(insert("a", new.endpoint()));
    settle().await;
    assert_eq!(balance.stats().endpoint("a").unwrap().in_flight, 1);
    running.await.unwrap();
    let stats = balance.stats();
    let node = stats.endpoint("a").unwrap();
    assert_eq!((node.in_flight, node.successes, old.instances()), (0, 1, 1));
    send(remove("a"));
    settle().await;
    assert_eq!(new.instances(), 1);
}
