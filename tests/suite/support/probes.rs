//! Endpoints whose readiness obeys too, scripted discovery, and short ways to call.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use std::{
    future::{Future, poll_fn},
    pin::pin,
};

use counterpoise::{
    Balance, Builder, Direct, Endpoint, discover,
    policy::{Members, Picker, Policy},
};
use futures::channel::mpsc;
use tokio_test::task;
use tower::{Service, ServiceExt, discover::Change};

pub(crate) use crate::support::Gate;
use crate::support::{Answer, Broken, Scripted, settle};

pub(crate) type Probe = Scripted;

/// Runs a case with every policy there is.
macro_rules! for_each_policy {
    ($case:path) => {{
        $case(counterpoise::policy::RoundRobin::new()).await;
        $case(counterpoise::policy::ModuloRoundRobin::new()).await;
        $case(counterpoise::policy::BoxPolicy::new(
            counterpoise::policy::RoundRobin::new(),
        ))
        .await;
    }};
}
pub(crate) use for_each_policy;

/// What a scripted discovery yields.
pub(crate) type Item<T> = Result<Change<&'static str, Endpoint<T>>, Broken>;

/// A discovery stream that a test feeds, change by change.
pub(crate) fn feed<T>() -> (
    mpsc::UnboundedSender<Item<T>>,
    mpsc::UnboundedReceiver<Item<T>>,
) {
    mpsc::unbounded()
}

pub(crate) fn insert<T>(name: &'static str, endpoint: Endpoint<T>) -> Item<T> {
    Ok(Change::Insert(name, endpoint))
}

pub(crate) fn remove<T>(name: &'static str) -> Item<T> {
    Ok(Change::Remove(name))
}

/// Makes one call as tower wants it: ready, then call, on one instance.
pub(crate) async fn call<S: Service<()>>(service: &mut S) -> Result<S::Response, S::Error> {
    service.ready().await?.call(()).await
}

/// Makes calls one after the other; returns who answered.
pub(crate) async fn answers<S>(service: &mut S, calls: usize) -> Vec<&'static str>
where
    S: Service<(), Response = Answer>,
    S::Error: std::fmt::Debug,
{
    let mut names = Vec::new();
    for _ in 0..calls {
        names.push(call(service).await.unwrap().name());
    }
    names
}

/// Counts how often a name is among the answers.
pub(crate) fn count(answers: &[&str], name: &str) -> usize {
    answers.iter().filter(|&&answer| answer == name).count()
}

/// Returns a name for the rest of the process.
pub(crate) fn name(prefix: &str, number: usize) -> &'static str {
    format!("{prefix}{number}").leak()
}

/// A policy that counts the compiles of sets that are not empty, and may panic in some.
#[derive(Debug, Clone)]
pub(crate) struct Compiles<P> {
    policy: P,
    compiles: Arc<AtomicUsize>,
    panics_at: usize,
}

impl<P> Compiles<P> {
    pub(crate) fn new(policy: P) -> Self {
        Self {
            policy,
            compiles: Arc::default(),
            panics_at: 0,
        }
    }

    /// Panics in the n-th compile of a set that is not empty.
    pub(crate) fn panics_at(policy: P, nth: usize) -> Self {
        Self {
            panics_at: nth,
            ..Self::new(policy)
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.compiles.load(Ordering::SeqCst)
    }
}

impl<P: Policy> Policy for Compiles<P> {
    type Picker = P::Picker;

    fn build(&self, members: &Members<'_>, previous: Option<&P::Picker>) -> P::Picker {
        if !members.is_empty() {
            let nth = 1 + self.compiles.fetch_add(1, Ordering::SeqCst);
            assert_ne!(nth, self.panics_at, "compile {nth} fails");
        }
        self.policy.build(members, previous)
    }
}

// ===== calls that wait =====

pub(crate) type Probes<P> = Balance<Direct<Probe>, P>;

/// Returns a balancer over probes that has seen them all.
pub(crate) async fn over<P: Policy<Picker: Picker<()>>>(
    builder: Builder,
    probes: &[&Probe],
    policy: P,
) -> Probes<P> {
    let list = probes
        .iter()
        .enumerate()
        .map(|(i, probe)| (i, probe.endpoint()));
    let balance = builder
        .starting_at(0)
        .balance(discover::list(list), policy)
        .unwrap();
    settle().await;
    balance
}

/// Starts a call, which is then a future that nothing has polled.
pub(crate) fn start<S: Service<()> + Clone>(balance: &S) -> task::Spawn<S::Future> {
    let mut clone = balance.clone();
    assert!(task::spawn(clone.ready()).poll().is_ready());
    task::spawn(clone.call(()))
}

/// Waits for a call to end; returns its result and how often it was polled.
pub(crate) async fn polled<F: Future>(call: F) -> (F::Output, usize) {
    let (mut call, mut polls) = (pin!(call), 0);
    let result = poll_fn(|cx| {
        polls += 1;
        assert!(polls < 1_000, "a busy loop");
        call.as_mut().poll(cx)
    });
    (result.await, polls)
}

/// Polls a call that waits until it is quiet, which it must soon be.
pub(crate) fn rest<F: Future>(waiting: &mut task::Spawn<F>) {
    for _ in 0..4 {
        assert!(waiting.poll().is_pending());
        if !waiting.is_woken() {
            return;
        }
    }
    panic!("a busy loop");
}

pub(crate) fn probes<const N: usize>(gates: [Gate; N]) -> [Probe; N] {
    let mut number = 0;
    gates.map(|gate| {
        number += 1;
        Probe::gated(name("p", number), gate)
    })
}
