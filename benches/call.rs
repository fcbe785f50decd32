//! Measures a whole call, beside the bare service, tower's balancer, and tower's balancer behind the
//! `Buffer` that it needs to be shared.
//!
//! All are called in the same way, `ready().await` and `call().await`, over services that do nothing.
//! The time above that of `bare` is the balancer's. Allocations per call are printed first.

#![allow(missing_docs, reason = "criterion's macros")]
#![allow(clippy::disallowed_methods, reason = "what is measured is real time")]

mod support;

use std::{hint::black_box, time::Instant};

use allocation_counter::measure;
use counterpoise::{
    Balance, Direct, Health,
    health::OutlierDetection,
    policy::{LeastRequest, PeakEwma, Picker, Policy, RoundRobin},
};
use criterion::{Criterion, criterion_group, criterion_main};
use support::{Noop, balance, now, two_threads};
use tokio::runtime::{Builder, Runtime};
use tower::{
    Service, ServiceExt,
    balance::p2c,
    buffer::Buffer,
    discover::ServiceList,
    load::{CompleteOnResponse, PeakEwmaDiscover, PendingRequestsDiscover},
};

const SIZES: [usize; 3] = [3, 100, 10_000];

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Makes one call after the other.
async fn calls<S: Service<u64>>(service: &mut S, n: u64)
where
    S::Error: std::fmt::Debug,
{
    for request in 0..n {
        black_box(service.ready().await.unwrap().call(request).await.unwrap());
    }
}

fn bench<S: Service<u64>>(c: &mut Criterion, name: &str, n: usize, make: impl Fn() -> S)
where
    S::Error: std::fmt::Debug,
{
    let runtime = runtime();
    let mut service = {
        let _inside = runtime.enter();
        make()
    };
    runtime.block_on(calls(&mut service, 1_000));
    let allocations = measure(|| runtime.block_on(calls(&mut service, 1_000))).count_total;
    println!(
        "{name}, {n} endpoints: {} allocations in 1,000 calls",
        allocations
    );
    c.bench_function(&format!("{name}/{n}"), |b| {
        b.iter_custom(|n| {
            runtime.block_on(async {
                let begun = Instant::now();
                calls(&mut service, n).await;
                begun.elapsed()
            })
        });
    });
}

fn ours<P: Policy<Picker: Picker<u64>>>(
    policy: P,
    health: Health,
    n: usize,
) -> Balance<Direct<Noop>, P> {
    balance(policy, health, std::iter::repeat_n(1, n))
}

fn single(c: &mut Criterion) {
    bench(c, "bare", 1, || Noop);
    for n in SIZES {
        bench(c, "round robin", n, || {
            ours(RoundRobin::new(), Health::new(), n)
        });
        bench(c, "round robin, health off", n, || {
            ours(RoundRobin::new(), Health::off(), n)
        });
        bench(c, "least request", n, || {
            ours(LeastRequest::new(), Health::new(), n)
        });
        bench(c, "peak EWMA", n, || {
            ours(PeakEwma::new(), Health::new(), n)
        });
        let judged = || Health::new().outlier_detection(OutlierDetection::new());
        bench(c, "round robin, judged by rate", n, || {
            ours(RoundRobin::new(), judged(), n)
        });
        let complete = CompleteOnResponse::default;
        let list = move || ServiceList::new::<u64>(vec![Noop; n]);
        let pending = move || p2c::Balance::new(PendingRequestsDiscover::new(list(), complete()));
        let second = std::time::Duration::from_secs(1);
        let ewma =
            move || p2c::Balance::new(PeakEwmaDiscover::new(list(), second, second, complete()));
        bench(c, "tower p2c", n, pending);
        bench(c, "tower p2c behind Buffer", n, move || {
            Buffer::new(pending(), 1_024)
        });
        bench(c, "tower peak EWMA behind Buffer", n, move || {
            Buffer::new(ewma(), 1_024)
        });
    }
}

fn double(c: &mut Criterion) {
    for n in SIZES {
        let balance = ours(RoundRobin::new(), Health::new(), n);
        c.bench_function(&format!("round robin, 2 threads/{n}"), |b| {
            b.iter_custom(|n| {
                two_threads([balance.clone(), balance.clone()], n, |balance, n| {
                    for request in 0..n {
                        black_box(now(balance.call(request)).unwrap());
                    }
                })
            });
        });
    }
}

criterion_group!(benches, single, double);
criterion_main!(benches);
