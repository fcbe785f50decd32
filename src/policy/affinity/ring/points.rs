//! The points of a ring: of this crate's own, and of nginx, Envoy and HAProxy.

use super::{
    circle::Circle,
    map::Source,
    position::{Point, Position},
};
use crate::util::{
    hash::{avalanche, crc32, crc32_continued},
    random::splitmix64,
};

/// Spreads a hash over all bits, so that a weak hash function also gives even positions.
pub(crate) const fn spread(hash: u64) -> u64 {
    splitmix64(hash)
}

/// Returns the points of one endpoint: a stream of random numbers that only its name seeds.
pub(crate) fn own(
    name: &str,
    points: u32,
    hash: fn(&[u8]) -> u64,
) -> impl Iterator<Item = u32> + use<> {
    let seed = spread(hash(name.as_bytes()));
    let point = move |i| splitmix64(seed.wrapping_add(u64::from(i).wrapping_mul(STREAM)));
    (0..points).map(move |i| (point(i) >> 32) as u32)
}

/// The step between the points of one endpoint: odd, and not the step of `splitmix64`.
const STREAM: u64 = 0xd134_2543_de82_ef95;

fn circle<P: Position>(points: &[Point<P>]) -> Circle<P> {
    Circle::new(points.len(), || points.iter().copied(), |_| {})
}

/// Returns nginx's points: a chain of CRC-32 for each server, 160 points for each unit of weight.
/// Of equal points the earlier server's stays.
pub(crate) fn nginx(sources: &[Source]) -> Circle<u32> {
    let mut points = Vec::new();
    for (index, source) in (0_u32..).zip(sources) {
        let (host, port) = split_port(&source.name);
        let base = [host.as_bytes(), &[0], port.as_bytes()].concat();
        let base = crc32(&base);
        let mut point = 0_u32;
        for _ in 0..source.weight.min(6_553) * 160 {
            point = crc32_continued(base, &point.to_le_bytes());
            points.push((point, index));
        }
    }
    points.sort_unstable();
    points.dedup_by_key(|point| point.0);
    circle(&points)
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

/// The largest ring that Envoy makes: its limit of `maximum_ring_size`.
const LARGEST: u32 = 8 << 20;

/// Envoy's ring: a total size, which is divided among the hosts in order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envoy {
    pub(crate) min_size: u32,
    pub(crate) max_size: u32,
    pub(crate) hash: fn(&[u8]) -> u64,
}

impl Envoy {
    pub(crate) fn new(min_size: u32, max_size: u32, hash: fn(&[u8]) -> u64) -> Self {
        let min_size = min_size.clamp(1, LARGEST);
        Self {
            min_size,
            max_size: max_size.clamp(min_size, LARGEST),
            hash,
        }
    }

    pub(crate) fn circle(&self, sources: &[Source]) -> Circle<u64> {
        let total: f64 = sources.iter().map(|source| f64::from(source.weight)).sum();
        let weights = sources
            .iter()
            .map(|source| f64::from(source.weight) / total);
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
                points.push((
                    (self.hash)(format!("{}_{number}", source.name).as_bytes()),
                    index,
                ));
                number += 1;
                current += 1.0;
            }
        }
        circle(&points)
    }
}

/// HAProxy's ring: 16 points for each unit of weight, at hashes of the server's id.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Haproxy {
    pub(crate) id: fn(&str) -> u32,
}

impl Haproxy {
    pub(crate) fn circle(&self, sources: &[Source]) -> Circle<u32> {
        let mut points = Vec::new();
        for (index, source) in (0_u32..).zip(sources) {
            let key = (self.id)(&source.name).wrapping_mul(4_096);
            // 256 is the greatest weight of HAProxy.
            for node in 0..source.weight.min(256) * 16 {
                points.push((avalanche(key.wrapping_add(node)), index));
            }
        }
        circle(&points)
    }
}
