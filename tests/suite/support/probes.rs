//! Endpoints whose readiness obeys too, scripted discovery, and short ways to call.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use counterpoise::{
    Direct, Endpoint,
    policy::{Policy, View},
};
use futures::channel::mpsc;
use tower::{Service, ServiceExt, discover::Change};

use crate::support::{Act, Answer, Broken, Site};

/// Runs a case with every policy there is.
macro_rules! for_each_policy {
    ($case:path) => {{
        $case(counterpoise::policy::RoundRobin::new()).await;
        $case(counterpoise::policy::ModuloRoundRobin::new()).await;
        $case(counterpoise::policy::BoxPolicy::new(counterpoise::policy::RoundRobin::new())).await;
    }};
}
pub(crate) use for_each_policy;

/// How ready an endpoint is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    Open,
    Shut,
    /// Each poll fails.
    Fails,
    /// The next poll fails, then it is open.
    FailsOnce,
    Panics,
}

/// A [`Site`] that is only ready when its gate is open.
#[derive(Debug, Clone)]
pub(crate) struct Probe {
    pub(crate) site: Site,
    name: &'static str,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    gate: Mutex<Gate>,
    polls: AtomicUsize,
    wakers: Mutex<Vec<Waker>>,
}

impl Probe {
    pub(crate) fn new(name: &'static str, gate: Gate) -> Self {
        let state =
            State { gate: Mutex::new(gate), polls: AtomicUsize::new(0), wakers: Mutex::default() };
        Self { site: Site::new(name), name, state: Arc::new(state) }
    }

    /// Turns the gate, and wakes whoever waits for it.
    pub(crate) fn turn(&self, gate: Gate) {
        *self.state.gate.lock().unwrap() = gate;
        let wakers = std::mem::take(&mut *self.state.wakers.lock().unwrap());
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns how often its readiness was polled.
    pub(crate) fn polls(&self) -> usize {
        self.state.polls.load(Ordering::SeqCst)
    }

    pub(crate) fn calls(&self) -> usize {
        self.site.calls()
    }

    pub(crate) fn act(&self, act: Act) {
        self.site.act(act);
    }

    pub(crate) fn endpoint(&self) -> Endpoint<Direct<Self>> {
        Endpoint::new(Direct(self.clone()))
    }
}

impl Service<()> for Probe {
    type Response = Answer;
    type Error = Broken;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Broken>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.state.polls.fetch_add(1, Ordering::SeqCst);
        let mut gate = self.state.gate.lock().unwrap();
        match *gate {
            Gate::Open => self.site.poll_ready(cx),
            Gate::Shut => {
                self.state.wakers.lock().unwrap().push(cx.waker().clone());
                Poll::Pending
            }
            Gate::Fails => Poll::Ready(Err(Broken(self.name))),
            Gate::FailsOnce => {
                *gate = Gate::Open;
                Poll::Ready(Err(Broken(self.name)))
            }
            Gate::Panics => {
                drop(gate);
                panic!("{} panics in poll_ready", self.name);
            }
        }
    }

    fn call(&mut self, (): ()) -> Self::Future {
        self.site.call(())
    }
}

/// What a scripted discovery yields.
pub(crate) type Item<T> = Result<Change<&'static str, Endpoint<T>>, Broken>;

/// A discovery stream that a test feeds, change by change.
pub(crate) fn feed<T>() -> (mpsc::UnboundedSender<Item<T>>, mpsc::UnboundedReceiver<Item<T>>) {
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
        match call(service).await.unwrap() {
            Answer::From(name) | Answer::Rejected(name) => names.push(name),
        }
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
        Self { policy, compiles: Arc::default(), panics_at: 0 }
    }

    /// Panics in the n-th compile of a set that is not empty.
    pub(crate) fn panics_at(policy: P, nth: usize) -> Self {
        Self { panics_at: nth, ..Self::new(policy) }
    }

    pub(crate) fn count(&self) -> usize {
        self.compiles.load(Ordering::SeqCst)
    }
}

impl<P: Policy> Policy for Compiles<P> {
    type Table = P::Table;

    fn compile(&self, view: &View<'_>, previous: Option<&P::Table>) -> P::Table {
        if !view.members().is_empty() {
            let nth = 1 + self.compiles.fetch_add(1, Ordering::SeqCst);
            assert_ne!(nth, self.panics_at, "compile {nth} fails");
        }
        self.policy.compile(view, previous)
    }
}

impl<Req, P: counterpoise::policy::Pick<Req>> counterpoise::policy::Pick<Req> for Compiles<P> {
    fn pick(
        &self,
        table: &P::Table,
        request: &Req,
        turn: &counterpoise::policy::Turn<'_>,
    ) -> counterpoise::policy::Choice {
        self.policy.pick(table, request, turn)
    }
}
