//! A circle of points, each with an owner: the part that all rings share.

use std::sync::Arc;

use super::position::{Point, Position};

/// Sorted points in sectors, one for each value of a position's top bits.
///
/// A search reads one sector, and an edit copies only the sectors that it changes.
#[derive(Debug, Clone)]
pub(crate) struct Circle<P> {
    sectors: Box<[Arc<[Point<P>]>]>,
    bits: u32,
    len: usize,
}

impl<P> Default for Circle<P> {
    fn default() -> Self {
        Self {
            sectors: [Arc::from([])].into(),
            bits: 0,
            len: 0,
        }
    }
}

/// The least average number of points in a sector. With fewer, the list of sectors outgrows the
/// processor's cache.
const SHARED: usize = 64;

/// Returns how many top bits number the sectors of so many points.
fn bits(points: usize) -> u32 {
    (points / SHARED).max(1).ilog2()
}

impl<P: Position> Circle<P> {
    /// Makes a circle of `len` points, which come in any order, but in the same order at each call
    /// of `points`; `settle` orders points of one position.
    ///
    /// Cost: O(len). The points are distributed by their topmost bits into parts that fit the
    /// processor's cache, and sorted there.
    pub(crate) fn new<I: Iterator<Item = Point<P>>>(
        len: usize,
        points: impl Fn() -> I,
        settle: impl Fn(&mut [Point<P>]),
    ) -> Self {
        let bits = bits(len);
        let coarse = bits.min(8);
        let mut all = Vec::new();
        let ends = distribute(
            len,
            points,
            |point| point.top(coarse),
            1 << coarse,
            &mut all,
        );
        let mut sectors = Vec::with_capacity(1 << bits);
        let mut sorted = Vec::new();
        let mut start = 0;
        for end in ends {
            sort_part(&all[start..end], coarse, &mut sorted, &settle);
            start = end;
            let mut rest = &sorted[..];
            let first = sectors.len();
            for number in first..first + (1 << (bits - coarse)) {
                let here = rest.partition_point(|point| point.0.top(bits) <= number);
                let (sector, others) = rest.split_at(here);
                sectors.push(sector.into());
                rest = others;
            }
        }
        Self {
            sectors: sectors.into(),
            bits,
            len,
        }
    }

    /// Returns this circle without some points and with others, by copying only the sectors
    /// that change; none if the number of points has changed so much that a new circle is better.
    pub(crate) fn edit(
        &self,
        gone: &[Point<P>],
        fresh: &[Point<P>],
        settle: impl Fn(&mut [Point<P>]),
    ) -> Option<Self> {
        let len = (self.len + fresh.len()).checked_sub(gone.len())?;
        if bits(len).abs_diff(self.bits) > 1 || gone.len() + fresh.len() > len / 4 {
            return None;
        }
        let mut edits: Vec<_> = gone.iter().map(|&point| (point, false)).collect();
        edits.extend(fresh.iter().map(|&point| (point, true)));
        edits.sort_unstable();
        let mut sectors = self.sectors.clone();
        let sector = |edit: &(Point<P>, bool)| edit.0.0.top(self.bits);
        for edits in edits.chunk_by(|a, b| sector(a) == sector(b)) {
            let place = sectors.get_mut(sector(edits.first()?))?;
            let left = |point: &&Point<P>| edits.binary_search(&(**point, false)).is_err();
            let mut points: Vec<_> = place.iter().filter(left).copied().collect();
            points.extend(
                edits
                    .iter()
                    .filter(|(_, fresh)| *fresh)
                    .map(|&(point, _)| point),
            );
            sort(&mut points, &settle);
            *place = points.into();
        }
        Some(Self {
            sectors,
            bits: self.bits,
            len,
        })
    }

    /// Returns all points, in rising order.
    pub(crate) fn points(&self) -> impl DoubleEndedIterator<Item = &Point<P>> {
        self.sectors.iter().flat_map(|sector| sector.iter())
    }

    /// Returns the owner of the first point at or above a position; past the last, of the
    /// first of all.
    #[inline]
    pub(crate) fn successor(&self, position: P) -> Option<u32> {
        let sector = self.sectors.get(position.top(self.bits))?;
        // Points are spread evenly, so the successor is near the position's part of its sector:
        // mostly on the same cache line.
        let guess = position.part(self.bits, sector.len());
        let found = match sector.get(guess) {
            Some((point, _)) if *point < position => {
                sector[guess..].iter().find(|(point, _)| *point >= position)
            }
            _ => {
                let behind = sector.get(..guess)?.iter().rev();
                let skip = behind.take_while(|(point, _)| *point >= position).count();
                sector.get(guess - skip)
            }
        };
        match found {
            Some(&(_, owner)) => Some(owner),
            None => self.onwards(position).next().map(|&(_, owner)| owner),
        }
    }

    /// Returns the points from a position onwards, once around.
    pub(crate) fn onwards(&self, position: P) -> impl DoubleEndedIterator<Item = &Point<P>> {
        let number = position.top(self.bits).min(self.sectors.len() - 1);
        let sector = &self.sectors[number];
        let (before, after) = sector.split_at(sector.partition_point(|point| point.0 < position));
        let others = self.sectors[number + 1..]
            .iter()
            .chain(&self.sectors[..number]);
        after
            .iter()
            .chain(others.flat_map(|sector| sector.iter()))
            .chain(before)
    }

    /// Returns the points in both directions, the nearest first; of two that are equally
    /// near, the one before.
    pub(crate) fn nearest(&self, position: P) -> impl Iterator<Item = &Point<P>> {
        let at = position.to_u64();
        let mask = u64::MAX >> (u64::BITS - P::BITS);
        let mut ahead = self.onwards(position).peekable();
        let mut behind = self.onwards(position).rev().peekable();
        (0..self.len).filter_map(move |_| {
            let (next, former) = (*ahead.peek()?, *behind.peek()?);
            let forward = next.0.to_u64().wrapping_sub(at) & mask;
            let backward = at.wrapping_sub(former.0.to_u64()) & mask;
            if backward <= forward {
                behind.next()
            } else {
                ahead.next()
            }
        })
    }
}

/// Sorts points, and settles ties by `settle`.
fn sort<P: Position>(points: &mut [Point<P>], settle: impl Fn(&mut [Point<P>])) {
    points.sort_unstable();
    settle_ties(points, settle);
}

fn settle_ties<P: Position>(points: &mut [Point<P>], settle: impl Fn(&mut [Point<P>])) {
    if points.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        points.chunk_by_mut(|a, b| a.0 == b.0).for_each(settle);
    }
}

/// Distributes points into piles by a number below `piles`, in one list; returns the end of each
/// pile (a counting sort).
fn distribute<P: Position, I: Iterator<Item = Point<P>>>(
    len: usize,
    points: impl Fn() -> I,
    pile: impl Fn(P) -> usize,
    piles: usize,
    piled: &mut Vec<Point<P>>,
) -> Vec<usize> {
    let mut places = vec![0_usize; piles + 1];
    points().for_each(|(point, _)| places[pile(point) + 1] += 1);
    (1..=piles).for_each(|number| places[number] += places[number - 1]);
    piled.clear();
    if let Some(any) = points().next() {
        piled.resize(len, any);
    }
    for (point, owner) in points() {
        let place = &mut places[pile(point)];
        piled[*place] = (point, owner);
        *place += 1;
    }
    // Each place is now the end of its pile.
    places.truncate(piles);
    places
}

/// Sorts points that agree in their topmost bits. They are spread evenly, so a distribution by the
/// bits below puts them almost in order.
fn sort_part<P: Position>(
    part: &[Point<P>],
    agree: u32,
    sorted: &mut Vec<Point<P>>,
    settle: impl Fn(&mut [Point<P>]),
) {
    let piles = part.len().max(1);
    let pile = |point: P| point.part(agree, piles);
    distribute(part.len(), || part.iter().copied(), pile, piles, sorted);
    // An insertion sort: most points are at their place or next to it.
    for i in 1..sorted.len() {
        let mut at = i;
        while at > 0 && sorted[at] < sorted[at - 1] {
            sorted.swap(at, at - 1);
            at -= 1;
        }
    }
    settle_ties(sorted, settle);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::util::random::splitmix64;

    fn circle(points: &[u64]) -> Circle<u64> {
        Circle::new(points.len(), || points.iter().copied().zip(0..), |_| {})
    }

    fn random(n: u64, salt: u64) -> Vec<Point<u32>> {
        (0..n)
            .map(|i| (splitmix64(i ^ (salt << 32)) as u32, salt as u32))
            .collect()
    }

    #[test]
    fn b48_keys_beyond_the_last_point_go_round() {
        let three = circle(&[10, 20, 30]);
        let owner = |key| three.successor(key).unwrap();
        assert_eq!([0, 10, 11, 30, 31, u64::MAX].map(owner), [0, 0, 1, 2, 0, 0]);
        let one = circle(&[7]);
        assert!(
            [0, 7, 8, u64::MAX]
                .iter()
                .all(|&key| one.successor(key) == Some(0))
        );
        assert_eq!(circle(&[]).successor(0), None);
    }

    #[test]
    fn a_look_up_finds_what_a_search_finds() {
        for n in [1, 2, 5, 63, 64, 1_000, 5_000] {
            let points: Vec<_> = random(n, 0).into_iter().map(|(point, _)| point).collect();
            let circle = Circle::new(points.len(), || points.iter().copied().zip(0..), |_| {});
            let mut sorted: Vec<_> = points.iter().copied().zip(0..).collect();
            sorted.sort_unstable();
            let edges = points
                .iter()
                .flat_map(|&p| [p.wrapping_sub(1), p, p.wrapping_add(1)]);
            for key in edges.chain([0, u32::MAX]) {
                let want = sorted.partition_point(|&(point, _)| point < key) % sorted.len();
                assert_eq!(circle.successor(key), Some(sorted[want].1));
            }
        }
    }

    #[test]
    fn edits_make_what_a_fresh_start_makes() {
        let all = |salts: &[u64]| {
            salts
                .iter()
                .flat_map(|&salt| random(160, salt))
                .collect::<Vec<_>>()
        };
        let circle = |salts: &[u64]| {
            let points = all(salts);
            Circle::new(points.len(), || points.iter().copied(), |_| {})
        };
        let former = circle(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let edited = former
            .edit(&random(160, 3), &random(160, 20), |_| {})
            .unwrap();
        let fresh = circle(&[1, 2, 4, 5, 6, 7, 8, 9, 20]);
        assert!(edited.points().eq(fresh.points()));
        assert!(former.edit(&all(&[1, 2, 3, 4, 5]), &[], |_| {}).is_none());
    }

    #[test]
    fn nearest_looks_both_ways() {
        let circle = circle(&[10, 20, 40]);
        let owners = |key| {
            circle
                .nearest(key)
                .map(|&(_, owner)| owner)
                .collect::<Vec<_>>()
        };
        assert_eq!(owners(24), [1, 0, 2]);
        assert_eq!(owners(15), [0, 1, 2]);
        assert_eq!(owners(u64::MAX), [0, 1, 2]);
    }
}
