//! The arcs of a ring: the hashes that each endpoint owns, exactly.

use super::{
    Kind, Ring, RingMap,
    circle::Circle,
    map::Circles,
    position::{Point, Position},
};

/// The number of positions on the circle, in the units of arcs.
pub(crate) const CIRCLE: u128 = 1 << 64;

/// The start of each arc and its owner; an arc ends where the next begins.
pub(crate) type Arcs = Vec<(u128, usize)>;

/// Returns start, end and owner of each arc.
pub(crate) fn lengths(arcs: &Arcs) -> impl Iterator<Item = (u128, u128, usize)> {
    let ends = arcs.iter().skip(1).map(|&(start, _)| start).chain([CIRCLE]);
    arcs.iter()
        .zip(ends)
        .map(|(&(start, owner), end)| (start, end, owner))
}

impl Ring {
    /// Returns the arcs of a ring from position 0 on.
    pub(crate) fn arcs(&self, map: &RingMap) -> Arcs {
        match &map.circle {
            Circles::Short(circle) => arcs(map, circle, matches!(self.kind, Kind::Haproxy(_))),
            Circles::Long(circle) => arcs(map, circle, false),
        }
    }
}

/// Returns the arcs from position 0 on. An owner's arc ends with its point, or, where the
/// nearest point counts, halfway to the next.
fn arcs<P: Position>(map: &RingMap, circle: &Circle<P>, nearest: bool) -> Arcs {
    let around = 1_u128 << P::BITS;
    let owned = |&(point, slot): &Point<P>| Some((u128::from(point.to_u64()), map.member(slot)?));
    let points: Vec<_> = circle.points().filter_map(owned).collect();
    let (Some(&first), Some(&last)) = (points.first(), points.last()) else {
        return Vec::new();
    };
    let following = points
        .iter()
        .skip(1)
        .copied()
        .chain([(first.0 + around, first.1)]);
    let mut arcs = Arcs::new();
    for (&(point, _), (next, owner)) in points.iter().zip(following) {
        if nearest {
            arcs.push((point + (next - point) / 2 + 1, owner));
        } else if point + 1 < around {
            arcs.push((point + 1, owner));
        }
    }
    // The last arc may begin beyond position 0; the arc before then goes on from position 0.
    let wrapped = arcs.last().filter(|(start, _)| *start >= around).copied();
    match wrapped {
        Some((start, owner)) => {
            arcs.pop();
            arcs.splice(0..0, [(0, last.1), (start - around, owner)]);
        }
        None => arcs.insert(0, (0, first.1)),
    }
    let unit = CIRCLE >> P::BITS;
    arcs.into_iter()
        .map(|(start, owner)| (start * unit, owner))
        .collect()
}
