//! Choices recorded from nginx, Envoy and HAProxy, key by key.

use counterpoise::policy::affinity::{HashMod, Key, KeyMap, Maglev, RingHash, Structure};
use serde_json::Value;

use crate::table::{Fail, Table};

fn keys() -> Vec<String> {
    let file: Value = serde_json::from_str(include_str!("../../../golden/keys.json")).unwrap();
    let keys = file["keys"].as_array().unwrap().iter();
    let keys: Vec<_> = keys.map(|key| key.as_str().unwrap().to_owned()).collect();
    assert_eq!(keys.len(), 477);
    keys
}

fn sets(text: &str) -> Vec<Value> {
    let file: Value = serde_json::from_str(text).unwrap();
    file["sets"].as_array().unwrap().clone()
}

fn numbers(value: &Value) -> Vec<usize> {
    let numbers = value.as_array().into_iter().flatten();
    numbers
        .map(|number| number.as_u64().unwrap() as usize)
        .collect()
}

fn names(value: &Value) -> Vec<String> {
    let names = value.as_array().into_iter().flatten();
    names
        .map(|name| name.as_str().unwrap().to_owned())
        .collect()
}

/// Servers and weights of a recorded set.
fn members(set: &Value) -> Vec<(String, u32)> {
    let weights = numbers(&set["weights"])
        .into_iter()
        .map(|weight| weight as u32);
    names(&set["servers"]).into_iter().zip(weights).collect()
}

fn by_text(text: &str) -> Option<Key<'_>> {
    Some(text.into())
}

/// Asserts that each key goes to the recorded server, the first in its order that is not out.
/// Returns how many keys had none.
fn assert_picks<S: Structure>(
    map: &KeyMap<S>,
    set: &Value,
    names: &[String],
    out: &[usize],
) -> usize {
    let keys = keys();
    let want = numbers(&set["picks"]);
    assert_eq!(want.len(), keys.len());
    let mut lost = 0;
    let is_in = |owner: &&str| !out.iter().any(|&out| names[out] == **owner);
    for (n, (key, want)) in keys.iter().zip(want).enumerate() {
        let owner = map.owner(key.as_bytes()).filter(is_in);
        // The whole order takes long in a large table: it is walked where it matters, and to see
        // that it begins with the owner.
        let is_walked = owner.is_none() || n % 32 == 0;
        let walk = || map.owners(key.as_bytes()).into_iter().find(is_in);
        let picked = if is_walked { walk() } else { owner };
        match picked {
            Some(picked) => assert_eq!(picked, names[want], "{} {key:?}", set["name"]),
            None => lost += 1,
        }
    }
    lost
}

#[test]
fn golden_nginx_hash() {
    let mut seen = 0;
    for set in sets(include_str!("../../../golden/nginx_hash.json")) {
        let (members, names) = (members(&set), names(&set["servers"]));
        let out = [numbers(&set["down"]), numbers(&set["refuses"])].concat();
        let lost = if set["mode"] == "consistent" {
            let map = RingHash::by(by_text).nginx().map(members);
            assert_picks(&map, &set, &names, &out)
        } else {
            let map = HashMod::by(by_text).nginx().map(members);
            assert_picks(&map, &set, &names, &out)
        };
        // Where 21 points in a row are of no use, nginx falls back to turns.
        let falls_back = set["name"].as_str().unwrap().starts_with("c3_w20_1_1");
        assert_eq!(lost, if falls_back { 64 } else { 0 }, "{}", set["name"]);
        seen += 1;
    }
    assert_eq!(seen, 31);
}

fn envoy(kind: &str) -> Vec<Value> {
    let sets = sets(include_str!("../../../golden/envoy_hash.json"));
    sets.into_iter().filter(|set| set["kind"] == kind).collect()
}

/// The names that Envoy hashes, beside the weights.
fn hashed(set: &Value) -> (Vec<String>, Vec<(String, u32)>) {
    let members = members(set);
    let given = names(&set["hash_keys"]);
    let names: Vec<_> = match given.is_empty() {
        true => members.iter().map(|(name, _)| name.clone()).collect(),
        false => given,
    };
    let members = names
        .iter()
        .cloned()
        .zip(members.iter().map(|&(_, weight)| weight))
        .collect();
    (names, members)
}

#[test]
fn golden_envoy_ring() {
    let sets = envoy("ring_hash");
    for set in &sets {
        let (names, members) = hashed(set);
        let min = set["minimum_ring_size"].as_u64().unwrap() as u32;
        let max = set["maximum_ring_size"]
            .as_u64()
            .map_or(8 << 20, |max| max as u32);
        let ring = RingHash::by(by_text);
        let ring = match set["hash"].as_str().unwrap() {
            "XX_HASH" => ring.envoy(min, max),
            _ => ring.envoy_murmur(min, max),
        };
        let map = ring.map(members);
        assert_eq!(assert_picks(&map, set, &names, &[]), 0);
    }
    assert!(sets.len() > 30, "{}", sets.len());
}

#[test]
fn golden_envoy_maglev() {
    let sets = envoy("maglev");
    for set in &sets {
        let (names, members) = hashed(set);
        let size = set["table_size"].as_u64().unwrap() as u32;
        let map = Maglev::by(by_text).table_size(size).map(members);
        assert_eq!(assert_picks(&map, set, &names, &[]), 0);
        let most = map
            .shares()
            .into_iter()
            .map(|(_, share)| share * f64::from(size));
        let recorded = set["stats"]["max_entries_per_host"].as_f64();
        if let Some(recorded) = recorded.filter(|_| names.len() > 1) {
            assert_eq!(
                most.fold(0.0, f64::max).round(),
                recorded,
                "{}",
                set["name"]
            );
        }
    }
    assert!(sets.len() > 15, "{}", sets.len());
}

/// The ids that the recordings used, by which HAProxy's points are placed: the name is the id.
fn id(name: &str) -> u32 {
    name.parse().unwrap()
}

/// HAProxy's other hash functions, for `hash_with`.
mod haproxy {
    pub(super) fn djb2(key: &[u8]) -> u64 {
        let hash = key.iter().fold(5_381_u32, |hash, &byte| {
            (hash << 5).wrapping_add(hash).wrapping_add(byte.into())
        });
        hash.into()
    }

    pub(super) fn wt6(key: &[u8]) -> u64 {
        let (mut h0, mut h1) = (0xa53c_965a_u32, 0x5ca6_953a_u32);
        let (mut step0, mut step1) = (6, 18);
        for &byte in key {
            h0 = !(h0 ^ u32::from(byte));
            h1 = !h1.wrapping_add(byte.into());
            let t = h1.rotate_left(step0);
            h1 = h0.rotate_left(step1);
            h0 = t;
            let t = ((h0 >> 16) ^ h1) & 0xffff;
            (step0, step1) = (t & 0x1f, t >> 11);
        }
        (h0 ^ h1).into()
    }

    pub(super) fn sdbm(key: &[u8]) -> u64 {
        let hash = key.iter().fold(0_u32, |hash, &byte| {
            let shifted = (hash << 6).wrapping_add(hash << 16).wrapping_sub(hash);
            shifted.wrapping_add(byte.into())
        });
        hash.into()
    }
}

#[test]
fn golden_haproxy_hash() {
    let mut seen = 0;
    for set in sets(include_str!("../../../golden/haproxy_hash.json")) {
        let kind = set["hash_type"].as_str().unwrap();
        let own: Option<fn(&[u8]) -> u64> = match kind {
            "consistent" => None,
            "consistent sdbm" => Some(haproxy::sdbm),
            "consistent djb2" => Some(haproxy::djb2),
            "consistent wt6" => Some(haproxy::wt6),
            // The others are hash functions and rules that this crate does not offer.
            _ => continue,
        };
        let names: Vec<_> = numbers(&set["ids"])
            .iter()
            .map(ToString::to_string)
            .collect();
        let weights = numbers(&set["weights"])
            .into_iter()
            .map(|weight| weight as u32);
        let ring = RingHash::by(by_text).haproxy(id);
        let ring = own.map_or(ring.clone(), |hash| ring.hash_with(hash));
        let map = ring.map(names.iter().cloned().zip(weights));
        assert_eq!(assert_picks(&map, &set, &names, &[]), 0);
        seen += 1;
    }
    assert_eq!(seen, 12);
}

#[test]
fn the_published_maglev_tables_fill_alike() {
    let hosts = |weights: &[u32]| {
        let hosts = (90..).map(|port| format!("127.0.0.1:{port}"));
        hosts.zip(weights.iter().copied()).collect::<Vec<_>>()
    };
    let map = Maglev::by(by_text).table_size(7).map(hosts(&[1; 6]));
    let slots: Vec<_> = map
        .shares()
        .iter()
        .map(|(_, share)| (share * 7.0).round() as u32)
        .collect();
    assert_eq!(slots, [2, 1, 1, 1, 1, 1]);
    let map = Maglev::by(by_text).table_size(17).map(hosts(&[1, 2]));
    let slots: Vec<_> = map
        .shares()
        .iter()
        .map(|(_, share)| (share * 17.0).round() as u32)
        .collect();
    assert_eq!(slots, [6, 11]);
}

#[test]
fn an_empty_key_is_none_to_nginx() {
    let turns = |mut table: Vec<usize>| {
        table.sort_unstable();
        table
    };
    fn empty(_: &Fail) -> Option<Key<'_>> {
        Some(Key::from(""))
    }
    let mut ring = Table::new(RingHash::by(empty).nginx(), &[1, 1, 1]);
    assert_eq!(turns(ring.picks(6)), [0, 0, 1, 1, 2, 2]);
    let mut modulo = Table::new(HashMod::by(empty).nginx(), &[1, 1, 1]);
    assert_eq!(turns(modulo.picks(6)), [0, 0, 1, 1, 2, 2]);
    let mut own = Table::new(RingHash::by(empty), &[1, 1, 1]);
    let first = own.pick();
    assert_eq!(own.picks(6), [first; 6]);
}

#[test]
fn sizes_of_an_envoy_ring_that_make_no_sense_are_mended() {
    for (min, max) in [(0, 0), (100, 10), (u32::MAX, 0)] {
        let map = RingHash::on(by_text)
            .envoy(min.min(4_096), max)
            .map([("a", 1), ("b", 1)]);
        // A ring of one point has one owner, as in Envoy; but an owner it has.
        let owned: f64 = map.shares().iter().map(|(_, share)| share).sum();
        assert!((owned - 1.0).abs() < 1e-9, "{min} {max}");
    }
}
