//! Measures a change of the set: from discovery to the new snapshot, and the first pick after it.

#![allow(missing_docs, reason = "criterion's macros")]

mod support;

use counterpoise::{
    Health,
    policy::{Picker, Policy, RoundRobin, SmoothWeighted, WeightedRandom},
};
use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use std::cell::{Cell, RefCell};
use support::{Driven, balance, now};
use tower::Service;

const SIZES: [usize; 3] = [100, 1_000, 10_000];

fn few(n: usize) -> Vec<u32> {
    [1, 2, 4].into_iter().cycle().take(n).collect()
}

/// The weight of one endpoint changes, and the next call follows.
fn reweight<P: Policy<Picker: Picker<u64>>>(c: &mut Criterion, name: &str, new: impl Fn() -> P) {
    for n in SIZES {
        let driven = RefCell::new(Driven::new(new(), Health::new(), few(n)));
        let weight = Cell::new(1);
        let change = || {
            weight.set(3 - weight.get());
            driven.borrow_mut().reweight(7, weight.get());
        };
        let mut group = c.benchmark_group(format!("one weight changes, {name}"));
        group.bench_function(BenchmarkId::new("publish", n), |b| b.iter(change));
        group.bench_function(BenchmarkId::new("first call after it", n), |b| {
            let pick = |()| now(driven.borrow_mut().balance.call(7));
            b.iter_batched(change, pick, BatchSize::PerIteration);
        });
        group.finish();
    }
}

/// One endpoint joins and leaves again.
fn membership<P: Policy<Picker: Picker<u64>>>(c: &mut Criterion, name: &str, new: impl Fn() -> P) {
    for n in SIZES {
        let mut driven = Driven::new(new(), Health::new(), few(n));
        c.bench_function(&format!("one joins and leaves, {name}/{n}"), |b| {
            b.iter(|| {
                driven.reweight(n, 1);
                driven.remove(n);
            });
        });
    }
}

/// All endpoints are discovered at once.
fn build<P: Policy<Picker: Picker<u64>>>(c: &mut Criterion, name: &str, new: impl Fn() -> P) {
    for n in SIZES {
        c.bench_function(&format!("a set is discovered, {name}/{n}"), |b| {
            b.iter(|| balance(new(), Health::new(), few(n)));
        });
    }
}

fn all(c: &mut Criterion) {
    reweight(c, "round robin", RoundRobin::new);
    reweight(c, "smooth weighted", SmoothWeighted::new);
    reweight(c, "weighted random", WeightedRandom::new);
    membership(c, "round robin", RoundRobin::new);
    membership(c, "smooth weighted", SmoothWeighted::new);
    build(c, "round robin", RoundRobin::new);
    build(c, "smooth weighted", SmoothWeighted::new);
}

criterion_group!(benches, all);
criterion_main!(benches);
