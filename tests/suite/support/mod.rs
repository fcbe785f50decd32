//! Endpoints that do what a test tells them.

pub(crate) mod bed;
pub(crate) mod body_bed;
pub(crate) mod fleet;
pub(crate) mod keyed_bed;
pub(crate) mod numbers;
pub(crate) mod outlier_bed;
pub(crate) mod probes;
pub(crate) mod servers;
pub(crate) mod table;
pub(crate) mod waiting;

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use counterpoise::{Direct, Endpoint, discover};
use tower::Service;

/// What an endpoint does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
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
}

/// What a call was answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    From(&'static str),
    Rejected(&'static str),
}

/// The error of an endpoint.
#[derive(Debug)]
pub(crate) struct Broken(pub(crate) &'static str);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is broken", self.0)
    }
}

impl std::error::Error for Broken {}

/// One endpoint of a test: clones are the same endpoint.
///
/// As strict as tower's contract: a call without a preceding ready on that very instance
/// panics, and a clone starts unready.
#[derive(Debug)]
pub(crate) struct Site {
    shared: Arc<Shared>,
    ready: bool,
}

#[derive(Debug)]
struct Shared {
    name: &'static str,
    act: Mutex<Act>,
    calls: AtomicUsize,
    instances: AtomicUsize,
}

impl Site {
    pub(crate) fn new(name: &'static str) -> Self {
        let shared = Shared {
            name,
            act: Mutex::new(Act::Ok),
            calls: AtomicUsize::new(0),
            instances: AtomicUsize::new(1),
        };
        Self { shared: Arc::new(shared), ready: false }
    }

    /// Sets what the endpoint does with the calls that come from now on.
    pub(crate) fn act(&self, act: Act) {
        *self.shared.act.lock().unwrap() = act;
    }

    /// Returns how many calls have come.
    pub(crate) fn calls(&self) -> usize {
        self.shared.calls.load(Ordering::SeqCst)
    }

    /// Returns how many instances of the service exist, this one included.
    pub(crate) fn instances(&self) -> usize {
        self.shared.instances.load(Ordering::SeqCst)
    }

    /// Returns an endpoint of weight 1 that is served by a clone of this.
    pub(crate) fn endpoint(&self) -> Endpoint<Direct<Self>> {
        Endpoint::new(Direct(self.clone()))
    }
}

impl Clone for Site {
    fn clone(&self) -> Self {
        self.shared.instances.fetch_add(1, Ordering::SeqCst);
        Self { shared: Arc::clone(&self.shared), ready: false }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shared.instances.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Service<()> for Site {
    type Response = Answer;
    type Error = Broken;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Broken>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without being ready");
        self.shared.calls.fetch_add(1, Ordering::SeqCst);
        let (name, act) = (self.shared.name, *self.shared.act.lock().unwrap());
        Box::pin(async move {
            match act {
                Act::Ok => Ok(Answer::From(name)),
                Act::Err => Err(Broken(name)),
                Act::Reject => Ok(Answer::Rejected(name)),
                Act::Hang => std::future::pending().await,
                Act::Panic => panic!("{name} panics"),
                Act::After(time) => {
                    tokio::time::sleep(time).await;
                    Ok(Answer::From(name))
                }
                Act::FailAfter(time) => {
                    tokio::time::sleep(time).await;
                    Err(Broken(name))
                }
            }
        })
    }
}

/// The sites of a test, by name.
pub(crate) struct Sites(HashMap<&'static str, Site>);

impl Sites {
    pub(crate) fn new(names: &[&'static str]) -> Self {
        Self(names.iter().map(|&name| (name, Site::new(name))).collect())
    }

    /// Returns their discovery: all of them, each with weight 1, in the order of `names`.
    pub(crate) fn list(
        &self,
        names: &[&'static str],
    ) -> discover::List<&'static str, Direct<Site>> {
        discover::list(names.iter().map(|&name| (name, self[name].endpoint())).collect::<Vec<_>>())
    }
}

impl std::ops::Index<&str> for Sites {
    type Output = Site;

    fn index(&self, name: &str) -> &Site {
        &self.0[name]
    }
}

/// Lets spawned drivers apply everything that is ready.
pub(crate) async fn settle() {
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}
