//! The service of most tests: its readiness and its answers follow a script.

use std::{
    fmt::{self, Debug},
    future::{Future, pending},
    marker::PhantomData,
    mem,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use counterpoise::{Direct, Endpoint};
use futures::future::BoxFuture;
use tokio::{task::yield_now, time::sleep};
use tower::Service;

use super::answer::{Broken, Name, Text};

/// What an endpoint does with a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Act {
    #[default]
    Ok,
    /// Fails at once.
    Err,
    /// Answers, but refuses.
    Reject,
    /// Never answers.
    Hang,
    /// Panics when the future is polled.
    Panic,
    /// Answers after a while.
    After(Duration),
    /// Fails after a while.
    FailAfter(Duration),
    /// Answers after so many other tasks had the thread.
    Yield(usize),
    /// Fails after so many other tasks had the thread.
    FailYield(usize),
}

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

/// What a test calls endpoints with.
pub(crate) trait Request {
    /// What the endpoint does with this request; where it is `Ok`, the endpoint's own script
    /// decides.
    fn act(&self) -> Act {
        Act::Ok
    }
}

impl Request for () {}

/// One endpoint of a test: clones are the same endpoint.
///
/// As strict as tower's contract: a call without a preceding ready on that very instance
/// panics, and a clone starts unready.
pub(crate) struct Scripted<N = Text, R = ()> {
    shared: Arc<Shared<N>>,
    ready: bool,
    request: PhantomData<fn(R)>,
}

struct Shared<N> {
    name: N,
    gate: Mutex<Script<Gate>>,
    act: Mutex<Script<Act>>,
    polls: AtomicUsize,
    wakers: Mutex<Vec<Waker>>,
    calls: AtomicUsize,
    instances: AtomicUsize,
    runs: Arc<Runs>,
}

/// What comes next: always the same, or by number.
enum Script<T> {
    Always(T),
    By(Box<dyn Fn(usize) -> T + Send + Sync>),
}

impl<T: Copy> Script<T> {
    fn get(&self, number: usize) -> T {
        match self {
            Self::Always(value) => *value,
            Self::By(script) => script(number),
        }
    }
}

impl<N, R> Scripted<N, R> {
    /// An endpoint that is ready and answers.
    pub(crate) fn new(name: impl Into<N>) -> Self {
        Self::gated(name, Gate::Open)
    }

    /// An endpoint that is this ready, and answers.
    pub(crate) fn gated(name: impl Into<N>, gate: Gate) -> Self {
        let shared = Shared {
            name: name.into(),
            gate: Mutex::new(Script::Always(gate)),
            act: Mutex::new(Script::Always(Act::Ok)),
            polls: AtomicUsize::new(0),
            wakers: Mutex::default(),
            calls: AtomicUsize::new(0),
            instances: AtomicUsize::new(1),
            runs: Arc::default(),
        };
        Self {
            shared: Arc::new(shared),
            ready: false,
            request: PhantomData,
        }
    }

    /// Does this with the n-th call, counted from 0.
    pub(crate) fn acting(self, act: impl Fn(usize) -> Act + Send + Sync + 'static) -> Self {
        *self.shared.act.lock().unwrap() = Script::By(Box::new(act));
        self
    }

    /// Is so ready at the n-th poll, counted from 0.
    pub(crate) fn gating(self, gate: impl Fn(usize) -> Gate + Send + Sync + 'static) -> Self {
        *self.shared.gate.lock().unwrap() = Script::By(Box::new(gate));
        self
    }

    /// Sets what the endpoint does with the calls that come from now on.
    pub(crate) fn act(&self, act: Act) {
        *self.shared.act.lock().unwrap() = Script::Always(act);
    }

    /// Sets how ready the endpoint is from now on, and wakes all that wait for it.
    pub(crate) fn turn(&self, gate: Gate) {
        *self.shared.gate.lock().unwrap() = Script::Always(gate);
        let wakers = mem::take(&mut *self.shared.wakers.lock().unwrap());
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns how often its readiness was polled.
    pub(crate) fn polls(&self) -> usize {
        self.shared.polls.load(Ordering::SeqCst)
    }

    /// Returns how many calls have come.
    pub(crate) fn calls(&self) -> usize {
        self.shared.calls.load(Ordering::SeqCst)
    }

    /// Returns how many instances of the service exist, this one included.
    pub(crate) fn instances(&self) -> usize {
        self.shared.instances.load(Ordering::SeqCst)
    }

    /// Returns how many calls have run at once, at most.
    pub(crate) fn most(&self) -> usize {
        self.shared.runs.most.load(Ordering::SeqCst)
    }

    /// Returns an endpoint of weight 1 that is served by a clone of this.
    pub(crate) fn endpoint(&self) -> Endpoint<Direct<Self>> {
        Endpoint::new(Direct(self.clone()))
    }
}

impl<R> Scripted<Text, R> {
    pub(crate) fn name(&self) -> &'static str {
        self.shared.name.text()
    }
}

impl<N: Debug, R> Debug for Scripted<N, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripted")
            .field("name", &self.shared.name)
            .finish_non_exhaustive()
    }
}

impl<N, R> Clone for Scripted<N, R> {
    fn clone(&self) -> Self {
        self.shared.instances.fetch_add(1, Ordering::SeqCst);
        Self {
            shared: Arc::clone(&self.shared),
            ready: false,
            request: PhantomData,
        }
    }
}

impl<N, R> Drop for Scripted<N, R> {
    fn drop(&mut self) {
        self.shared.instances.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<N, R> Service<R> for Scripted<N, R>
where
    N: Name,
    R: Request,
{
    type Response = N::Answer;
    type Error = Broken;
    type Future = Running<N>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let shared = &self.shared;
        let number = shared.polls.fetch_add(1, Ordering::SeqCst);
        let mut script = shared.gate.lock().unwrap();
        match script.get(number) {
            Gate::Open => {
                self.ready = true;
                Poll::Ready(Ok(()))
            }
            Gate::Shut => {
                shared.wakers.lock().unwrap().push(cx.waker().clone());
                Poll::Pending
            }
            Gate::Fails => Poll::Ready(Err(shared.name.broken())),
            Gate::FailsOnce => {
                *script = Script::Always(Gate::Open);
                Poll::Ready(Err(shared.name.broken()))
            }
            Gate::Panics => {
                drop(script);
                panic!("{} panics in poll_ready", shared.name);
            }
        }
    }

    fn call(&mut self, request: R) -> Running<N> {
        assert!(mem::take(&mut self.ready), "called without being ready");
        let shared = &self.shared;
        let number = shared.calls.fetch_add(1, Ordering::SeqCst);
        let act = match request.act() {
            Act::Ok => shared.act.lock().unwrap().get(number),
            act => act,
        };
        Running {
            act,
            name: Some(shared.name.clone()),
            delay: delay(act),
            run: Some(Run::new(&shared.runs)),
        }
    }
}

/// A call that runs.
pub(crate) struct Running<N> {
    act: Act,
    name: Option<N>,
    /// What is known at once needs no delay, and no allocation.
    delay: Option<BoxFuture<'static, ()>>,
    run: Option<Run>,
}

impl<N> Unpin for Running<N> {}

impl<N: Name> Future for Running<N> {
    type Output = Result<N::Answer, Broken>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(delay) = &mut self.delay {
            ready!(delay.as_mut().poll(cx));
        }
        let _run = self.run.take();
        let name = self.name.take().expect("polled after its end");
        Poll::Ready(match self.act {
            Act::Panic => panic!("{name} panics"),
            Act::Reject => Ok(name.refuse()),
            Act::Err | Act::FailAfter(_) | Act::FailYield(_) => Err(name.broken()),
            _ => Ok(name.answer()),
        })
    }
}

/// What passes before a call ends.
fn delay(act: Act) -> Option<BoxFuture<'static, ()>> {
    match act {
        Act::Ok | Act::Err | Act::Reject | Act::Panic => None,
        Act::Hang => Some(Box::pin(pending())),
        Act::After(time) | Act::FailAfter(time) => Some(Box::pin(async move {
            sleep(time).await;
        })),
        Act::Yield(times) | Act::FailYield(times) => Some(Box::pin(async move {
            for _ in 0..times {
                yield_now().await;
            }
        })),
    }
}

/// The calls that run, now and at most.
#[derive(Debug, Default)]
struct Runs {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// A call that runs until this is dropped.
struct Run(Arc<Runs>);

impl Run {
    fn new(runs: &Arc<Runs>) -> Self {
        let now = 1 + runs.now.fetch_add(1, Ordering::SeqCst);
        runs.most.fetch_max(now, Ordering::SeqCst);
        Self(Arc::clone(runs))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}
