//! Ring hash: endpoints own points on a circle, and a key belongs to the next point.

mod arcs;
mod build;
mod circle;
mod map;
mod points;
mod position;

use self::{
    arcs::{CIRCLE, lengths},
    map::{Circles, RingMap},
    points::{Envoy, Haproxy},
};
use crate::{
    policy::affinity::{Keyed, Member, sealed},
    util::hash::{avalanche, crc32, murmur2, sdbm, xxh64},
};

/// Keeps keys with endpoints on a ring: each endpoint owns points, and a key goes to the owner of
/// the next point.
///
/// The ring depends on the names and weights alone: not on order, history, process or platform.
/// When an endpoint leaves, only its keys move; when one joins, only keys to it. A change of weight
/// moves only keys to or from that endpoint. An ejection moves only the keys of the ejected
/// endpoint, spread over the others, until it recovers.
///
/// # Points
///
/// An endpoint owns 160 points for each unit of weight, at least one, and at most 65,536:
/// weights above 409 count as 409, unless [`points`](Self::points) are fewer. More points
/// make the shares more even. The table has the greatest share over the mean, for endpoints of one
/// weight with the names `10.0.0.1:8080` and so on; in brackets the worst of many such networks:
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
/// Per pick: a hash of the key and a search in the sector of the hash's top bits, a few steps
/// whatever the size. Per build: a change of few endpoints copies only the sectors that it edits,
/// a change of many makes the ring anew, O(points); health changes nothing. Memory: about 9
/// bytes per point, and about 17 in the ring of [`envoy`](Self::envoy), whose positions have 64 bits.
///
/// # Other rings
///
/// [`nginx`](Self::nginx), [`envoy`](Self::envoy) and [`haproxy`](Self::haproxy) choose what
/// those products choose, bit for bit, so that a move of the balancing from the proxy into the
/// client moves no key.
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
    /// For each unit of weight.
    points: u32,
    /// For each endpoint.
    most: u32,
    hash: fn(&[u8]) -> u64,
}

/// Which product's points and search a ring has.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Own,
    Nginx,
    Envoy(Envoy),
    Haproxy(Haproxy),
}

impl Default for Ring {
    fn default() -> Self {
        Self {
            kind: Kind::Own,
            points: 160,
            most: 65_536,
            hash: xxh64,
        }
    }
}

impl<A> RingHash<A> {
    /// Sets how many points an endpoint owns for each unit of weight.
    ///
    /// Default: 160, as in nginx and ketama. Zero counts as one.
    #[must_use]
    pub fn points(mut self, per_weight: u32) -> Self {
        self.structure_mut().points = per_weight.max(1);
        self
    }

    /// Sets how many points an endpoint owns at most, whatever its weight.
    ///
    /// Default: 65,536. Zero counts as one.
    #[must_use]
    pub fn max_points(mut self, per_endpoint: u32) -> Self {
        self.structure_mut().most = per_endpoint.max(1);
        self
    }

    /// Sets the hash function of names and keys.
    ///
    /// Default: xxHash64 with seed 0. In the rings of other products it applies to keys alone;
    /// rings of 32 bits use the lower half. [`nginx`](Self::nginx), [`envoy`](Self::envoy),
    /// [`envoy_murmur`](Self::envoy_murmur) and [`haproxy`](Self::haproxy) set the product's own
    /// function, so it has an effect only after them.
    #[must_use]
    pub fn hash_with(mut self, hash: fn(&[u8]) -> u64) -> Self {
        self.structure_mut().hash = hash;
        self
    }

    /// Chooses as nginx's `hash … consistent` does, bit for bit.
    ///
    /// The names are nginx's server strings, such as `10.0.0.1:8080`. Weights above 6,553 count as
    /// 6,553, so that the ring has at most about a million points for each endpoint. As in nginx an
    /// endpoint that may not be picked is passed over point by point; after 21 points the
    /// request goes to any eligible endpoint (nginx: by weight). As in nginx a request with an empty
    /// key has no key. [`points`](Self::points) has no effect on this ring and those below.
    #[must_use]
    pub fn nginx(mut self) -> Self {
        self.structure_mut().kind = Kind::Nginx;
        self.hash_with(|key| u64::from(crc32(key)))
    }

    /// Chooses as Envoy's `ring_hash` with `XX_HASH` does, bit for bit.
    ///
    /// The ring has at least `min_size` and at most `max_size` points in total. Envoy's defaults are
    /// 1,024 and 8,388,608, which is also the limit here; `min_size` is raised to 1, and `max_size`
    /// to `min_size`. Where names are `ip:port`, gRPC's `ring_hash` chooses the same. Envoy chooses at
    /// random for a request without a key:
    /// [`Fallback::Random`](crate::policy::affinity::Fallback::Random).
    ///
    /// The endpoints must join in the order of Envoy's configuration. As in Envoy the points of one
    /// endpoint depend on the others, so a change also moves keys between endpoints that stay.
    /// Envoy makes the ring anew without an ejected host; here the ring stays, and the key goes to
    /// the next endpoint on it.
    #[must_use]
    pub fn envoy(mut self, min_size: u32, max_size: u32) -> Self {
        let envoy = Envoy::new(min_size, max_size, xxh64);
        self.structure_mut().kind = Kind::Envoy(envoy);
        self.hash_with(xxh64)
    }

    /// Chooses as [`envoy`](Self::envoy), with points by `MURMUR_HASH_2`.
    #[must_use]
    pub fn envoy_murmur(mut self, min_size: u32, max_size: u32) -> Self {
        let envoy = Envoy::new(min_size, max_size, murmur2);
        self.structure_mut().kind = Kind::Envoy(envoy);
        self.hash_with(xxh64)
    }

    /// Chooses as HAProxy's `hash-type consistent` does, bit for bit: the nearest point in either
    /// direction.
    ///
    /// HAProxy hashes the ids of its servers: by default 1, 2, 3 in the order of its configuration.
    /// `id` returns the id for the name of an endpoint. A unit of weight is 16 points; weights above
    /// 256 count as 256. Keys are hashed by SDBM with avalanche, HAProxy's default.
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

    /// Returns the position of a key.
    fn position(&self, key: &[u8]) -> u64 {
        let hash = (self.hash)(key);
        match self.kind {
            Kind::Own => points::spread(hash),
            _ => hash,
        }
    }
}

/// From so many new points on, a build takes milliseconds (`benches/ring.rs`).
const SLOW: u64 = 50_000;

/// How many points nginx tries: `ngx_http_upstream_hash_module.c` ends after 20 further ones.
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
                map.first(circle.onwards(position), |next| {
                    next != owner && accept(next)
                })
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
