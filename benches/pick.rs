//! Measures a pick within a call of a service that does nothing, beside the yardstick: one `ArcSwap`
//! load and one `fetch_add`.
//!
//! Health is off, so the calls of policies differ by their picks and by their measurements at the end
//! of a call.

#![allow(missing_docs, reason = "criterion's macros")]

mod support;

use std::{
    hint::black_box,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use counterpoise::{
    Balance, Direct, Health,
    policy::{
        BoxPolicy, LeastRequest, ModuloRoundRobin, PeakEwma, Picker, Policy, Random, RoundRobin,
        SmoothWeighted, WeightedRandom,
    },
};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use support::{Noop, SIZES, balance, now, two_threads};
use tokio::runtime::Runtime;
use tower::{
    Service, ServiceExt,
    balance::p2c,
    discover::ServiceList,
    load::{CompleteOnResponse, PeakEwmaDiscover, PendingRequestsDiscover},
};

fn yardstick(c: &mut Criterion) {
    let mut group = c.benchmark_group("yardstick");
    let shared = Arc::new((ArcSwap::from_pointee(vec![0_u32; 16]), AtomicU64::new(0)));
    let step = |shared: &(ArcSwap<Vec<u32>>, AtomicU64)| {
        let ticket = shared.1.fetch_add(1, Ordering::Relaxed);
        shared.0.load()[(ticket & 15) as usize]
    };
    group.bench_function("1 thread", |b| b.iter(|| step(&shared)));
    group.bench_function("2 threads", |b| {
        b.iter_custom(|n| {
            let states = [Arc::clone(&shared), Arc::clone(&shared)];
            two_threads(states, n, move |shared, n| {
                for _ in 0..n {
                    black_box(step(shared));
                }
            })
        });
    });
    group.finish();
}

/// Returns weights of a few sizes of machine.
fn few(n: usize) -> Vec<u32> {
    [1, 2, 4].into_iter().cycle().take(n).collect()
}

/// Returns weights that nearly all differ.
fn many(n: usize) -> Vec<u32> {
    (0..n as u64)
        .map(|i| 1 + (i * 48_271 % 99_991) as u32)
        .collect()
}

fn policy<P>(c: &mut Criterion, name: &str, new: impl Fn() -> P, weights: fn(usize) -> Vec<u32>)
where
    P: Policy<Picker: Picker<u64>>,
{
    let mut group = c.benchmark_group(name);
    for n in SIZES {
        let mut balance = balance(new(), Health::off(), weights(n));
        group.bench_function(BenchmarkId::new("1 thread", n), |b| {
            b.iter(|| now(balance.call(black_box(7))));
        });
        group.bench_function(BenchmarkId::new("2 threads", n), |b| {
            b.iter_custom(|n| two_threads([balance.clone(), balance.clone()], n, picks));
        });
    }
    group.finish();
}

fn picks<P: Policy<Picker: Picker<u64>>>(balance: &mut Balance<Direct<Noop>, P>, n: u64) {
    for key in 0..n {
        let _ = black_box(now(balance.call(black_box(key))));
    }
}

fn unweighted(c: &mut Criterion) {
    policy(c, "round robin", RoundRobin::new, few);
    policy(c, "modulo round robin", ModuloRoundRobin::new, few);
    policy(
        c,
        "boxed round robin",
        || BoxPolicy::<u64>::new(RoundRobin::new()),
        few,
    );
    policy(c, "random", Random::new, few);
}

fn weighted(c: &mut Criterion) {
    policy(c, "smooth weighted, few weights", SmoothWeighted::new, few);
    policy(
        c,
        "smooth weighted, many weights",
        SmoothWeighted::new,
        many,
    );
    policy(c, "weighted random, few weights", WeightedRandom::new, few);
    policy(
        c,
        "weighted random, many weights",
        WeightedRandom::new,
        many,
    );
}

/// Policies by load. A full scan is O(n) by intent.
fn by_load(c: &mut Criterion) {
    policy(c, "least request", LeastRequest::new, few);
    policy(
        c,
        "least request, 4 choices",
        || LeastRequest::new().choices(4),
        few,
    );
    policy(c, "peak EWMA", PeakEwma::new, few);
    policy(
        c,
        "least request, full scan",
        || LeastRequest::new().full_scan(),
        few,
    );
}

/// tower's balancers by load. They pick in `poll_ready`, so a call of a service that does nothing is
/// included.
fn towers(c: &mut Criterion) {
    let runtime = Runtime::new().unwrap();
    let _inside = runtime.enter();
    let second = Duration::from_secs(1);
    for n in SIZES {
        let list = || ServiceList::new::<u64>(vec![Noop; n]);
        let complete = CompleteOnResponse::default;
        let pending = p2c::Balance::new(PendingRequestsDiscover::new(list(), complete()));
        tower(c, "tower pending requests, with its call", n, pending);
        let ewma = PeakEwmaDiscover::new(list(), second, second, complete());
        tower(
            c,
            "tower peak EWMA, with its call",
            n,
            p2c::Balance::new(ewma),
        );
    }
}

fn tower<S: Service<u64>>(c: &mut Criterion, name: &str, n: usize, mut service: S)
where
    S::Error: std::fmt::Debug,
{
    // Adds all endpoints first.
    (0..2_000).for_each(|i| drop(now(now(service.ready()).unwrap().call(i))));
    c.benchmark_group(name)
        .bench_function(BenchmarkId::new("1 thread", n), |b| {
            b.iter(|| now(now(service.ready()).unwrap().call(black_box(7))).unwrap());
        });
}

/// The usual loop of smooth weighted round robin, under a lock.
fn textbook(c: &mut Criterion) {
    let mut group = c.benchmark_group("textbook smooth weighted in a mutex");
    for n in SIZES {
        let nodes: Vec<_> = few(n)
            .into_iter()
            .map(|weight| (i64::from(weight), 0))
            .collect();
        let shared = Arc::new(Mutex::new(nodes));
        group.bench_function(BenchmarkId::new("1 thread", n), |b| {
            b.iter(|| textbook_pick(&shared));
        });
        group.bench_function(BenchmarkId::new("2 threads", n), |b| {
            b.iter_custom(|n| {
                two_threads(
                    [Arc::clone(&shared), Arc::clone(&shared)],
                    n,
                    |shared, n| {
                        (0..n).for_each(|_| {
                            black_box(textbook_pick(shared));
                        });
                    },
                )
            });
        });
    }
    group.finish();
}

fn textbook_pick(nodes: &Mutex<Vec<(i64, i64)>>) -> usize {
    let mut nodes = nodes.lock().unwrap();
    let (mut total, mut best) = (0, 0);
    for i in 0..nodes.len() {
        nodes[i].1 += nodes[i].0;
        total += nodes[i].0;
        if nodes[i].1 > nodes[best].1 {
            best = i;
        }
    }
    nodes[best].1 -= total;
    best
}

criterion_group!(
    benches, yardstick, unweighted, weighted, by_load, towers, textbook
);
criterion_main!(benches);
