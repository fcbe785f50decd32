//! Endpoints that do nothing, and balancers over them, for the benchmarks.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    missing_debug_implementations,
    reason = "each benchmark uses a part"
)]
#![allow(clippy::disallowed_methods, reason = "what is measured is real time")]

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use counterpoise::{
    Balance, Builder, Direct, Endpoint, Health,
    discover::{self, Handle},
    policy::Policy,
};
use tower::{Layer, Service};

/// The numbers of endpoints to measure at.
pub const SIZES: [usize; 5] = [3, 10, 100, 1_000, 10_000];

/// A service that does nothing.
#[derive(Debug, Clone, Copy)]
pub struct Noop;

impl Service<u64> for Noop {
    type Response = u64;
    type Error = Infallible;
    type Future = Ready<Result<u64, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: u64) -> Self::Future {
        ready(Ok(request))
    }
}

/// A balancer with a driver that the benchmark polls.
pub struct Driven<P: Policy> {
    pub balance: Balance<Direct<Noop>, P>,
    handle: Handle<usize, Direct<Noop>>,
    driver: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<P: Policy> Driven<P> {
    pub fn new(policy: P, health: Health, weights: impl IntoIterator<Item = u32>) -> Self {
        let (handle, changes) = discover::channel();
        let builder = Builder::new().health(health).seed(1);
        let (layer, driver) = builder.pair(changes, policy).unwrap();
        let mut driven = Self {
            balance: layer.layer(()),
            handle,
            driver: Box::pin(driver),
        };
        let endpoint = |weight| Endpoint::new(Direct(Noop)).weight(weight);
        let endpoints: Vec<_> = weights.into_iter().map(endpoint).enumerate().collect();
        let n = endpoints.len();
        driven.handle.set(endpoints);
        driven.drive_until(n);
        driven
    }

    /// Polls the driver until the set has `n` endpoints. In a runtime, the picker of a large set is
    /// built on another thread.
    fn drive_until(&mut self, n: usize) {
        for _ in 0..10_000 {
            (0..100).for_each(|_| self.drive());
            if self.balance.stats().endpoints.len() == n {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        panic!("the set has not reached {n} endpoints");
    }

    /// Changes the weight of an endpoint, or adds it; the snapshot is published.
    pub fn reweight(&mut self, number: usize, weight: u32) {
        self.handle
            .insert(number, Endpoint::new(Direct(Noop)).weight(weight));
        self.drive();
    }

    /// Removes an endpoint; the snapshot is published.
    pub fn remove(&mut self, number: usize) {
        self.handle.remove(&number);
        self.drive();
    }

    fn drive(&mut self) {
        assert!(
            self.driver
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
    }
}

/// Builds a balancer that has discovered endpoints of these weights.
pub fn balance<P: Policy>(
    policy: P,
    health: Health,
    weights: impl IntoIterator<Item = u32>,
) -> Balance<Direct<Noop>, P> {
    Driven::new(policy, health, weights).balance
}

/// Returns the result of a future that is ready at once.
pub fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("nothing here waits"),
    }
}

/// Measures `iterations` of a loop on each of two threads that run at the same time;
/// returns the time per iteration of one thread, times the iterations.
pub fn two_threads<S: Send + 'static>(
    states: [S; 2],
    iterations: u64,
    work: impl Fn(&mut S, u64) + Send + Sync + 'static,
) -> Duration {
    let start = Arc::new(std::sync::Barrier::new(2));
    let work = Arc::new(work);
    let threads = states.map(|mut state| {
        let (start, work) = (Arc::clone(&start), Arc::clone(&work));
        thread::spawn(move || {
            start.wait();
            let begun = Instant::now();
            work(&mut state, iterations);
            begun.elapsed()
        })
    });
    threads
        .map(|thread| thread.join().unwrap())
        .into_iter()
        .max()
        .unwrap()
}
