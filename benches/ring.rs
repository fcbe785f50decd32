//! Measures rings beside `pingora-ketama`, `hashring` and a plain sorted ring: build, memory, search
//! with random keys, and the change of one endpoint. All have 160 points for each endpoint.

#![allow(missing_docs, reason = "criterion's macros")]

mod support;

use std::{hint::black_box, net::SocketAddr};

use allocation_counter::measure;
use counterpoise::{
    Health,
    policy::affinity::{HashMod, Key, KeyMap, Keyed, Maglev, Rendezvous, RingHash, Structure},
};
use criterion::{Criterion, criterion_group, criterion_main};
use hashring::HashRing;
use pingora_ketama::{Bucket, Continuum};
use support::Driven;

const SIZES: [usize; 4] = [10, 100, 1_000, 10_000];
const POINTS: u32 = 160;

fn addresses(n: usize) -> Vec<SocketAddr> {
    let address =
        |i: usize| SocketAddr::from(([10, (i >> 16) as u8, (i >> 8) as u8, i as u8], 8080));
    (0..n).map(address).collect()
}

fn set(n: usize) -> Vec<(String, u32)> {
    addresses(n)
        .into_iter()
        .map(|address| (address.to_string(), 1))
        .collect()
}

/// Returns the next of a sequence of keys without repetition, so that no search is in the cache.
fn next_key(state: &mut u64) -> [u8; 8] {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 29)).to_le_bytes()
}

fn by_text(text: &str) -> Option<Key<'_>> {
    Some(text.into())
}

fn pingora(n: usize) -> Continuum {
    let buckets: Vec<_> = addresses(n)
        .into_iter()
        .map(|address| Bucket::new(address, 1))
        .collect();
    Continuum::new(&buckets)
}

fn hashring(n: usize) -> HashRing<(SocketAddr, u32)> {
    let mut ring = HashRing::new();
    let points = addresses(n)
        .into_iter()
        .flat_map(|address| (0..POINTS).map(move |i| (address, i)));
    ring.batch_add(points.collect());
    ring
}

/// A simple ring: sorted points and a binary search.
fn plain(n: usize) -> Vec<(u64, u32)> {
    let point = |name: &str, i: u32| hash(format!("{name}-{i}").as_bytes());
    let points = set(n)
        .into_iter()
        .zip(0_u32..)
        .flat_map(|((name, _), index)| {
            (0..POINTS)
                .map(move |i| (point(&name, i), index))
                .collect::<Vec<_>>()
        });
    let mut points: Vec<_> = points.collect();
    points.sort_unstable();
    points
}

fn hash(bytes: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

fn build(c: &mut Criterion) {
    for n in SIZES {
        let mut bench = |name: &str, make: &mut dyn FnMut()| {
            c.bench_function(&format!("build, {name}/{n}"), |b| b.iter(&mut *make));
        };
        let set = set(n);
        let ring = RingHash::on(by_text);
        bench("ring hash", &mut || drop(black_box(ring.map(set.clone()))));
        bench("pingora-ketama", &mut || drop(black_box(pingora(n))));
        bench("hashring", &mut || drop(black_box(hashring(n))));
        bench("plain sorted", &mut || drop(black_box(plain(n))));
        let maglev = Maglev::on(by_text);
        bench("maglev", &mut || drop(black_box(maglev.map(set.clone()))));
        let points = n * POINTS as usize;
        let names = measure(|| std::mem::forget(black_box(set.clone()))).bytes_current;
        let ours = measure(|| std::mem::forget(black_box(ring.map(set.clone())))).bytes_current;
        let theirs = measure(|| std::mem::forget(black_box(pingora(n)))).bytes_current;
        println!(
            "memory of {points} points, in bytes a point: ring hash {:.1} (names: {:.1}), pingora-ketama {:.1}",
            ours as f64 / points as f64,
            names as f64 / points as f64,
            theirs as f64 / points as f64,
        );
    }
}

fn look_up(c: &mut Criterion, name: &str, n: usize, mut find: impl FnMut(&[u8]) -> usize) {
    let mut state = 1;
    c.bench_function(&format!("look-up, {name}/{n}"), |b| {
        b.iter(|| find(black_box(&next_key(&mut state))));
    });
}

fn ours<A, S: Structure + Clone>(c: &mut Criterion, name: &str, n: usize, policy: &Keyed<A, S>) {
    let map: KeyMap<S> = policy.map(set(n));
    look_up(c, name, n, |key| map.owner(key).map_or(0, str::len));
}

fn look_ups(c: &mut Criterion) {
    for n in SIZES {
        ours(c, "ring hash", n, &RingHash::on(by_text));
        let ring = pingora(n);
        look_up(c, "pingora-ketama", n, |key| {
            ring.node(key).map_or(0, |address| address.port().into())
        });
        let ring = hashring(n);
        look_up(c, "hashring", n, |key| {
            ring.get(&key).map_or(0, |(_, point)| *point as usize)
        });
        let ring = plain(n);
        look_up(c, "plain sorted", n, |key| {
            let hash = hash(key);
            let at = ring.partition_point(|&(point, _)| point < hash);
            ring[at % ring.len()].1 as usize
        });
        ours(c, "maglev", n, &Maglev::on(by_text));
        ours(c, "hash modulo", n, &HashMod::on(by_text));
        if n <= 100 {
            ours(c, "rendezvous", n, &Rendezvous::on(by_text));
        }
    }
}

fn changes(c: &mut Criterion) {
    for n in [1_000, 10_000] {
        let policy = RingHash::by(|_: &u64| Some(Key::from("key")));
        let mut driven = Driven::new(policy, Health::new(), std::iter::repeat_n(1, n));
        c.bench_function(&format!("one joins and leaves, ring hash/{n}"), |b| {
            b.iter(|| {
                driven.reweight(n, 1);
                driven.remove(n);
            });
        });
    }
}

criterion_group!(benches, build, look_ups, changes);
criterion_main!(benches);
