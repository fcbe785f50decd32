//! One pick, one snapshot: what a resize may not tear.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use counterpoise::{
    Balance, BalanceLayer, Builder, Direct, Health, discover,
    error::ErrorKind,
    policy::{Members, PickContext, PickResult, Picker, Policy, RoundRobin},
};
use tower::{Layer, Service, ServiceExt};

use crate::{
    probes::{answers, call, for_each_policy, name},
    support::{Act, Answer, Request, Scripted, Site, Sites, Text, settle},
};

#[tokio::test(start_paused = true)]
async fn b07_a_set_that_shrinks_between_ready_and_call_serves_the_call() {
    async fn case<P: Policy<Picker: Picker<()>> + Clone>(policy: P) {
        for first in [0, 1, 2, u64::MAX] {
            let sites = Sites::new(&["a", "b", "c"]);
            let (handle, changes) = discover::channel();
            handle.set(["a", "b", "c"].map(|name| (name, sites[name].endpoint())));
            let builder = Builder::new().starting_at(first);
            let mut balance = builder.balance(changes, policy.clone()).unwrap();
            settle().await;
            let ready = balance.ready().await.unwrap();
            handle.remove(&"b");
            handle.remove(&"c");
            settle().await;
            assert_eq!(ready.call(()).await.unwrap(), Answer::From("a"));
        }
    }
    case(counterpoise::policy::RoundRobin::new()).await;
    case(counterpoise::policy::ModuloRoundRobin::new()).await;
    case(Shared::new(RoundRobin::new())).await;
}

#[tokio::test(start_paused = true)]
async fn b07_a_call_that_was_dispatched_before_the_shrink_stays_where_it_is() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let sites = Sites::new(&["a", "b", "c"]);
        let (handle, changes) = discover::channel();
        handle.set(["a", "b", "c"].map(|name| (name, sites[name].endpoint())));
        let mut balance = Builder::new()
            .starting_at(1)
            .balance(changes, policy)
            .unwrap();
        settle().await;
        let dispatched = balance.ready().await.unwrap().call(());
        handle.set([("a", sites["a"].endpoint())]);
        settle().await;
        assert_eq!(dispatched.await.unwrap(), Answer::From("b"));
        assert_eq!(answers(&mut balance, 3).await, ["a", "a", "a"]);
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b08_no_task_sees_a_set_that_was_never_published() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let sites = Sites::new(&["a", "b", "c"]);
        let (handle, changes) = discover::channel();
        let all = ["a", "b", "c"].map(|name| (name, sites[name].endpoint()));
        handle.set(all.clone());
        let balance = Builder::new().seed(8).balance(changes, policy).unwrap();
        settle().await;
        let tasks: Vec<_> = (0..4)
            .map(|_| tokio::spawn(pick_between(balance.clone())))
            .collect();
        for round in 0..1_000 {
            match round % 2 {
                0 => handle.remove(&"c"),
                _ => handle.insert("c", all[2].1.clone()),
            }
            tokio::task::yield_now().await;
        }
        for task in tasks {
            let picks = task.await.unwrap();
            assert!(picks.contains("c"), "the test would prove nothing");
            assert_eq!(picks.len(), 3);
        }
        assert_eq!(
            ["a", "b", "c"]
                .map(|name| sites[name].calls())
                .iter()
                .sum::<usize>(),
            4_000
        );
    }
    for_each_policy!(case);
}

/// Picks a thousand times; each pick is of the set that is published at that moment.
async fn pick_between<P: Policy<Picker: Picker<()>>>(
    mut balance: Balance<Direct<Site>, P>,
) -> HashSet<String> {
    let mut picked = HashSet::new();
    for _ in 0..1_000 {
        let stats = balance.stats();
        assert!(matches!(stats.endpoints.len(), 2 | 3));
        let Answer::From(name) = call(&mut balance).await.unwrap() else {
            unreachable!()
        };
        assert!(
            stats.endpoint(name).is_some(),
            "{name} was picked, but is not a member"
        );
        picked.insert(name.to_owned());
        tokio::task::yield_now().await;
    }
    picked
}

#[test]
fn b08_threads_pick_from_whole_generations_while_the_set_is_resized() {
    for_each_witness(|policy| {
        race(
            policy,
            &Turmoil {
                resize: true,
                ..Turmoil::default()
            },
        );
    });
}

#[test]
fn b08_threads_pick_from_whole_generations_while_weights_change() {
    for_each_witness(|policy| {
        race(
            policy,
            &Turmoil {
                reweigh: true,
                ..Turmoil::default()
            },
        );
    });
}

#[test]
fn b08_threads_pick_from_whole_generations_while_endpoints_are_ejected() {
    for_each_witness(|policy| {
        race(
            policy,
            &Turmoil {
                fail: true,
                ..Turmoil::default()
            },
        );
    });
}

#[test]
fn b08_threads_pick_from_whole_generations_in_every_turmoil_at_once() {
    for_each_witness(|policy| {
        race(
            policy,
            &Turmoil {
                resize: true,
                reweigh: true,
                fail: true,
            },
        );
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn b08_tasks_on_many_threads_pick_from_whole_generations() {
    let named: Vec<_> = (0..8).map(|i| Named::new(name("n", i))).collect();
    let (handle, changes) = discover::channel();
    handle.set(named.iter().map(|named| (named.name(), named.endpoint())));
    let policy = Witness::new(RoundRobin::new());
    let balance = Builder::new()
        .seed(8)
        .balance(changes, policy.clone())
        .unwrap();
    balance.ready_when(8).await.unwrap();
    let tasks = (0..4).map(|_| {
        let mut balance = balance.clone();
        tokio::spawn(async move {
            for _ in 0..2_000 {
                let trace = Trace::default();
                let called = balance
                    .ready()
                    .await
                    .unwrap()
                    .call(Trace::clone(&trace))
                    .await;
                check(&trace, called.unwrap().name());
                tokio::task::yield_now().await;
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for round in 0..500 {
        let size = 1 + (round * 5) % 8;
        handle.set(
            named[..size]
                .iter()
                .map(|named| (named.name(), named.endpoint())),
        );
        tokio::task::yield_now().await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(policy.torn.load(Ordering::SeqCst), 0);
    assert_eq!(
        named.iter().map(|named| named.calls()).sum::<usize>(),
        8_000
    );
}

#[tokio::test(start_paused = true)]
async fn every_change_is_one_generation() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let sites = Sites::new(&["a", "b"]);
        let (handle, changes) = discover::channel();
        let health = Health::new().consecutive_failures(1).jitter(0.0);
        let builder = Builder::new().starting_at(0).health(health);
        let mut balance = builder.balance(changes, policy).unwrap();
        let first = balance.stats().generation;
        let grown = |balance: &Balance<_, P>| balance.stats().generation - first;

        handle.set(["a", "b"].map(|name| (name, sites[name].endpoint())));
        settle().await;
        assert_eq!(grown(&balance), 1, "one batch");
        answers(&mut balance, 10).await;
        assert_eq!(grown(&balance), 1, "calls change nothing");
        handle.insert("b", sites["b"].endpoint().weight(3));
        settle().await;
        assert_eq!(grown(&balance), 2, "a weight");

        sites["a"].act(Act::Err);
        call(&mut balance).await.unwrap_err();
        assert_eq!(grown(&balance), 3, "an ejection");
        sites["a"].act(Act::Ok);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(answers(&mut balance, 1).await, ["a"]);
        assert_eq!(grown(&balance), 4, "a recovery");

        handle.remove(&"a");
        settle().await;
        assert_eq!(grown(&balance), 5, "a removal");
        handle.remove(&"a");
        settle().await;
        assert_eq!(grown(&balance), 5, "of nobody");
    }
    for_each_policy!(case);
}

/// What happens while threads pick.
#[derive(Debug, Default)]
struct Turmoil {
    resize: bool,
    reweigh: bool,
    fail: bool,
}

const MEMBERS: usize = 8;

/// Four threads call while another changes the set; no runtime anywhere.
fn race<P: Policy<Picker: Picker<Trace>> + Clone>(policy: Witness<P>, turmoil: &Turmoil) {
    let named: Vec<_> = (0..MEMBERS).map(|i| Named::new(name("n", i))).collect();
    let (handle, changes) = discover::channel();
    handle.set(named.iter().map(|named| (named.name(), named.endpoint())));
    let health = Health::new()
        .consecutive_failures(1)
        .base_ejection(Duration::from_micros(50));
    let builder = Builder::new().seed(8).health(health);
    let (layer, driver) = builder.pair(changes, policy.clone()).unwrap();
    let mut driver = tokio_test::task::spawn(driver);
    assert!(driver.poll().is_pending());
    let balance: Balance<_, _, _> = layer.layer(());
    thread::scope(|scope| {
        for _ in 0..4 {
            let mut balance = balance.clone();
            scope.spawn(move || {
                for _ in 0..2_000 {
                    let trace = Trace::default();
                    match futures::executor::block_on(balance.call(Trace::clone(&trace))) {
                        Ok(answer) => check(&trace, answer.name()),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Call),
                    }
                }
            });
        }
        scope.spawn(|| {
            let mut generation = layer.stats().generation;
            for round in 0..500_usize {
                let size = if turmoil.resize {
                    1 + (round * 5) % MEMBERS
                } else {
                    MEMBERS
                };
                let weight = if turmoil.reweigh {
                    1 + round as u32 % 3
                } else {
                    1
                };
                handle.set(
                    named[..size]
                        .iter()
                        .map(|named| (named.name(), named.endpoint().weight(weight))),
                );
                named[round % MEMBERS].act(if turmoil.fail { Act::Err } else { Act::Ok });
                named[(round + 1) % MEMBERS].act(Act::Ok);
                assert!(driver.poll().is_pending());
                let stats = layer.stats();
                assert_eq!(stats.endpoints.len(), size);
                assert!(stats.generation > generation, "each batch is published");
                generation = stats.generation;
            }
        });
    });
    assert_eq!(policy.torn.load(Ordering::SeqCst), 0);
    let stats = layer.stats();
    assert!(
        stats
            .endpoints
            .iter()
            .all(|endpoint| endpoint.in_flight == 0)
    );
    assert_eq!(stats.policy_panics, 0);
    assert_eq!(
        named.iter().map(|named| named.calls()).sum::<usize>(),
        8_000
    );
}

/// A call goes to the endpoint that the policy named last; if that was closed by then, to another
/// member of the very generation that it was named from.
fn check(trace: &Trace, answered: &str) {
    let picks = trace.lock().unwrap();
    // The call that tries an ejected endpoint makes no pick.
    let Some(last) = picks.last() else { return };
    let is_member = last.members.iter().any(|name| name == answered);
    assert!(
        last.named == answered || is_member,
        "{picks:?}, but {answered}"
    );
}

fn for_each_witness(test: impl Fn(Witness<Shared<Trace>>)) {
    test(Witness::new(Shared::new(
        counterpoise::policy::RoundRobin::new(),
    )));
    test(Witness::new(Shared::new(
        counterpoise::policy::ModuloRoundRobin::new(),
    )));
}

/// The picks that were made for a request.
type Trace = Arc<Mutex<Vec<Pick>>>;

/// A pick, and the members of its generation.
#[derive(Debug)]
struct Pick {
    named: String,
    members: Arc<[String]>,
}

/// A boxed policy that can be cloned.
struct Shared<Req: 'static>(Arc<counterpoise::policy::BoxPolicy<Req>>);

impl<Req: 'static> Shared<Req> {
    fn new(policy: impl Policy<Picker: Picker<Req>>) -> Self {
        Self(Arc::new(counterpoise::policy::BoxPolicy::new(policy)))
    }
}

impl<Req: 'static> Clone for Shared<Req> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<Req: 'static> Policy for Shared<Req> {
    type Picker = <counterpoise::policy::BoxPolicy<Req> as Policy>::Picker;

    fn build(&self, members: &Members<'_>, previous: Option<&Self::Picker>) -> Self::Picker {
        self.0.build(members, previous)
    }
}

/// Checks that each pick gets the table that was compiled for its snapshot.
#[derive(Clone)]
struct Witness<P> {
    policy: P,
    /// Picks whose table and endpoints were not of one generation.
    torn: Arc<AtomicUsize>,
}

struct Sworn<K> {
    inner: K,
    torn: Arc<AtomicUsize>,
    eligible: Vec<u32>,
    names: Arc<[String]>,
}

impl<P> Witness<P> {
    fn new(policy: P) -> Self {
        Self {
            policy,
            torn: Arc::default(),
        }
    }
}

impl<P: Policy> Policy for Witness<P> {
    type Picker = Sworn<P::Picker>;

    fn build(&self, members: &Members<'_>, previous: Option<&Self::Picker>) -> Self::Picker {
        Sworn {
            inner: self
                .policy
                .build(members, previous.map(|sworn| &sworn.inner)),
            torn: Arc::clone(&self.torn),
            eligible: members.eligible().to_vec(),
            names: members
                .iter()
                .map(|member| member.name().to_owned())
                .collect(),
        }
    }
}

impl<K: Picker<Trace>> Picker<Trace> for Sworn<K> {
    fn pick(&self, request: &Trace, cx: &PickContext<'_>) -> PickResult {
        let result = self.inner.pick(request, cx);
        match result {
            PickResult::Member(index) if cx.eligible() == self.eligible => {
                let (named, members) = (self.names[index].clone(), Arc::clone(&self.names));
                request.lock().unwrap().push(Pick { named, members });
            }
            _ => drop(self.torn.fetch_add(1, Ordering::SeqCst)),
        }
        result
    }
}

impl Request for Trace {}

/// An endpoint that answers with its name, from any thread.
type Named = Scripted<Text, Trace>;

/// A stack that is built once publishes to all services made from it.
#[tokio::test(start_paused = true)]
async fn services_of_one_layer_share_their_snapshots() {
    let sites = Sites::new(&["a", "b"]);
    let (handle, changes) = discover::channel();
    let layer = BalanceLayer::new(changes, RoundRobin::new());
    let (mut one, mut other): (Balance<_, _, _>, Balance<_, _, _>) =
        (layer.layer(()), layer.layer(()));
    handle.insert("a", sites["a"].endpoint());
    assert_eq!(answers(&mut one, 2).await, ["a", "a"]);
    handle.set([("b", sites["b"].endpoint())]);
    settle().await;
    assert_eq!(answers(&mut other, 2).await, ["b", "b"]);
    assert_eq!(one.stats().generation, other.stats().generation);
}
