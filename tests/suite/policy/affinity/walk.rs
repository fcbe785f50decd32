//! A key's own order of endpoints: who is next when the first may not be picked, or was tried.

use counterpoise::{
    AttemptsLayer, Balance, Builder, Health,
    error::ErrorKind,
    health::CapacityChange,
    policy::{
        BoxPolicy, Picker, Policy,
        affinity::{Combine, Fallback, HashMod, Key, Maglev, Rendezvous, RingHash, Structure},
    },
};
use tokio::time::advance;
use tower::{Service, ServiceBuilder};

use crate::{
    bed::{SECOND, eject1},
    keyed_bed::{
        Ask, KEY, KeyedBed, KeyedBy, Target, Walks, at_once, count, each_keyed, firsts, keys,
    },
    support::{Act, retries::Retries},
};

const SET: [(&str, u32); 6] = [("a", 1), ("b", 2), ("c", 1), ("d", 3), ("e", 1), ("f", 1)];

fn off() -> Builder {
    Builder::new().health(Health::off())
}

/// Returns the order of a key, without calls.
fn order<S: Structure + Clone>(policy: &KeyedBy<S>, key: &str) -> Vec<String> {
    let order: Vec<String> = policy
        .map(SET)
        .owners(key.as_bytes())
        .into_iter()
        .map(str::to_owned)
        .collect();
    assert_eq!(order.len(), SET.len());
    order
}

fn attempts_follow_the_order<S: Structure + Clone>(policy: KeyedBy<S>) {
    let bed = KeyedBed::with(off(), policy.clone(), &SET);
    for key in keys(100) {
        assert_eq!(bed.attempts(&key, SET.len()), order(&policy, &key));
    }
}

#[test]
fn the_kth_attempt_is_the_kth_choice() {
    each_keyed!(attempts_follow_the_order);
}

fn all_tried<S: Structure + Clone>(policy: KeyedBy<S>) {
    let bed = KeyedBed::with(off(), policy.clone(), &SET);
    for key in keys(20) {
        let order = order(&policy, &key);
        assert_eq!(
            bed.attempts(&key, SET.len() + 3)[SET.len()..],
            [&*order[0]; 3],
            "{key}"
        );
    }
}

#[test]
fn after_the_last_choice_comes_the_first_again() {
    each_keyed!(all_tried);
}

fn retry_layer<S: Structure + Clone>(policy: KeyedBy<S>) {
    let bed = KeyedBed::with(off(), policy.clone(), &SET);
    for (n, key) in keys(60).into_iter().enumerate() {
        let retries = n % SET.len();
        let mut stack = ServiceBuilder::new()
            .layer(AttemptsLayer::new())
            .retry(Retries::new(retries))
            .service(bed.balance.clone());
        let error = at_once(stack.call(Ask::of(&key).deed(Act::Err))).unwrap_err();
        assert_eq!(error.endpoint(), Some(&*order(&policy, &key)[retries]));
    }
}

#[test]
fn a_retry_layer_continues_the_order() {
    each_keyed!(retry_layer);
}

fn drained<S: Structure + Clone>(policy: KeyedBy<S>) {
    let mut bed = KeyedBed::with(off(), policy.clone(), &SET);
    for key in keys(10) {
        let order = order(&policy, &key);
        for drained in &order[..5] {
            assert_eq!(
                bed.balance.set_capacity(drained, 0.0),
                CapacityChange::Applied
            );
            let next = order.iter().position(|name| name == drained).unwrap() + 1;
            assert_eq!(bed.owner(&key), order[next]);
            assert_eq!(bed.attempts(&key, SET.len() - next), order[next..]);
        }
        for name in &order {
            assert_eq!(bed.balance.set_capacity(name, 1.0), CapacityChange::Applied);
        }
        assert_eq!(bed.owner(&key), order[0]);
    }
    bed.insert("d", 0);
    let set = SET.map(|(name, weight)| (name, if name == "d" { 0 } else { weight }));
    let keys = keys(200);
    assert_eq!(bed.owners(&keys), firsts(&policy, &set, &keys));
}

#[test]
fn drained_choices_are_passed_over_in_order() {
    each_keyed!(drained);
}

fn ejected<S: Structure + Clone>(policy: KeyedBy<S>) {
    for key in keys(10) {
        let bed = KeyedBed::with(Builder::new().health(eject1()), policy.clone(), &SET);
        let order = order(&policy, &key);
        for choice in &order[..5] {
            assert_eq!(bed.fail(&key), *choice);
        }
        assert_eq!(bed.owner(&key), order[5]);
        // With all ejected, all are used again.
        assert_eq!(bed.fail(&key), order[5]);
        assert_eq!(bed.owner(&key), order[0]);
    }
}

#[tokio::test(start_paused = true)]
async fn ejected_choices_are_passed_over_in_order() {
    each_keyed!(ejected);
}

fn unready<S: Structure + Clone>(policy: KeyedBy<S>, most: usize) {
    for key in keys(20) {
        let bed = KeyedBed::with(off(), policy.clone(), &SET);
        let order = order(&policy, &key);
        for n in 0..most {
            bed.unready(&order[n], true);
            assert_eq!(bed.owner(&key), order[n + 1], "{n} are unready");
        }
        (0..most).for_each(|n| bed.unready(&order[n], false));
        assert_eq!(bed.owner(&key), order[0]);
    }
}

fn two_unready<S: Structure + Clone>(policy: KeyedBy<S>) {
    unready(policy, 2);
}

fn five_unready<S: Structure + Clone>(policy: KeyedBy<S>) {
    unready(policy, 5);
}

#[test]
fn unready_choices_are_passed_over_in_order() {
    each_keyed!(two_unready);
}

#[test]
fn many_unready_choices_are_passed_over_in_order() {
    each_keyed!(five_unready);
}

fn fallbacks<S: Structure + Clone>(policy: KeyedBy<S>) {
    let names = SET.map(|(name, _)| name.to_owned());
    let keyless = |bed: &KeyedBed<KeyedBy<S>>| bed.call(Ask::default());
    let bed = KeyedBed::new(policy.clone(), &SET);
    let turns: Vec<_> = (0..12)
        .map(|_| keyless(&bed).unwrap().to_string())
        .collect();
    assert_eq!(turns, [names.clone(), names.clone()].concat());
    let random = policy.clone().fallback(Fallback::Random);
    let draws = || {
        let bed = KeyedBed::new(random.clone(), &SET);
        (0..600)
            .map(|_| keyless(&bed).unwrap().to_string())
            .collect::<Vec<_>>()
    };
    let drawn = draws();
    assert_eq!(drawn, draws(), "the seed decides");
    assert_ne!(drawn[..12], turns);
    assert!(
        names
            .iter()
            .all(|name| (60..=140).contains(&count(&drawn, name)))
    );
    let bed = KeyedBed::new(policy.fallback(Fallback::Refuse), &SET);
    let error = keyless(&bed).unwrap_err();
    assert_eq!((error.kind(), error.is_unsent()), (ErrorKind::Policy, true));
    assert!(names.iter().all(|name| bed.calls(name) == 0));
    bed.owner("");
}

#[test]
fn requests_without_a_key_take_the_declared_fallback() {
    each_keyed!(fallbacks);
}

async fn refuses_during_a_trial<S: Structure + Clone>(policy: KeyedBy<S>) {
    let builder = Builder::new().health(eject1());
    let bed = KeyedBed::with(builder, policy.fallback(Fallback::Refuse), &SET);
    bed.fail("user 1");
    advance(10 * SECOND).await;
    let refused = bed.call(Ask::default());
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Policy);
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_is_due_changes_no_refusal() {
    refuses_during_a_trial(RingHash::by(KEY)).await;
    refuses_during_a_trial(Rendezvous::by(KEY)).await;
}

/// A retry of a request without a key is a new turn, elsewhere.
fn keyless_retries<S: Structure + Clone>(policy: KeyedBy<S>) {
    for fallback in [Fallback::Rotate, Fallback::Random] {
        let bed = KeyedBed::with(off(), policy.clone().fallback(fallback), &SET);
        for _ in 0..50 {
            let scope = counterpoise::Attempts::new();
            for _ in 0..SET.len() {
                let mut balance = bed.balance.clone();
                let ask = Ask::default().deed(Act::Err);
                at_once(scope.scope(async move { balance.call(ask).await })).unwrap_err();
            }
            let mut names = scope.names();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), SET.len(), "{fallback:?}");
        }
    }
}

#[test]
fn retries_without_a_key_try_everybody() {
    each_keyed!(keyless_retries);
}

/// The user, or else the city; and the two together.
fn city(ask: &Ask) -> Option<Key<'_>> {
    ask.key
        .as_deref()?
        .split_once('@')
        .map(|(_, city)| city.into())
}

fn user(ask: &Ask) -> Option<Key<'_>> {
    let user = ask.key.as_deref()?.split('@').next()?;
    (!user.is_empty()).then(|| user.into())
}

#[test]
fn keys_are_combined_as_declared() {
    let either = KeyedBed::new(RingHash::on(user.or(city)), &SET);
    let both = KeyedBed::new(RingHash::on(user.and(city)), &SET);
    let plain = KeyedBed::new(RingHash::by(KEY), &SET);
    let mut differ = 0;
    for n in 0..100 {
        let (name, place) = (format!("u{n}"), format!("p{n}"));
        let full = format!("{name}@{place}");
        assert_eq!(either.owner(&full), plain.owner(&name));
        assert_eq!(either.owner(&format!("@{place}")), plain.owner(&place));
        // What is missing is left out.
        assert_eq!(both.owner(&name), plain.owner(&name));
        assert_eq!(both.owner(&format!("@{place}")), plain.owner(&place));
        // Length, user, city: so that no two pairs are one key.
        let joined = [
            &(name.len() as u64).to_le_bytes(),
            name.as_bytes(),
            place.as_bytes(),
        ];
        assert_eq!(
            both.owner(&full),
            RingHash::by(KEY).map(SET).owners(&joined.concat())[0]
        );
        differ += usize::from(both.owner(&full) != plain.owner(&name));
    }
    assert!(differ > 50, "{differ}");
    // Neither: the fallback.
    let turns: Vec<_> = (0..6)
        .map(|_| both.call(Ask::default()).unwrap().to_string())
        .collect();
    assert_eq!(turns, SET.map(|(name, _)| name));
}

fn shout(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(14_695_981_039_346_656_037, |hash: u64, &byte| {
            (hash ^ u64::from(byte.to_ascii_uppercase())).wrapping_mul(1_099_511_628_211)
        })
}

#[test]
fn the_hash_function_is_replaced_for_names_and_keys() {
    fn same<S: Structure + Clone>(policy: &KeyedBy<S>) {
        let lower = policy.map(SET);
        let upper = policy.map(SET.map(|(name, weight)| (name.to_uppercase(), weight)));
        for key in keys(50) {
            let owners = lower.owners(key.as_bytes());
            assert_eq!(owners, lower.owners(key.to_uppercase().as_bytes()));
            let upper = upper.owners(key.as_bytes());
            assert_eq!(
                owners,
                upper
                    .iter()
                    .map(|name| name.to_lowercase())
                    .collect::<Vec<_>>()
            );
        }
    }
    same(&RingHash::by(KEY).hash_with(shout));
    same(&HashMod::by(KEY).hash_with(shout));
    same(&Rendezvous::by(KEY).hash_with(shout));
}

fn boxed<S: Structure + Clone>(policy: KeyedBy<S>) {
    let keys = keys(200);
    assert_eq!(firsts(&policy, &SET, &keys), {
        let bed = KeyedBed::new(BoxPolicy::new(policy.clone()), &SET);
        bed.owners(&keys)
    });
    assert_eq!(BoxPolicy::new(policy.clone()).needs(), policy.needs());
    let bounded = policy.clone().bounded(1.5);
    assert_ne!(bounded.needs(), policy.needs());
    assert_eq!(BoxPolicy::new(bounded.clone()).needs(), bounded.needs());
    let bed = KeyedBed::with(off(), BoxPolicy::new(policy.clone()), &SET);
    for key in &keys[..20] {
        assert_eq!(bed.attempts(key, SET.len()), order(&policy, key));
    }
    // `owner` passes through: the whole order, from the table of the box.
    let walks = Walks::new(BoxPolicy::new(policy.clone()));
    let bed = KeyedBed::new(walks.clone(), &SET);
    let want: Vec<_> = keys[..20].iter().map(|key| order(&policy, key)).collect();
    assert_eq!(bed.walks(&walks, &keys[..20]), want);
}

#[test]
fn a_boxed_policy_is_the_policy() {
    each_keyed!(boxed);
}

/// Asserts that an endpoint on trial is only tried with its own keys, or with none.
async fn trials<P: Policy<Picker: Picker<Ask>>>(policy: P) {
    let keys = keys(300);
    let bed = KeyedBed::with(Builder::new().health(eject1()), policy, &SET);
    let before = bed.owners(&keys);
    let own = before.iter().position(|owner| owner == "d").unwrap();
    for keyless in [false, true] {
        assert_eq!(bed.fail(&keys[own]), "d");
        advance(300 * SECOND).await;
        let calls = bed.calls("d");
        for (key, owner) in keys.iter().zip(&before).filter(|(_, owner)| *owner != "d") {
            assert_eq!(bed.owner(key), *owner);
        }
        assert_eq!(bed.calls("d"), calls, "foreign keys do not try it");
        match keyless {
            true => assert_eq!(&*bed.call(Ask::default()).unwrap(), "d"),
            false => assert_eq!(bed.owner(&keys[own]), "d"),
        }
        assert_eq!(bed.owners(&keys), before);
    }
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_is_tried_with_its_own_keys() {
    trials(RingHash::by(KEY)).await;
    trials(Maglev::by(KEY)).await;
    trials(HashMod::by(KEY)).await;
    trials(Rendezvous::by(KEY)).await;
    trials(BoxPolicy::new(RingHash::by(KEY))).await;
}

/// The types that people would write.
#[allow(dead_code, reason = "compiling it is the check")]
fn _is_send_and_cloneable(balance: &Balance<Target, RingHash<crate::keyed_bed::ByKey>>) {
    fn all<T: Send + Sync + Clone + 'static>(_: &T) {}
    all(balance);
}
