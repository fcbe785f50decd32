//! What the benchmarks share: endpoints that cost nothing, and a driver that has run.

#![allow(dead_code, unreachable_pub, reason = "each benchmark uses a part")]
#![allow(clippy::disallowed_methods, reason = "what is measured is real time")]

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use counterpoise::{Balance, Builder, Direct, Endpoint, Health, Policy, discover};
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

/// Builds a balancer over `n` endpoints with these weights, all discovered.
pub fn balance<P: Policy>(
    policy: P,
    health: Health,
    weights: impl IntoIterator<Item = u32>,
) -> Balance<Direct<Noop>, P> {
    let endpoint = |weight| Endpoint::new(Direct(Noop)).weight(weight);
    let endpoints = discover::list(weights.into_iter().map(endpoint).enumerate());
    let (layer, driver) = Builder::new().health(health).seed(1).pair(endpoints, policy).unwrap();
    let mut driver = pin!(driver);
    while driver.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {}
    layer.layer(())
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
    threads.map(|thread| thread.join().unwrap()).into_iter().max().unwrap()
}
