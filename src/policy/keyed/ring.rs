//! Ring hash: points on a circle, of which a key takes the next.

use super::{
    Keyed, Member,
    circle::{Circle, Position},
    ring_points::{self, Envoy, Haproxy},
    sealed,
    seen::Seen,
};
use crate::util::hash::{avalanche, crc32, sdbm, xxh64};

/// Keeps keys with endpoints on a ring: each endpoint owns points, and a key goes to the
/// next one.
///
/// The ring is a pure function of the names and weights: not of order, history, process or
/// platform. A change of the set moves only the keys of those who leave to others and keys
/// of others to those who join; a change of weight only keys to or from that endpoint; an
/// ejection only the ejected endpoint's keys, spread over the others, until it is back.
///
/// # Points
///
/// An endpoint owns 160 points for each unit of weight, at least one, and at most 65,536:
/// weights above 409 count as 409, unless [`points`](Self::points) are fewer. More points
/// make the shares more even. The greatest share over the mean, for endpoints of one weight
/// that are called `10.0.0.1:8080` and so on, and in brackets the worst of many such
/// networks:
///
/// | endpoints | at 160 points | at 1,000 |
/// |---|---|---|
/// | 2 | 1.05 (1.15) | 1.02 (1.07) |
/// | 10 | 1.16 (1.26) | 1.05 (1.09) |
/// | 100 | 1.26 (1.33) | 1.06 (1.12) |
/// | 500 | 1.22 (1.34) | 1.08 (1.12) |
///
/// # Cost
///
/// Per pick: a hash of the key and a look-up through an index by the hash's top bits,
/// which takes a few steps whatever the size. Per rebuild: a change of few endpoints edits
/// a copy of the ring by a merge, O(points); health changes nothing. Memory: 9 bytes per
/// point.
///
/// # Other rings
///
/// [`nginx`](Self::nginx), [`envoy`](Self::envoy) and [`haproxy`](Self::haproxy) choose what
/// those products choose, bit for bit, so that a team can move from the proxy into the
/// client without cooling a cache.
///
/// ```
/// use counterpoise::{Key, RingHash};
///
/// let policy = RingHash::by(|user: &String| Some(Key::from(user.as_str())));
/// let map = policy.map([("a", 1), ("b", 1), ("c", 2)]);
/// println!("{:?}", map.owners(b"user 7"));
/// ```
pub type RingHash<A> = Keyed<A, Ring>;

/// The structure of [`RingHash`].
#[derive(Debug, Clone, Copy)]
pub struct Ring {
    kind: Kind,
    points: u32,
    most: u32,
    hash: fn(&[u8]) -> u64,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Own,
    Nginx,
    Envoy(Envoy),
    Haproxy(Haproxy),
}

/// The ring of one set.
#[derive(Debug)]
#[allow(unnameable_types, reason = "only seen through a sealed trait")]
pub struct RingMap {
    circle: Circles,
    sources: Box<[Source]>,
}

#[derive(Debug)]
enum Circles {
    Short(Circle<u32>),
    Long(Circle<u64>),
}

/// What an endpoint's points were made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) id: u64,
    pub(super) name: std::sync::Arc<str>,
    pub(super) weight: u32,
}

impl<A> RingHash<A> {
    /// Creates the policy from what finds a request's key.
    #[must_use]
    pub const fn by(affinity: A) -> Self {
        Self::new(affinity, Ring { kind: Kind::Own, points: 160, most: 65_536, hash: xxh64 })
    }

    /// Sets how many points an endpoint owns for each unit of weight; none counts as one.
    /// Default: 160.
    #[must_use]
    pub fn points(mut self, per_weight: u32) -> Self {
        self.structure_mut().points = per_weight.max(1);
        self
    }

    /// Sets how many points an endpoint owns at most, whatever its weight; none counts as
    /// one. Default: 65,536.
    #[must_use]
    pub fn max_points(mut self, per_endpoint: u32) -> Self {
        self.structure_mut().most = per_endpoint.max(1);
        self
    }

    /// Replaces the hash function, of names and keys. Default: xxHash64 with seed 0.
    ///
    /// For the rings of other products it replaces that of keys alone; 32-bit rings take the
    /// lower half.
    #[must_use]
    pub fn hash_with(mut self, hash: fn(&[u8]) -> u64) -> Self {
        self.structure_mut().hash = hash;
        self
    }

    /// Chooses as nginx's `hash … consistent` does, for names like its server strings
    /// (`10.0.0.1:8080`).
    ///
    /// As in nginx an endpoint that may not be picked is passed over point by point, and
    /// after 20 points the endpoints take turns (nginx: by weight).
    #[must_use]
    pub fn nginx(mut self) -> Self {
        self.structure_mut().kind = Kind::Nginx;
        self.hash_with(|key| u64::from(crc32(key)))
    }

    /// Chooses as Envoy's `ring_hash` with `XX_HASH` does, and gRPC's where names are
    /// `ip:port`: with a ring of at least so many points in total, and at most so many.
    ///
    /// The endpoints must join in the order of Envoy's configuration. As in Envoy the points
    /// of one endpoint depend on the others, so a change moves keys between endpoints that
    /// it does not concern. Envoy makes the ring anew without an ejected host; here the
    /// ring stays, and the key goes to the next endpoint on it.
    #[must_use]
    pub fn envoy(mut self, min_size: u32, max_size: u32) -> Self {
        let envoy = Envoy { min_size, max_size: max_size.min(8 << 20), hash: xxh64 };
        self.structure_mut().kind = Kind::Envoy(envoy);
        self.hash_with(xxh64)
    }

    /// Chooses as [`envoy`](Self::envoy), with points by `MURMUR_HASH_2`.
    #[must_use]
    pub fn envoy_murmur(mut self, min_size: u32, max_size: u32) -> Self {
        let hash = crate::util::hash::murmur2;
        let envoy = Envoy { min_size, max_size: max_size.min(8 << 20), hash };
        self.structure_mut().kind = Kind::Envoy(envoy);
        self.hash_with(xxh64)
    }

    /// Chooses as HAProxy's `hash-type consistent` does: the nearest point in either
    /// direction.
    ///
    /// HAProxy hashes the ids of its servers: `id` returns that of an endpoint from its
    /// name. Keys are hashed by SDBM with avalanche, HAProxy's default.
    #[must_use]
    pub fn haproxy(mut self, id: fn(&str) -> u32) -> Self {
        self.structure_mut().kind = Kind::Haproxy(Haproxy { id });
        self.hash_with(|key| u64::from(avalanche(sdbm(key))))
    }
}

impl Ring {
    fn points_of(&self, weight: u32) -> u32 {
        let points = u64::from(weight) * u64::from(self.points);
        u32::try_from(points.min(u64::from(self.most))).unwrap_or(self.most)
    }

    fn position(&self, key: &[u8]) -> u64 {
        let hash = (self.hash)(key);
        match self.kind {
            Kind::Own => ring_points::spread(hash),
            _ => hash,
        }
    }
}

/// How many points nginx looks at before it gives up.
const NGINX_POINTS: usize = 21;

impl sealed::Structure for Ring {
    type Map = RingMap;

    fn build(&self, members: &[Member], previous: Option<&RingMap>) -> RingMap {
        let source = |member: &Member| Source {
            id: member.id,
            name: member.name.clone(),
            weight: member.weight,
        };
        let sources: Box<[Source]> = members.iter().map(source).collect();
        let circle = match self.kind {
            Kind::Own => {
                let points = |weight| self.points_of(weight);
                let former = previous.and_then(|map| match &map.circle {
                    Circles::Short(circle) => Some((circle, &*map.sources)),
                    Circles::Long(_) => None,
                });
                Circles::Short(ring_points::own(&sources, former, points, self.hash))
            }
            Kind::Nginx => Circles::Short(ring_points::nginx(&sources)),
            Kind::Envoy(envoy) => Circles::Long(envoy.circle(&sources)),
            Kind::Haproxy(haproxy) => Circles::Short(haproxy.circle(&sources)),
        };
        RingMap { circle, sources }
    }

    #[inline]
    fn find(
        &self,
        map: &RingMap,
        key: &[u8],
        mut accept: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let position = self.position(key);
        let n = map.sources.len();
        match (&map.circle, self.kind) {
            (Circles::Short(circle), Kind::Haproxy(_)) => {
                first(circle.nearest(position as u32), n, accept)
            }
            (Circles::Short(circle), Kind::Nginx) => {
                first(circle.onwards(position as u32).take(NGINX_POINTS), n, accept)
            }
            (Circles::Short(circle), _) => {
                let position = (position >> 32) as u32;
                let owner = circle.owner(circle.successor(position))?;
                if accept(owner) {
                    return Some(owner);
                }
                first(circle.onwards(position), n, |next| next != owner && accept(next))
            }
            (Circles::Long(circle), _) => first(circle.onwards(position), n, accept),
        }
    }

    fn shares(&self, map: &RingMap) -> Vec<f64> {
        let mut shares = vec![0.0; map.sources.len()];
        for (start, end, owner) in lengths(&self.arcs(map)) {
            shares[owner] += (end - start) as f64 / CIRCLE as f64;
        }
        shares
    }

    fn stays(&self, map: &RingMap, other: &RingMap, twin: &[Option<usize>]) -> f64 {
        let (here, there) = (self.arcs(map), self.arcs(other));
        let mut there = lengths(&there).peekable();
        let mut stay = 0;
        for (start, end, owner) in lengths(&here) {
            while let Some(&(from, to, other)) = there.peek() {
                let overlap = end.min(to).saturating_sub(start.max(from));
                if twin.get(owner).copied().flatten() == Some(other) {
                    stay += overlap;
                }
                if to > end {
                    break;
                }
                there.next();
            }
        }
        stay as f64 / CIRCLE as f64
    }
}

/// Offers each owner once.
fn first(
    owners: impl Iterator<Item = usize>,
    members: usize,
    mut accept: impl FnMut(usize) -> bool,
) -> Option<usize> {
    let mut seen = Seen::default();
    let mut owners = owners;
    owners.find(|&owner| seen.is_new(owner, members) && accept(owner))
}

/// The number of positions on the circle, in the units of arcs.
const CIRCLE: u128 = 1 << 64;

/// Where an owner's part of the circle begins; it ends where the next begins.
type Arcs = Vec<(u128, usize)>;

/// Returns start, end and owner of each arc.
fn lengths(arcs: &Arcs) -> impl Iterator<Item = (u128, u128, usize)> {
    let ends = arcs.iter().skip(1).map(|&(start, _)| start).chain([CIRCLE]);
    arcs.iter().zip(ends).map(|(&(start, owner), end)| (start, end, owner))
}

impl Ring {
    fn arcs(&self, map: &RingMap) -> Arcs {
        match &map.circle {
            Circles::Short(circle) => arcs(circle, matches!(self.kind, Kind::Haproxy(_))),
            Circles::Long(circle) => arcs(circle, false),
        }
    }
}

fn arcs<P: Position>(circle: &Circle<P>, nearest: bool) -> Arcs {
    let unit = CIRCLE >> P::BITS;
    let around = 1_u128 << P::BITS;
    let points: Vec<u128> = circle.points().iter().map(|p| u128::from(p.to_u64())).collect();
    let (Some(&first), Some(&last)) = (points.first(), points.last()) else { return Vec::new() };
    // The last position that belongs to what comes before a point: the point itself, or the
    // one halfway to it.
    let end = |from: u128, to: u128| if nearest { from + (to - from) / 2 } else { to };
    let owners = circle.owners();
    let mut arcs = Arcs::new();
    let mut push = |start: u128, owner: u32| {
        if start < around {
            arcs.push((start * unit, owner as usize));
        }
    };
    for i in 0..points.len() {
        let next = points.get(i + 1).copied().unwrap_or(first + around);
        let following = owners[(i + 1) % owners.len()];
        if !nearest {
            push(points[i] + 1, following);
        } else if end(points[i], next) + 1 < around {
            push(end(points[i], next) + 1, following);
        }
    }
    // What lies before the first start belongs to whoever owns the end of the circle, or to
    // the first.
    let before_first = if nearest && last + (first + around - last) / 2 >= around {
        owners[owners.len() - 1]
    } else {
        owners[0]
    };
    if nearest && last + (first + around - last) / 2 >= around {
        let turn = last + (first + around - last) / 2 + 1 - around;
        arcs.push((turn * unit, owners[0] as usize));
    }
    arcs.push((0, before_first as usize));
    arcs.sort_by_key(|&(start, _)| start);
    arcs
}
