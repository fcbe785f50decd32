//! Where the points of a ring are: our own way, and those of nginx, Envoy and HAProxy.

use std::collections::HashMap;

use super::{circle::Circle, ring::Source};
use crate::util::{
    hash::{avalanche, crc32, crc32_continued},
    random::splitmix64,
};

/// Spreads a hash over all bits, so that a weak one will do, too.
pub(super) const fn spread(hash: u64) -> u64 {
    splitmix64(hash)
}

/// Makes our own ring: by a merge if a former one has most of it.
pub(super) fn own(
    sources: &[Source],
    former: Option<(&Circle<u32>, &[Source])>,
    points_of: impl Fn(u32) -> u32,
    hash: fn(&[u8]) -> u64,
) -> Circle<u32> {
    let points = |source: &Source| {
        // An endpoint's points are a stream of random numbers that only its name seeds.
        let seed = spread(hash(source.name.as_bytes()));
        (0..points_of(source.weight)).map(move |i| {
            (splitmix64(seed.wrapping_add(u64::from(i).wrapping_mul(STREAM))) >> 32) as u32
        })
    };
    let stays = former.map(|(_, former)| stays(former, sources)).unwrap_or_default();
    let mut kept = vec![false; sources.len()];
    stays.iter().flatten().for_each(|&index| kept[index as usize] = true);
    let mut fresh = Vec::new();
    for (index, source) in (0_u32..).zip(sources).filter(|(i, _)| !kept[*i as usize]) {
        fresh.extend(points(source).map(|point| (point, index)));
    }
    sort(&mut fresh, sources);
    match former {
        Some((circle, _)) if kept.contains(&true) => merge(circle, &stays, &fresh, sources),
        _ => circle(fresh),
    }
}

/// An odd number that is not the step of the generator itself.
const STREAM: u64 = 0xd134_2543_de82_ef95;

/// Returns for each former index where the same endpoint with the same weight is now.
fn stays(former: &[Source], sources: &[Source]) -> Vec<Option<u32>> {
    let now: HashMap<u64, u32> = sources.iter().map(|source| source.id).zip(0..).collect();
    let stay = |source: &Source| {
        let index = *now.get(&source.id)?;
        (sources[index as usize].weight == source.weight).then_some(index)
    };
    former.iter().map(stay).collect()
}

/// Sorts points; ties are broken by name.
fn sort(points: &mut [(u32, u32)], sources: &[Source]) {
    points.sort_unstable();
    for ties in points.chunk_by_mut(|a, b| a.0 == b.0).filter(|ties| ties.len() > 1) {
        ties.sort_by(|a, b| sources[a.1 as usize].name.cmp(&sources[b.1 as usize].name));
    }
}

fn circle(points: Vec<(u32, u32)>) -> Circle<u32> {
    let (points, owners): (Vec<_>, Vec<_>) = points.into_iter().unzip();
    Circle::new(points.into(), owners.into())
}

/// Merges what stays of a former circle with fresh points, both sorted.
fn merge(
    former: &Circle<u32>,
    stays: &[Option<u32>],
    fresh: &[(u32, u32)],
    sources: &[Source],
) -> Circle<u32> {
    let name = |index: u32| &sources[index as usize].name;
    let before = |a: (u32, u32), b: (u32, u32)| {
        a.0 < b.0 || (a.0 == b.0 && (name(a.1), a.1) < (name(b.1), b.1))
    };
    let mut points = Vec::with_capacity(former.len() + fresh.len());
    let mut owners = Vec::with_capacity(former.len() + fresh.len());
    let mut fresh = fresh.iter().copied().peekable();
    for (&point, &owner) in former.points().iter().zip(former.owners()) {
        let Some(owner) = stays.get(owner as usize).copied().flatten() else { continue };
        while let Some(new) = fresh.next_if(|&new| before(new, (point, owner))) {
            points.push(new.0);
            owners.push(new.1);
        }
        points.push(point);
        owners.push(owner);
    }
    for new in fresh {
        points.push(new.0);
        owners.push(new.1);
    }
    Circle::new(points.into(), owners.into())
}

/// nginx: a chain of CRC-32 for each server, 160 points for each unit of weight. Of equal
/// points the earlier server's stays.
pub(super) fn nginx(sources: &[Source]) -> Circle<u32> {
    let mut points = Vec::new();
    for (index, source) in (0_u32..).zip(sources) {
        let (host, port) = split_port(&source.name);
        let base = [host.as_bytes(), &[0], port.as_bytes()].concat();
        let base = crc32(&base);
        let mut point = 0_u32;
        for _ in 0..u64::from(source.weight) * 160 {
            point = crc32_continued(base, &point.to_le_bytes());
            points.push((point, index));
        }
    }
    points.sort_unstable();
    points.dedup_by_key(|point| point.0);
    circle(points)
}

/// Splits a server string where nginx does: at the last colon, if digits follow.
fn split_port(server: &str) -> (&str, &str) {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    match server.rsplit_once(':') {
        Some((scheme, path)) if scheme.eq_ignore_ascii_case("unix") => (path, ""),
        Some((host, port)) if is_port(port) => (host, port),
        _ => (server, ""),
    }
}

/// Envoy: a ring of a total size, of which hosts get parts in order.
#[derive(Debug, Clone, Copy)]
pub(super) struct Envoy {
    pub(super) min_size: u32,
    pub(super) max_size: u32,
    pub(super) hash: fn(&[u8]) -> u64,
}

impl Envoy {
    pub(super) fn circle(&self, sources: &[Source]) -> Circle<u64> {
        let total: f64 = sources.iter().map(|source| f64::from(source.weight)).sum();
        let weights = sources.iter().map(|source| f64::from(source.weight) / total);
        let positive = weights.clone().filter(|&weight| weight > 0.0);
        let least = positive.fold(f64::INFINITY, f64::min);
        let scale = (least * f64::from(self.min_size)).ceil() / least;
        let scale = scale.min(f64::from(self.max_size));
        let mut points = Vec::new();
        let (mut target, mut current) = (0.0, 0.0);
        for ((index, source), weight) in (0_u32..).zip(sources).zip(weights) {
            target += scale * weight;
            let mut number = 0;
            while current < target {
                points.push(((self.hash)(format!("{}_{number}", source.name).as_bytes()), index));
                number += 1;
                current += 1.0;
            }
        }
        points.sort_unstable();
        let (points, owners): (Vec<_>, Vec<_>) = points.into_iter().unzip();
        Circle::new(points.into(), owners.into())
    }
}

/// HAProxy: 16 nodes for each unit of weight, placed by the server's id.
#[derive(Debug, Clone, Copy)]
pub(super) struct Haproxy {
    pub(super) id: fn(&str) -> u32,
}

impl Haproxy {
    pub(super) fn circle(&self, sources: &[Source]) -> Circle<u32> {
        let mut points = Vec::new();
        for (index, source) in (0_u32..).zip(sources) {
            let key = (self.id)(&source.name).wrapping_mul(4_096);
            // HAProxy's own weights end at 256.
            for node in 0..source.weight.min(256) * 16 {
                points.push((avalanche(key.wrapping_add(node)), index));
            }
        }
        points.sort_unstable();
        circle(points)
    }
}
