//! Points on a circle, and whose they are: what every ring is made of.

use std::fmt::Debug;

/// A position on the circle.
pub(super) trait Position: Copy + Ord + Debug + Send + Sync + 'static {
    const BITS: u32;

    /// Returns the top bits as a number.
    fn top(self, bits: u32) -> usize;
    fn to_u64(self) -> u64;
}

impl Position for u32 {
    const BITS: Self = 32;

    #[inline]
    fn top(self, bits: u32) -> usize {
        // In two steps, because a shift by all bits is none.
        (self >> 1 >> (Self::BITS - 1 - bits)) as usize
    }

    fn to_u64(self) -> u64 {
        self.into()
    }
}

impl Position for u64 {
    const BITS: u32 = 64;

    #[inline]
    fn top(self, bits: u32) -> usize {
        (self >> 1 >> (Self::BITS - 1 - bits)) as usize
    }

    fn to_u64(self) -> u64 {
        self
    }
}

/// Sorted points with their owners, indexed by the top bits of the position: a look-up goes
/// straight to the few points that can be meant.
#[derive(Debug)]
pub(super) struct Circle<P> {
    points: Box<[P]>,
    owners: Box<[u32]>,
    /// For each value of the top bits, the first point at or after its start.
    index: Box<[u32]>,
    bits: u32,
}

/// How many points share one entry of the index, on average at least.
const SHARED: usize = 4;

impl<P: Position> Circle<P> {
    /// Takes points in rising order.
    pub(super) fn new(points: Box<[P]>, owners: Box<[u32]>) -> Self {
        let bits = (points.len() / SHARED).max(1).ilog2();
        let mut next = 0;
        let mut first = |top: usize| {
            while points.get(next).is_some_and(|point| point.top(bits) < top) {
                next += 1;
            }
            next as u32
        };
        let index = (0..1_usize << bits).map(&mut first).collect();
        Self { points, owners, index, bits }
    }

    pub(super) fn len(&self) -> usize {
        self.points.len()
    }

    pub(super) fn points(&self) -> &[P] {
        &self.points
    }

    pub(super) fn owners(&self) -> &[u32] {
        &self.owners
    }

    /// Returns the number of the first point at or above a position; past the last, the
    /// first of all.
    #[inline]
    pub(super) fn successor(&self, position: P) -> usize {
        let mut number = self.index.get(position.top(self.bits)).map_or(0, |&first| first as usize);
        while self.points.get(number).is_some_and(|&point| point < position) {
            number += 1;
        }
        if number < self.points.len() { number } else { 0 }
    }

    /// Returns the owner of a point; numbers go round.
    #[inline]
    pub(super) fn owner(&self, number: usize) -> Option<usize> {
        let number = if number < self.len() { number } else { number.checked_rem(self.len())? };
        self.owners.get(number).map(|&owner| owner as usize)
    }

    /// Returns the owners from a position onwards, one for each point.
    pub(super) fn onwards(&self, position: P) -> impl Iterator<Item = usize> {
        let first = self.successor(position);
        (first..first + self.len()).filter_map(|number| self.owner(number))
    }

    /// Returns the owners in both directions, the nearest first; of two that are equally
    /// near, the one before.
    pub(super) fn nearest(&self, position: P) -> impl Iterator<Item = usize> {
        let n = self.len();
        let (mut after, mut before) = (self.successor(position), 0);
        let at = position.to_u64();
        let mask = u64::MAX >> (u64::BITS - P::BITS);
        (0..n).filter_map(move |_| {
            let next = after % n;
            let former = (self.successor(position) + n - 1 - before % n) % n;
            let ahead = self.points[next].to_u64().wrapping_sub(at) & mask;
            let behind = at.wrapping_sub(self.points[former].to_u64()) & mask;
            if behind <= ahead {
                before += 1;
                self.owner(former)
            } else {
                after += 1;
                self.owner(next)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circle(points: &[u64]) -> Circle<u64> {
        let owners = (0..points.len() as u32).collect();
        Circle::new(points.into(), owners)
    }

    #[test]
    fn b48_keys_beyond_the_last_point_go_round() {
        let three = circle(&[10, 20, 30]);
        let owner = |key| three.owner(three.successor(key)).unwrap();
        assert_eq!([0, 10, 11, 30, 31, u64::MAX].map(owner), [0, 0, 1, 2, 0, 0]);
        let one = circle(&[7]);
        assert!([0, 7, 8, u64::MAX].iter().all(|&key| one.owner(one.successor(key)) == Some(0)));
        assert_eq!(circle(&[]).owner(0), None);
    }

    #[test]
    fn the_index_finds_what_a_search_finds() {
        for n in [1, 2, 5, 63, 64, 1_000, 5_000] {
            let mut points: Vec<u32> =
                (0..n).map(|i| crate::util::random::splitmix64(i) as u32).collect();
            points.sort_unstable();
            let circle = Circle::new(points.clone().into(), (0..n as u32).collect());
            let edges = points.iter().flat_map(|&p| [p.wrapping_sub(1), p, p.wrapping_add(1)]);
            for key in edges.chain([0, u32::MAX]) {
                let want = points.partition_point(|&point| point < key) % points.len();
                assert_eq!(points[circle.successor(key)], points[want]);
            }
        }
    }

    #[test]
    fn nearest_looks_both_ways() {
        let circle = circle(&[10, 20, 40]);
        assert_eq!(circle.nearest(24).collect::<Vec<_>>(), [1, 0, 2]);
        assert_eq!(circle.nearest(15).collect::<Vec<_>>(), [0, 1, 2]);
        let round = circle.nearest(u64::MAX).collect::<Vec<_>>();
        assert_eq!(round, [0, 1, 2]);
    }
}
