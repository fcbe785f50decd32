//! Attacks on compiles that take long: on another thread or behind the door, with everything
//! that may happen meanwhile.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Poll, Waker},
    thread::ThreadId,
    time::Duration,
};

use counterpoise::{
    Balance, Builder, Direct, Endpoint, Health, discover,
    observe::Discovery,
    policy::{Members, Needs, Policy, RoundRobin},
};
use futures::stream;
use tower::{BoxError, Layer, Service, ServiceExt, discover::Change};

use crate::{
    bed::SECOND,
    support::{Act, Gate, Rotation, Scripted, Site, Sites},
};

type Deed = Box<dyn FnMut(usize) + Send>;

/// Round robin whose n-th compile does something first.
#[derive(Clone)]
struct Staged {
    compiles: Arc<AtomicUsize>,
    threads: Arc<Mutex<Vec<ThreadId>>>,
    deed: Arc<Mutex<Deed>>,
    costly: bool,
}

impl Staged {
    fn new(costly: bool, deed: impl FnMut(usize) + Send + 'static) -> Self {
        let deed: Deed = Box::new(deed);
        Self {
            compiles: Arc::default(),
            threads: Arc::default(),
            deed: Arc::new(Mutex::new(deed)),
            costly,
        }
    }
}

impl Policy for Staged {
    type Picker = Rotation;

    fn build(&self, _members: &Members<'_>, _previous: Option<&Rotation>) -> Rotation {
        self.threads
            .lock()
            .unwrap()
            .push(std::thread::current().id());
        let n = self.compiles.fetch_add(1, Ordering::SeqCst);
        let mut deed = self
            .deed
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        deed(n);
        Rotation
    }

    fn needs(&self) -> Needs {
        if self.costly {
            Needs::none().slow_build()
        } else {
            Needs::none()
        }
    }
}

/// A service that is ready or never is, and answers with its number.
fn fixed(number: u32, is_ready: bool) -> Endpoint<Direct<Scripted<u32>>> {
    Scripted::gated(number, if is_ready { Gate::Open } else { Gate::Shut }).endpoint()
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// A call that begins while a replacement is compiled is given the former service, but takes
/// it for the new one: it waits for it for ever, and avoids the new one.
#[test]
fn a_call_that_begins_during_a_replacement_goes_to_the_new_service() {
    let (begun, has_begun) = mpsc::channel();
    let (say, word) = mpsc::channel();
    // Compiles: of nobody, of the first set, of the replacement.
    let policy = Staged::new(false, move |n| {
        if n == 2 {
            begun.send(()).unwrap();
            word.recv().unwrap();
        }
    });
    let (handle, changes) = discover::channel();
    let (layer, driver) = Builder::new().starting_at(0).pair(changes, policy).unwrap();
    let mut balance: Balance<Direct<Scripted<u32>>, _> = layer.layer(());
    let mut driver = Box::pin(driver);
    handle.insert("a", fixed(1, false));
    assert!(poll(driver.as_mut()).is_pending());
    handle.insert("a", fixed(2, true));
    let writer = std::thread::spawn(move || {
        assert!(poll(driver.as_mut()).is_pending());
        driver
    });
    has_begun.recv().unwrap();
    // The former service is polled here, and is not ready. (To poll the call would wait at the
    // door until the compile is over.)
    let mut call = Box::pin(balance.call(()));
    say.send(()).unwrap();
    let _driver = writer.join().unwrap();
    // The new set is published, and the bell has rung.
    match poll(call.as_mut()) {
        Poll::Ready(result) => assert_eq!(result.unwrap(), 2),
        Poll::Pending => panic!("it waits for the former service, though the new one is ready"),
    }
}

/// One change, one panic: "how often the policy panicked".
#[tokio::test]
async fn a_costly_compile_that_panics_is_not_repeated_behind_the_door() {
    let policy = Staged::new(true, |n| assert!(n == 0, "compile {n} fails"));
    let sites = Sites::new(&["a"]);
    let (handle, changes) = discover::channel();
    let balance = Builder::new().balance(changes, policy.clone()).unwrap();
    handle.insert("a", sites["a"].endpoint());
    while balance.stats().policy_panics == 0 {
        tokio::task::yield_now().await;
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let here = std::thread::current().id();
    let on_async = policy
        .threads
        .lock()
        .unwrap()
        .iter()
        .skip(1)
        .filter(|&&id| id == here)
        .count();
    assert_eq!((on_async, balance.stats().policy_panics), (0, 1));
}

/// Holds: an error and the end that come while a table is compiled are told after the batch,
/// and the batch is applied.
#[tokio::test]
async fn error_and_end_wait_for_the_batch_before_them() {
    let policy = Staged::new(true, |_| {});
    let sites = Sites::new(&["a", "b"]);
    let changes = [
        Ok(Change::Insert("a", sites["a"].endpoint())),
        Err(BoxError::from("a hiccup")),
        Ok(Change::Insert("b", sites["b"].endpoint())),
        Ok(Change::Remove("a")),
    ];
    let mut balance: Balance<Direct<Site>, _> = Builder::new()
        .balance(Box::pin(stream::iter(changes)), policy)
        .unwrap();
    while balance.stats().discovery != Discovery::Ended {
        tokio::task::yield_now().await;
    }
    let stats = balance.stats();
    assert_eq!((stats.discovery_errors, stats.endpoints.len()), (1, 1));
    assert!(balance.ready().await.unwrap().call(()).await.is_ok());
}

/// Holds: whoever drops the driver or the balancer meanwhile frees everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_is_dropped_during_a_compile_is_freed() {
    for drop_driver in [true, false] {
        let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
        let (say, word) = mpsc::channel();
        let policy = Staged::new(true, move |n| {
            if n == 1 {
                begun.send(()).unwrap();
                word.recv().unwrap();
            }
        });
        let site = Site::new("a");
        let (handle, changes) = discover::channel();
        let (layer, driver) = Builder::new().pair(changes, policy).unwrap();
        let balance: Balance<Direct<Site>, _> = layer.layer(());
        drop(layer);
        handle.insert("a", site.endpoint());
        let driver = tokio::spawn(driver);
        has_begun.recv().await.unwrap();
        if drop_driver {
            driver.abort();
            assert!(driver.await.unwrap_err().is_cancelled());
            assert_eq!(balance.stats().discovery, Discovery::Stopped);
            assert_eq!(site.instances(), 1, "the batch is gone");
            say.send(()).unwrap();
            assert!(balance.stats().endpoints.is_empty());
            let error = balance.clone().call(()).await.unwrap_err();
            assert!(error.to_string().len() > 3);
        } else {
            drop(balance);
            say.send(()).unwrap();
            driver.await.unwrap();
            assert_eq!(site.instances(), 1);
        }
    }
}

/// Holds: a runtime that ends while a table is compiled ends discovery, not the balancer.
#[test]
fn a_runtime_that_shuts_down_during_a_compile_stops_discovery() {
    let (begun, has_begun) = mpsc::channel();
    let (say, word) = mpsc::channel();
    let policy = Staged::new(true, move |n| {
        if n == 2 {
            begun.send(()).unwrap();
            word.recv().unwrap();
        }
    });
    let sites = Sites::new(&["a", "b"]);
    let (handle, changes) = discover::channel();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    let mut balance: Balance<Direct<Site>, _> = runtime.block_on(async {
        let balance: Balance<Direct<Site>, _> = Builder::new().balance(changes, policy).unwrap();
        handle.insert("a", sites["a"].endpoint());
        balance.ready_when(1).await.unwrap();
        balance
    });
    handle.insert("b", sites["b"].endpoint());
    has_begun.recv().unwrap();
    runtime.shutdown_background();
    while balance.stats().discovery != Discovery::Stopped {
        std::thread::yield_now();
    }
    say.send(()).unwrap();
    assert_eq!(balance.stats().endpoints.len(), 1);
    assert!(poll(pin!(balance.call(()))).is_ready());
    drop(handle);
}

/// Holds: a capacity that is set while a table is compiled.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn capacity_that_is_set_during_a_compile_stays() {
    let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
    let (say, word) = mpsc::channel();
    let policy = Staged::new(true, move |n| {
        if n == 2 {
            begun.send(()).unwrap();
            word.recv().unwrap();
        }
    });
    let sites = Sites::new(&["a", "b", "c"]);
    let (handle, changes) = discover::channel();
    let mut balance: Balance<Direct<Site>, _> = Builder::new().balance(changes, policy).unwrap();
    handle.set([("a", sites["a"].endpoint()), ("b", sites["b"].endpoint())]);
    balance.ready_when(2).await.unwrap();
    handle.insert("c", sites["c"].endpoint());
    has_begun.recv().await.unwrap();
    // The compile holds the deed's lock, so that what this compiles waits for it.
    let other = balance.clone();
    let set = tokio::task::spawn_blocking(move || other.set_capacity("a", 0.0));
    say.send(()).unwrap();
    assert_eq!(
        set.await.unwrap(),
        counterpoise::health::CapacityChange::Applied
    );
    balance.ready_when(3).await.unwrap();
    let before = sites["a"].calls();
    for _ in 0..12 {
        balance.ready().await.unwrap().call(()).await.unwrap();
    }
    assert_eq!(sites["a"].calls(), before);
    assert_eq!((sites["b"].calls(), sites["c"].calls()), (6, 6));
}

/// A trial that took long and said nothing is followed by a pause as long, whatever the cap.
#[tokio::test(start_paused = true)]
async fn the_pause_after_a_trial_is_no_longer_than_the_longest_ejection() {
    let sites = Sites::new(&["a", "b"]);
    let health = Health::new()
        .consecutive_failures(1)
        .jitter(0.0)
        .base_ejection(SECOND)
        .max_ejection(10 * SECOND)
        .drop_counts_after(Duration::from_secs(1_000_000));
    let mut balance = Builder::new()
        .health(health)
        .starting_at(0)
        .balance(sites.list(&["a", "b"]), RoundRobin::new())
        .unwrap();
    balance.ready_when(2).await.unwrap();
    sites["a"].act(Act::Err);
    while balance.ready().await.unwrap().call(()).await.is_ok() {}
    tokio::time::advance(2 * SECOND).await;
    sites["a"].act(Act::Hang);
    let mut trial = Box::pin(balance.call(()));
    assert!(poll(trial.as_mut()).is_pending());
    tokio::time::advance(3_600 * SECOND).await;
    drop(trial);
    sites["a"].act(Act::Ok);
    let before = sites["a"].calls();
    for _ in 0..100 {
        tokio::time::advance(SECOND).await;
        balance.ready().await.unwrap().call(()).await.unwrap();
    }
    assert!(
        sites["a"].calls() > before,
        "100 calls in ten of the longest periods, and no trial"
    );
}

/// A call whose endpoint is not ready looks for what was gathered, and waits at the door for
/// that, though nothing was: its thread stands still for the whole compile.
#[test]
fn a_call_that_waits_does_not_wait_at_the_door() {
    let (begun, has_begun) = mpsc::channel();
    let (say, word) = mpsc::channel();
    let policy = Staged::new(false, move |n| {
        if n == 2 {
            begun.send(()).unwrap();
            word.recv().unwrap();
        }
    });
    let (handle, changes) = discover::channel();
    let (layer, driver) = Builder::new().starting_at(0).pair(changes, policy).unwrap();
    let mut balance: Balance<Direct<Scripted<u32>>, _> = layer.layer(());
    let mut driver = Box::pin(driver);
    handle.insert("a", fixed(1, false));
    assert!(poll(driver.as_mut()).is_pending());
    handle.insert("b", fixed(2, true));
    let writer = std::thread::spawn(move || {
        assert!(poll(driver.as_mut()).is_pending());
        driver
    });
    has_begun.recv().unwrap();
    let reader = std::thread::spawn(move || {
        let mut call = Box::pin(balance.call(()));
        assert!(poll(call.as_mut()).is_pending());
    });
    // Ample for one poll.
    let done = (0..1_000_000).any(|_| {
        std::thread::yield_now();
        reader.is_finished()
    });
    say.send(()).unwrap();
    let _driver = writer.join().unwrap();
    let polled = reader.join();
    assert!(done, "one poll of a call has waited for the compile");
    polled.unwrap();
}
