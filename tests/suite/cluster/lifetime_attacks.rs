//! Attacks on lifetimes and memory: services that panic when they are dropped, policies that
//! never compile, sets that were large once, drivers that are polled in odd ways.

use std::{
    fmt,
    future::{Future, ready},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};

use allocation_counter::measure;
use counterpoise::{
    Balance, BalanceLayer, Builder, Direct, Endpoint, Target,
    call::AtHead,
    discover,
    error::ErrorKind,
    health::CapacityChange,
    health::ErrorsAreFailures,
    observe::{Discovery, EndpointState},
    policy::{Members, Picker, Policy, RoundRobin, SmoothWeighted},
};
use futures::FutureExt;
use tokio_test::task;
use tower::{Layer, Service, service_fn};

use crate::{
    bed::{SECOND, eject1},
    probes::{Gate, Probe, call},
    support::{Answer, Broken, Rotation, Site, settle},
    table::{Fail, Table},
};

// ===== panics in drops =====

/// A target whose drop panics once it is told to.
struct Bomb {
    site: Site,
    armed: Arc<AtomicBool>,
}

impl Target<()> for Bomb {
    type Service = Site;
    type Judge = AtHead<ErrorsAreFailures>;

    fn attach(&self, _client: &()) -> Site {
        self.site.clone()
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        let armed = self.armed.swap(false, Ordering::SeqCst);
        assert!(!armed, "a target panics when it is dropped");
    }
}

#[tokio::test(start_paused = true)]
async fn a_target_that_panics_when_it_is_dropped_does_not_end_discovery() {
    let armed = Arc::new(AtomicBool::new(false));
    let bomb = |name| {
        Endpoint::new(Bomb {
            site: Site::new(name),
            armed: Arc::clone(&armed),
        })
    };
    let (handle, changes) = discover::channel();
    handle.set([("a", bomb("a")), ("b", bomb("b"))]);
    let balance = Builder::new().balance(changes, RoundRobin::new()).unwrap();
    settle().await;
    armed.store(true, Ordering::SeqCst);
    handle.remove(&"a");
    settle().await;
    assert!(!armed.load(Ordering::SeqCst), "it was dropped");
    assert_eq!(balance.stats().endpoints.len(), 1);
    handle.insert("c", bomb("c"));
    settle().await;
    let stats = balance.stats();
    assert_eq!(
        (stats.discovery, stats.endpoints.len()),
        (Discovery::Following, 2)
    );
}

/// Panics once when it is dropped after a call.
#[derive(Clone, Default)]
struct Ash {
    called: bool,
    panics: Arc<AtomicBool>,
}

impl Drop for Ash {
    fn drop(&mut self) {
        let panics = self.called && self.panics.swap(false, Ordering::SeqCst);
        assert!(!panics, "a service panics when it is dropped");
    }
}

/// A service that may fail, and may panic when it is dropped after it was called.
fn burning(
    mut ash: Ash,
    fails: Arc<AtomicBool>,
) -> Direct<impl Service<(), Response = (), Error = Broken, Future: Send> + Clone + Send + 'static>
{
    Direct(service_fn(move |()| {
        // As a whole, so that it is dropped with the service.
        let ash = &mut ash;
        ash.called = true;
        ready(if fails.load(Ordering::SeqCst) {
            Err(Broken("ash"))
        } else {
            Ok(())
        })
    }))
}

/// Makes a call that panics on the way.
fn blow_up<T>(balance: &mut Balance<T, RoundRobin>)
where
    Balance<T, RoundRobin>: Service<()>,
{
    let call = std::panic::AssertUnwindSafe(|| balance.call(()).now_or_never());
    assert!(std::panic::catch_unwind(call).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_service_that_panics_when_it_is_dropped_leaks_nothing() {
    let ash = Ash::default();
    let service = burning(ash.clone(), Arc::default());
    let list = discover::list([("a", Endpoint::new(service))]);
    let mut balance = Balance::new(list, RoundRobin::new());
    settle().await;
    ash.panics.store(true, Ordering::SeqCst);
    blow_up(&mut balance);
    call(&mut balance).await.unwrap();
    let stats = balance.stats();
    assert_eq!(
        (stats.endpoints[0].in_flight, stats.endpoints[0].picks),
        (0, 2)
    );
}

#[tokio::test(start_paused = true)]
async fn a_service_that_panics_when_it_is_dropped_gives_the_place_of_its_trial_back() {
    let (a, fails) = (Ash::default(), Arc::new(AtomicBool::new(false)));
    let list = [("a", (a.clone(), fails.clone())), ("b", Default::default())];
    let list = list.map(|(key, (ash, fails))| (key, Endpoint::new(burning(ash, fails))));
    let builder = Builder::new().health(eject1()).starting_at(0);
    let mut balance = builder
        .balance(discover::list(list), RoundRobin::new())
        .unwrap();
    settle().await;
    fails.store(true, Ordering::SeqCst);
    call(&mut balance).await.unwrap_err();
    fails.store(false, Ordering::SeqCst);
    tokio::time::advance(10 * SECOND).await;
    a.panics.store(true, Ordering::SeqCst);
    blow_up(&mut balance);
    // Whatever that said about the endpoint, it is tried again one day.
    tokio::time::advance(1_000 * SECOND).await;
    call(&mut balance).await.unwrap();
    assert_eq!(
        balance.stats().endpoint("a").unwrap().state,
        EndpointState::Serving
    );
}

// ===== memory =====

#[test]
fn a_set_that_was_large_once_gives_its_memory_back() {
    fn check<P: Policy<Picker: Picker<Fail>>>(policy: P) {
        let mut table = None;
        let info = measure(|| {
            let mut growing = Table::new(policy, &[1]);
            for part in 0..5 {
                growing.insert_all((0..10_000).map(|i| (1 + part * 10_000 + i, 1)));
            }
            growing.picks(10);
            for number in 1..=50_000 {
                growing.remove_later(number);
                if number % 10_000 == 0 {
                    growing.insert(0, 1);
                }
            }
            growing.picks(10);
            assert_eq!(growing.balance.stats().endpoints.len(), 1);
            table = Some(growing);
        });
        assert!(
            info.bytes_current < 1 << 20,
            "{} bytes for one endpoint",
            info.bytes_current
        );
    }
    check(SmoothWeighted::new());
}

/// Panics in every compile of a set that is not empty.
struct Hopeless;

impl Policy for Hopeless {
    type Picker = Rotation;

    fn build(&self, members: &Members<'_>, _previous: Option<&Rotation>) -> Rotation {
        if !members.is_empty() {
            // Without a word, as there are thousands of them.
            std::panic::resume_unwind(Box::new("hopeless"));
        }
        Rotation
    }
}

#[test]
fn a_policy_that_never_compiles_does_not_make_memory_grow() {
    let mut table = Table::new(Hopeless, &[1, 1]);
    let info = measure(|| (0..5_000).for_each(|_| table.insert(1, 1)));
    assert!(
        info.bytes_current < 10_000,
        "{} bytes more",
        info.bytes_current
    );
}

#[test]
fn churn_with_health_and_weights_does_not_make_memory_grow() {
    let mut table = Table::new(SmoothWeighted::new(), &[1; 50]);
    let mut churn = |rounds: usize| {
        for round in 0..rounds {
            let who = round % 50;
            match round % 5 {
                0 => table.remove(who),
                1 | 2 => table.insert(who, 1 + (round % 3) as u32),
                3 => drop(table.call(true)),
                _ => {
                    let _ = table
                        .balance
                        .set_capacity(&who.to_string(), (round % 2) as f64);
                }
            }
            table.picks(3);
        }
        (0..50).for_each(|who| table.insert(who, 1));
        for who in 0..50 {
            let _ = table.balance.set_capacity(&who.to_string(), 1.0);
        }
        table.picks(3_000);
    };
    churn(1_000);
    let info = measure(|| churn(10_000));
    assert!(
        info.bytes_current < 50_000,
        "{} bytes more",
        info.bytes_current
    );
}

// ===== drivers and runtimes =====

#[tokio::test(start_paused = true)]
async fn a_driver_may_be_polled_after_its_end() {
    let (handle, changes) = discover::channel::<&str, Direct<Site>>();
    let (layer, driver) = BalanceLayer::pair(changes, RoundRobin::new());
    let mut driver = task::spawn(driver);
    assert!(driver.poll().is_pending());
    drop(layer);
    assert!(driver.is_woken());
    assert!(driver.poll().is_ready());
    assert!(driver.poll().is_ready(), "as after an end of the stream");
    drop(handle);
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_moves_between_tasks_wakes_the_last_one() {
    let (handle, changes) = discover::channel();
    let (layer, driver) = BalanceLayer::pair(changes, RoundRobin::new());
    let mut driver = Box::pin(driver);
    let balance: Balance<_, _, ()> = layer.layer(());
    let (mut first, mut second) = (task::spawn(()), task::spawn(()));
    assert!(first.enter(|cx, _| driver.as_mut().poll(cx)).is_pending());
    assert!(second.enter(|cx, _| driver.as_mut().poll(cx)).is_pending());
    handle.insert("a", Site::new("a").endpoint());
    assert_eq!((first.is_woken(), second.is_woken()), (false, true));
    assert!(second.enter(|cx, _| driver.as_mut().poll(cx)).is_pending());
    assert_eq!(balance.stats().endpoints.len(), 1);
    drop((layer, balance));
    assert!(second.is_woken());
}

#[test]
fn a_runtime_without_a_clock_is_no_reason_to_panic() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let a = Probe::gated("a", Gate::Shut);
    runtime.block_on(async {
        let list = discover::list([("a", a.endpoint())]);
        let mut balance = Balance::new(list, RoundRobin::new());
        settle().await;
        let mut waiting = task::spawn(balance.call(()));
        while waiting.poll().is_pending() && waiting.is_woken() {}
        a.turn(Gate::Open);
        assert_eq!(waiting.await.unwrap(), Answer::From("a"));
    });
}

#[test]
fn a_balancer_outlives_the_runtime_that_it_was_made_in() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let (handle, changes) = discover::channel();
    handle.insert("a", Site::new("a").endpoint());
    let first = runtime();
    let mut balance = first.block_on(async {
        let balance = Balance::new(changes, RoundRobin::new());
        balance.ready_when(1).await.unwrap();
        balance
    });
    drop(first);
    assert_eq!(balance.stats().discovery, Discovery::Stopped);
    assert!(handle.is_closed());
    runtime().block_on(async {
        assert_eq!(call(&mut balance).await.unwrap(), Answer::From("a"));
    });
}

// ===== futures =====

#[tokio::test(start_paused = true)]
async fn a_response_future_that_failed_is_polled_twice() {
    let (_handle, changes) = discover::channel::<&str, Direct<Site>>();
    let builder = Builder::new().max_waiting(0);
    let mut balance = builder.balance(changes, RoundRobin::new()).unwrap();
    let mut future = Box::pin(balance.call(()));
    let mut nobody = Context::from_waker(Waker::noop());
    let Poll::Ready(Err(error)) = future.as_mut().poll(&mut nobody) else {
        panic!("waits")
    };
    assert_eq!(error.kind(), ErrorKind::TooManyWaiting);
    let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        Pin::as_mut(&mut future).poll(&mut nobody).is_ready()
    }));
    let words = again.unwrap_err();
    assert!(
        words
            .downcast_ref::<String>()
            .is_some_and(|words| words.contains("polled after"))
    );
    drop(future);
    assert_eq!(balance.stats().waiting, 0);
}

// ===== keys that look alike =====

/// A key that is told apart by its number and shown without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Alike(u32);

impl fmt::Display for Alike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("alike")
    }
}

#[tokio::test(start_paused = true)]
async fn keys_with_one_name_are_two_members() {
    let (a, b) = (Site::new("a"), Site::new("b"));
    let (handle, changes) = discover::channel();
    handle.set([(Alike(1), a.endpoint()), (Alike(2), b.endpoint())]);
    let builder = Builder::new().starting_at(0);
    let mut balance = builder.balance(changes, RoundRobin::new()).unwrap();
    settle().await;
    assert_eq!(
        crate::probes::answers(&mut balance, 4).await,
        ["a", "b", "a", "b"]
    );
    assert_eq!(balance.set_capacity("alike", 0.0), CapacityChange::Applied);
    assert_eq!(
        call(&mut balance).await.unwrap_err().kind(),
        ErrorKind::Drained
    );
    assert_eq!(balance.set_capacity("alike", 1.0), CapacityChange::Applied);
    handle.remove(&Alike(1));
    settle().await;
    assert_eq!(crate::probes::answers(&mut balance, 2).await, ["b", "b"]);
    assert_eq!(balance.stats().endpoints.len(), 1);
}
