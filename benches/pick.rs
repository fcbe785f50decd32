//! The cost of one pick, beside the yardstick: one `ArcSwap` load and one `fetch_add`.
//!
//! A pick here is all that a call does to learn its endpoint's index: load the snapshot, ask
//! the policy, draw a ticket.

#![allow(missing_docs, reason = "criterion's macros")]

mod support;

use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use counterpoise::{Balance, BoxPolicy, Direct, Health, ModuloRoundRobin, Pick, RoundRobin};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use support::{Noop, SIZES, balance, two_threads};

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

fn policy<P>(c: &mut Criterion, name: &str, new: impl Fn() -> P)
where
    P: Pick<u64>,
{
    let mut group = c.benchmark_group(name);
    for n in SIZES {
        let balance = balance(new(), Health::new(), std::iter::repeat_n(1, n));
        group.bench_function(BenchmarkId::new("1 thread", n), |b| {
            b.iter(|| balance.preview(black_box(&7)));
        });
        group.bench_function(BenchmarkId::new("2 threads", n), |b| {
            b.iter_custom(|n| two_threads([balance.clone(), balance.clone()], n, picks));
        });
    }
    group.finish();
}

fn picks<P: Pick<u64>>(balance: &mut Balance<Direct<Noop>, P>, n: u64) {
    for key in 0..n {
        black_box(balance.preview(black_box(&key)));
    }
}

fn policies(c: &mut Criterion) {
    policy(c, "round robin", RoundRobin::new);
    policy(c, "modulo round robin", ModuloRoundRobin::new);
    policy(c, "boxed round robin", || BoxPolicy::<u64>::new(RoundRobin::new()));
}

criterion_group!(benches, yardstick, policies);
criterion_main!(benches);
