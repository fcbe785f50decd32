//! Bounded load against a model in whole numbers: one call after the other, and on threads.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    thread,
};

use counterpoise::{
    Builder, Health,
    policy::{
        Candidates, Members, Needs, PickContext, PickResult, Picker, Policy,
        affinity::{Maglev, Rendezvous, RingHash, Structure},
    },
};
use proptest::prelude::*;

use crate::{
    keyed_bed::{Ask, KEY, KeyedBed, KeyedBy, Open},
    policy::affinity::bounded::assert_clean,
};

const ABC: [(&str, u32); 3] = [("a", 1), ("b", 1), ("c", 1)];

fn off() -> Builder {
    Builder::new().health(Health::off())
}

/// What a balancer should do, in whole numbers: the factor is `times / 4`.
pub(crate) struct Model {
    times: u64,
    weights: BTreeMap<String, u64>,
    held: HashMap<String, u64>,
    total: u64,
}

impl Model {
    pub(crate) fn new(times: u64, set: &[(&str, u32)]) -> Self {
        let weights = set
            .iter()
            .map(|&(name, weight)| (name.to_owned(), weight.into()));
        Self {
            times,
            weights: weights.collect(),
            held: HashMap::new(),
            total: 0,
        }
    }

    pub(crate) fn held(&self, name: &str) -> u64 {
        self.held.get(name).copied().unwrap_or(0)
    }

    /// `ceil(factor × (total + 1) × share)`
    pub(crate) fn has_room(&self, name: &str) -> bool {
        let sum: u64 = self.weights.values().sum();
        let bound = (self.times * (self.total + 1) * self.weights[name]).div_ceil(4 * sum);
        self.held(name) < bound
    }

    pub(crate) fn admit(&mut self, name: &str) {
        *self.held.entry(name.to_owned()).or_default() += 1;
        self.total += 1;
    }

    pub(crate) fn release(&mut self, name: &str) {
        *self.held.get_mut(name).unwrap() -= 1;
        self.total -= 1;
    }
}

fn factor(times: u64) -> f64 {
    times as f64 / 4.0
}

/// Follows a script of calls that begin and end, beside the model.
fn follow<S: Structure + Clone>(
    policy: &KeyedBy<S>,
    times: u64,
    weights: &[u32],
    script: &[(u8, u16)],
) {
    let names = ["a", "b", "c", "d", "e", "f"];
    let set: Vec<_> = names.into_iter().zip(weights.iter().copied()).collect();
    let map = policy.map(set.iter().copied());
    let bed = KeyedBed::with(off(), policy.clone().bounded(factor(times)), &set);
    let mut model = Model::new(times.max(4), &set);
    let mut open: Vec<(String, Open)> = Vec::new();
    for &(act, number) in script {
        if act < 3 || open.is_empty() {
            let key = format!("user {}", number % 5);
            // The mean of the bounds is never below the mean of what is held.
            let owners = map.owners(key.as_bytes());
            let want = owners.iter().find(|name| model.has_room(name)).unwrap();
            let call = bed.hold(&key);
            let before = model.held(want);
            model.admit(want);
            assert_eq!(bed.in_flight(want), before + 1, "{want}");
            open.push(((*want).to_owned(), call));
        } else {
            let (name, call) = open.swap_remove(usize::from(number) % open.len());
            drop(call);
            model.release(&name);
        }
        for endpoint in bed.balance.stats().endpoints {
            assert_eq!(
                endpoint.in_flight,
                model.held(&endpoint.name),
                "{}",
                endpoint.name
            );
        }
    }
}

fn scripts() -> impl Strategy<Value = Vec<(u8, u16)>> {
    prop::collection::vec((0..5_u8, any::<u16>()), 1..80)
}

fn weights() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(
        prop_oneof![4 => 1..8_u32, 1 => Just(1_000), 1 => Just(u32::MAX)],
        1..6,
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        rng_seed: prop::test_runner::RngSeed::Fixed(42),
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_admission_is_the_models(
        times in 1..9_u64,
        weights in weights(),
        script in scripts(),
    ) {
        follow(&RingHash::by(KEY).points(4).max_points(64), times, &weights, &script);
        follow(&Rendezvous::by(KEY), times, &weights, &script);
        follow(&Maglev::by(KEY).table_size(251), times, &weights, &script);
    }
}

/// Notes every choice: under a bound, choices are made one at a time.
#[derive(Debug, Clone)]
struct Log<P> {
    policy: P,
    choices: Arc<Mutex<Vec<usize>>>,
}

impl<P: Policy> Policy for Log<P> {
    type Picker = LogPicker<P::Picker>;

    fn build(&self, members: &Members<'_>, previous: Option<&Self::Picker>) -> Self::Picker {
        let inner = self
            .policy
            .build(members, previous.map(|picker| &picker.inner));
        LogPicker {
            inner,
            choices: Arc::clone(&self.choices),
        }
    }

    fn needs(&self) -> Needs {
        self.policy.needs()
    }
}

struct LogPicker<K> {
    inner: K,
    choices: Arc<Mutex<Vec<usize>>>,
}

impl<K: Picker<Ask>> Picker<Ask> for LogPicker<K> {
    fn pick(&self, ask: &Ask, cx: &PickContext<'_>) -> PickResult {
        let result = self.inner.pick(ask, cx);
        match result {
            PickResult::Member(index) => self.choices.lock().unwrap().push(index),
            other => panic!("{other:?}"),
        }
        result
    }

    fn candidates(&self, ask: &Ask, cx: &PickContext<'_>, skip: usize, out: &mut Candidates) {
        self.inner.candidates(ask, cx, skip, out);
    }
}

#[test]
fn the_bound_is_exact_under_threads() {
    const THREADS: usize = 4;
    let set = [("a", 1), ("b", 2), ("c", 1), ("d", 4)];
    for times in [4, 5, 6, 8] {
        let log = Log {
            policy: RingHash::by(KEY).bounded(factor(times)),
            choices: Arc::default(),
        };
        let bed = KeyedBed::with(off(), log.clone(), &set);
        for _ in 0..10 {
            log.choices.lock().unwrap().clear();
            let hold = |thread: usize| -> Vec<Open> {
                (0..60)
                    .map(|n| bed.hold(["hot", "warm", "cold"][(thread + n) % 5 % 3]))
                    .collect()
            };
            let calls: Vec<_> = thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || hold(n))).collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap())
                    .collect()
            });
            let mut model = Model::new(times, &set);
            for &index in &*log.choices.lock().unwrap() {
                assert!(
                    model.has_room(set[index].0),
                    "{} after {}",
                    set[index].0,
                    model.total
                );
                model.admit(set[index].0);
            }
            assert_eq!(model.total, 60 * THREADS as u64);
            set.iter()
                .for_each(|(name, _)| assert_eq!(bed.in_flight(name), model.held(name)));
            thread::scope(|scope| {
                calls.into_iter().for_each(|calls| {
                    scope.spawn(move || drop(calls));
                });
            });
            set.iter()
                .for_each(|(name, _)| assert_eq!(bed.in_flight(name), 0));
        }
    }
}

#[test]
fn calls_that_come_and_go_on_threads_leave_nothing_behind() {
    const HELD: usize = 5;
    let bed = KeyedBed::with(off(), RingHash::by(KEY).bounded(1.0), &ABC);
    thread::scope(|scope| {
        for thread in 0..4 {
            let bed = &bed;
            scope.spawn(move || {
                let mut calls: Vec<Option<Open>> = (0..HELD).map(|_| None).collect();
                for n in 0..2_000 {
                    calls[n % HELD] = None;
                    calls[n % HELD] = Some(bed.hold(["hot", "cold"][(n + thread) % 2]));
                }
            });
        }
    });
    // At most 20 ran: nobody has ever held more than a third of them.
    let most = ABC.map(|(name, _)| bed.most(name));
    assert!(most.iter().all(|&most| most <= 7), "{most:?}");
    assert_clean(&bed);
}
