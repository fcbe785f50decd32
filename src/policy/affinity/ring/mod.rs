//! Ring hash: points on a circle, of which a key takes the next.

mod arcs;
mod build;
mod circle;
mod points;

use crate::policy::affinity::{
    Keyed, Member,
    ring::{
        arcs::{CIRCLE, lengths},
        circle::{Circle, Point, Position},
        points::{Envoy, Haproxy},
    },
    sealed,
    seen::Seen,
};
use crate::util::hash::{avalanche, crc32, sdbm, xxh64};

/// Keeps keys with endpoints on a ring: each endpoint owns points, and a key goes to the
/// next one.
///
/// The ring is a pure function of the names and weights: not of order, history, process or
/// platform. A change of the set moves only the keys of those that leave to others and keys
/// of others to those that join; a change of weight only keys to or from that endpoint; an
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
/// which takes a few steps whatever the size. Per build: a change of few endpoints edits
/// a copy of the ring by a merge, O(points); health changes nothing. Memory: 9 bytes per
/// point.
///
/// # Other rings
///
/// [`nginx`](Self::nginx), [`envoy`](Self::envoy) and [`haproxy`](Self::haproxy) choose what
/// those products choose, bit for bit, so that a team can move from the proxy into the
/// client without cooling a cache.
///
/// | there | here |
/// |---|---|
/// | nginx `hash $arg_x consistent`, `$http_x`, `$cookie_x` | `RingHash::on(key::query("x")).nginx()`, `key::header`, `key::cookie` |
/// | nginx `hash $arg_x` | [`HashMod`](crate::policy::affinity::HashMod) with `nginx()` |
/// | Envoy `ring_hash`, gRPC `ring_hash_experimental` | `envoy(1024, 8 << 20)` |
/// | Envoy, gRPC `maglev` | [`Maglev`](crate::policy::affinity::Maglev), in any order |
/// | HAProxy `hash-type consistent` | `haproxy(id)` |
///
/// ```
/// use counterpoise::policy::affinity::{Key, RingHash};
///
/// let policy = RingHash::by(|user: &String| Some(Key::from(user.as_str())));
/// let map = policy.map([("a", 1), ("b", 1), ("c", 2)]);
/// println!("{:?}", map.owners(b"user 7"));
/// ```
pub type RingHash<A> = Keyed<A, Ring>;

/// The structure of [`RingHash`].
#[derive(Debug, Clone, Copy)]
#[allow(unnameable_types, reason = "users name the alias")]
pub struct Ring {
    pub(crate) kind: Kind,
    points: u32,
    most: u32,
    hash: fn(&[u8]) -> u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Own,
    Nginx,
    Envoy(Envoy),
    Haproxy(Haproxy),
}

/// The ring of one set.
#[derive(Debug)]
#[allow(unnameable_types, reason = "only seen through a sealed trait")]
pub struct RingMap {
    pub(crate) circle: Circles,
    /// The members, in order.
    pub(crate) sources: Box<[Source]>,
    /// The index of the member for each slot: points name slots, which do not shift when
    /// others leave.
    pub(crate) members: Box<[u32]>,
    /// How many members own points.
    pub(crate) owning: usize,
}

#[derive(Debug)]
pub(crate) enum Circles {
    Short(Circle<u32>),
    Long(Circle<u64>),
}

/// What an endpoint's points were made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) id: u64,
    pub(crate) name: std::sync::Arc<str>,
    pub(crate) weight: u32,
    pub(crate) slot: u32,
}

impl Default for Ring {
    fn default() -> Self {
        Self { kind: Kind::Own, points: 160, most: 65_536, hash: xxh64 }
    }
}

impl<A> RingHash<A> {
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
    /// Weights above 6,553 count as 6,553, or a ring would have no bounds. As in nginx an
    /// endpoint that may not be picked is passed over point by point, and
    /// after 20 points the endpoints are taken in turn (nginx: by weight). As in nginx an empty key is
    /// none. [`points`](Self::points) has no effect on this ring and those below.
    #[must_use]
    pub fn nginx(mut self) -> Self {
        self.structure_mut().kind = Kind::Nginx;
        self.hash_with(|key| u64::from(crc32(key)))
    }

    /// Chooses as Envoy's `ring_hash` with `XX_HASH` does, and gRPC's where names are
    /// `ip:port`: with a ring of at least so many points in total, and at most so many.
    ///
    /// Envoy's own defaults are 1,024 and 8,388,608, which is also the most; a size is at least
    /// one, and the greatest no less than the least. Envoy chooses at random for a request
    /// without a key: [`Fallback::Random`](crate::policy::affinity::Fallback::Random).
    ///
    /// The endpoints must join in the order of Envoy's configuration. As in Envoy the points
    /// of one endpoint depend on the others, so a change moves keys between endpoints that
    /// it does not concern. Envoy makes the ring anew without an ejected host; here the
    /// ring stays, and the key goes to the next endpoint on it.
    #[must_use]
    pub fn envoy(mut self, min_size: u32, max_size: u32) -> Self {
        let envoy = Envoy::new(min_size, max_size, xxh64);
        self.structure_mut().kind = Kind::Envoy(envoy);
        self.hash_with(xxh64)
    }

    /// Chooses as [`envoy`](Self::envoy), with points by `MURMUR_HASH_2`.
    #[must_use]
    pub fn envoy_murmur(mut self, min_size: u32, max_size: u32) -> Self {
        let hash = crate::util::hash::murmur2;
        let envoy = Envoy::new(min_size, max_size, hash);
        self.structure_mut().kind = Kind::Envoy(envoy);
        self.hash_with(xxh64)
    }

    /// Chooses as HAProxy's `hash-type consistent` does: the nearest point in either
    /// direction.
    ///
    /// HAProxy hashes the ids of its servers, unless configured 1, 2, 3 in order: `id` returns
    /// that of an endpoint from its name. A unit of weight is 16 points, and the most is 256. Keys are hashed by SDBM with avalanche, HAProxy's default.
    #[must_use]
    pub fn haproxy(mut self, id: fn(&str) -> u32) -> Self {
        self.structure_mut().kind = Kind::Haproxy(Haproxy { id });
        self.hash_with(|key| u64::from(avalanche(sdbm(key))))
    }
}

impl Ring {
    /// Returns how many points a weight owns.
    pub(crate) fn count(&self, weight: u32) -> u32 {
        let points = u64::from(weight) * u64::from(self.points);
        u32::try_from(points.min(u64::from(self.most))).unwrap_or(self.most)
    }

    pub(crate) fn hash(&self) -> fn(&[u8]) -> u64 {
        self.hash
    }

    fn position(&self, key: &[u8]) -> u64 {
        let hash = (self.hash)(key);
        match self.kind {
            Kind::Own => points::spread(hash),
            _ => hash,
        }
    }
}

/// From so many new points on, a build takes milliseconds.
const SLOW: u64 = 50_000;

/// How many points nginx tries before it gives up.
const NGINX_POINTS: usize = 21;

impl sealed::Structure for Ring {
    type Map = RingMap;

    fn build(&self, members: &[Member], previous: Option<&RingMap>) -> RingMap {
        match self.kind {
            Kind::Own => self.build_own(members, previous),
            Kind::Nginx => {
                RingMap::in_order(members, |sources| Circles::Short(points::nginx(sources)))
            }
            Kind::Envoy(envoy) => {
                RingMap::in_order(members, |sources| Circles::Long(envoy.circle(sources)))
            }
            Kind::Haproxy(haproxy) => {
                RingMap::in_order(members, |sources| Circles::Short(haproxy.circle(sources)))
            }
        }
    }

    fn is_key(&self, key: &[u8]) -> bool {
        !(key.is_empty() && matches!(self.kind, Kind::Nginx))
    }

    fn slow_from(&self) -> u64 {
        match self.kind {
            Kind::Own => SLOW / u64::from(self.points) + 1,
            Kind::Nginx | Kind::Envoy(_) | Kind::Haproxy(_) => 0,
        }
    }

    fn reaches_all(&self) -> bool {
        !matches!(self.kind, Kind::Nginx)
    }

    #[inline]
    fn find(
        &self,
        map: &RingMap,
        key: &[u8],
        mut accept: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let position = self.position(key);
        match (&map.circle, self.kind) {
            (Circles::Short(circle), Kind::Haproxy(_)) => {
                map.first(circle.nearest(position as u32), accept)
            }
            (Circles::Short(circle), Kind::Nginx) => {
                map.first(circle.onwards(position as u32).take(NGINX_POINTS), accept)
            }
            (Circles::Short(circle), _) => {
                let position = (position >> 32) as u32;
                let owner = map.member(circle.successor(position)?)?;
                if accept(owner) {
                    return Some(owner);
                }
                map.first(circle.onwards(position), |next| next != owner && accept(next))
            }
            (Circles::Long(circle), _) => map.first(circle.onwards(position), accept),
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

/// What a slot holds that no member has.
const VACANT: u32 = u32::MAX;

impl RingMap {
    /// Makes a map whose points name the members by their order.
    pub(crate) fn in_order(members: &[Member], circle: impl FnOnce(&[Source]) -> Circles) -> Self {
        let source = |(slot, member): (u32, &Member)| Source::new(member, slot);
        let sources: Box<[_]> = (0..).zip(members).map(source).collect();
        Self::new(circle(&sources), sources)
    }

    pub(crate) fn new(circle: Circles, sources: Box<[Source]>) -> Self {
        let slots = sources.iter().map(|source| source.slot as usize + 1).max().unwrap_or(0);
        let mut members = vec![VACANT; slots];
        for (index, source) in (0..).zip(&sources) {
            members[source.slot as usize] = index;
        }
        let owning = sources.iter().filter(|source| source.weight > 0).count();
        Self { circle, sources, members: members.into(), owning }
    }

    pub(crate) fn member(&self, slot: u32) -> Option<usize> {
        self.members.get(slot as usize).map(|&index| index as usize)
    }

    /// Offers each owner once.
    fn first<'p, P: Position>(
        &self,
        points: impl Iterator<Item = &'p Point<P>>,
        mut accept: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let mut seen = Seen::default();
        let mut left = self.owning;
        let mut owners = points.filter_map(|&(_, slot)| self.member(slot));
        // Not beyond the last owner: there may be many points left.
        let mut next = || {
            while left > 0 {
                let owner = owners.next()?;
                if seen.is_new(owner, self.sources.len()) {
                    left -= 1;
                    return Some(owner);
                }
            }
            None
        };
        std::iter::from_fn(&mut next).find(|&owner| accept(owner))
    }
}

impl Source {
    pub(crate) fn new(member: &Member, slot: u32) -> Self {
        Self { id: member.id, name: member.name.clone(), weight: member.weight, slot }
    }
}
