//! The cost of a change: from telling the balancer to its new snapshot, and the first pick
//! after it.

#![allow(missing_docs, reason = "criterion's macros")]

mod support;

use counterpoise::{Health, Pick, RoundRobin, SmoothWeighted, WeightedRandom};
use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use support::balance;

const SIZES: [usize; 3] = [100, 1_000, 10_000];

fn few(n: usize) -> Vec<u32> {
    [1, 2, 4].into_iter().cycle().take(n).collect()
}

/// One endpoint's weight changes, by its capacity; and then the next call comes.
fn reweight<P: Pick<u64>>(c: &mut Criterion, name: &str, new: impl Fn() -> P) {
    for n in SIZES {
        let balance = balance(new(), Health::new(), few(n));
        let mut factor = 0.0;
        let mut change = || {
            factor = if factor == 1.0 { 0.5 } else { 1.0 };
            let _ = black_box(balance.set_capacity("7", factor));
        };
        let mut group = c.benchmark_group(format!("one weight changes, {name}"));
        group.bench_function(BenchmarkId::new("publish", n), |b| b.iter(&mut change));
        group.bench_function(BenchmarkId::new("first pick after it", n), |b| {
            b.iter_batched(&mut change, |()| balance.preview(&7), BatchSize::PerIteration);
        });
        group.finish();
    }
}

/// A whole set is discovered at once.
fn build<P: Pick<u64>>(c: &mut Criterion, name: &str, new: impl Fn() -> P) {
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
    build(c, "round robin", RoundRobin::new);
    build(c, "smooth weighted", SmoothWeighted::new);
}

criterion_group!(benches, all);
criterion_main!(benches);
