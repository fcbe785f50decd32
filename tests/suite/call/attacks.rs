//! Attacks on calls that wait: endpoints that are replaced, drained, ejected and tried while
//! somebody waits for them, and whether waiting ever turns into spinning.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use counterpoise::{
    Balance, Builder, Direct,
    discover::{self, Handle},
    error::ErrorKind,
    policy::{Members, PickContext, PickResult, Picker, Policy, RoundRobin},
};
use futures::FutureExt;
use tokio::time::advance;
use tokio_test::task::{self, Spawn};
use tower::Service;

use crate::{
    bed::SECOND,
    probes::{Gate, Probe, call, name},
    support::{Act, Answer, settle},
};

/// A round robin that does not let itself be asked for ever: so that a call which turns in
/// circles inside one poll ends in a panic and not in a hang.
#[derive(Debug, Clone, Default)]
pub(super) struct Leash {
    asked: Arc<AtomicUsize>,
}

const MOST: usize = 2_000;

impl Leash {
    pub(super) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Policy for Leash {
    type Picker = Self;

    fn build(&self, _members: &Members<'_>, _previous: Option<&Self>) -> Self {
        self.clone()
    }
}

impl Picker<()> for Leash {
    fn pick(&self, _request: &(), _cx: &PickContext<'_>) -> PickResult {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        assert!(
            asked < MOST,
            "the policy was asked {MOST} times: a call turns in circles"
        );
        PickResult::Any
    }
}

pub(crate) type Probes<P> = (
    Handle<&'static str, Direct<Probe>>,
    Balance<Direct<Probe>, P>,
);

/// Balances over these, starting at the first.
pub(crate) async fn over<P: Policy>(
    probes: &[(&'static str, &Probe)],
    builder: Builder,
    policy: P,
) -> Probes<P> {
    let (handle, changes) = discover::channel();
    for (key, probe) in probes {
        handle.insert(*key, probe.endpoint());
    }
    let balance = builder
        .starting_at(0)
        .seed(0)
        .balance(changes, policy)
        .unwrap();
    settle().await;
    (handle, balance)
}

/// Lets a call do all that it can do now; returns its answer if it has one.
pub(crate) async fn attend<F: Future>(call: &mut Spawn<F>) -> Option<F::Output> {
    settle().await;
    for _ in 0..8 {
        if let Poll::Ready(result) = call.poll() {
            return Some(result);
        }
        // Timers too wake it only now.
        settle().await;
        if !call.is_woken() {
            return None;
        }
    }
    panic!("it wakes itself over and over");
}

// ===== services that are replaced =====

#[tokio::test(start_paused = true)]
async fn a_waiting_call_takes_the_service_that_replaces_a_stuck_one() {
    let (old, new) = (
        Probe::gated("old", Gate::Shut),
        Probe::gated("new", Gate::Open),
    );
    let (handle, mut balance) = over(&[("x", &old)], Builder::new(), RoundRobin::new()).await;
    let mut call = task::spawn(balance.call(()));
    assert!(attend(&mut call).await.is_none());
    handle.insert("x", new.endpoint());
    let answer = attend(&mut call).await.expect("the new service is ready");
    assert_eq!(answer.unwrap(), Answer::From("new"));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_call_does_not_go_to_a_service_that_was_replaced() {
    let (old, new) = (
        Probe::gated("old", Gate::Shut),
        Probe::gated("new", Gate::Shut),
    );
    let (handle, mut balance) = over(&[("x", &old)], Builder::new(), RoundRobin::new()).await;
    let mut call = task::spawn(balance.call(()));
    assert!(attend(&mut call).await.is_none());
    handle.insert("x", new.endpoint());
    assert!(attend(&mut call).await.is_none());
    old.turn(Gate::Open);
    assert!(
        attend(&mut call).await.is_none(),
        "the former service gets no further call"
    );
    new.turn(Gate::Open);
    assert_eq!(
        attend(&mut call).await.unwrap().unwrap(),
        Answer::From("new")
    );
    assert_eq!(old.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_call_lets_go_of_a_service_that_was_replaced() {
    let (old, new) = (
        Probe::gated("old", Gate::Shut),
        Probe::gated("new", Gate::Shut),
    );
    let (handle, mut balance) = over(&[("x", &old)], Builder::new(), RoundRobin::new()).await;
    let mut call = task::spawn(balance.call(()));
    assert!(attend(&mut call).await.is_none());
    handle.insert("x", new.endpoint());
    assert!(attend(&mut call).await.is_none());
    assert_eq!(
        old.instances(),
        1,
        "a waiting call keeps the former service alive"
    );
}

// ===== endpoints that are drained and filled again =====

#[tokio::test(start_paused = true)]
async fn a_waiting_call_sees_an_endpoint_that_was_drained_for_a_while() {
    let (a, b) = (Probe::gated("a", Gate::Shut), Probe::gated("b", Gate::Shut));
    let probes = [("a", &a), ("b", &b)];
    let (_handle, mut balance) = over(&probes, Builder::new(), RoundRobin::new()).await;
    let mut waiting = task::spawn(balance.call(()));
    assert!(attend(&mut waiting).await.is_none());
    let _ = balance.set_capacity("a", 0.0);
    assert!(attend(&mut waiting).await.is_none());
    a.turn(Gate::Open);
    let _ = balance.set_capacity("a", 1.0);
    let answer = attend(&mut waiting).await.expect("a is open and ready");
    assert_eq!(answer.unwrap(), Answer::From("a"));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_call_blames_nobody_for_an_endpoint_that_was_drained_for_a_while() {
    let (a, b) = (Probe::gated("a", Gate::Shut), Probe::gated("b", Gate::Shut));
    let probes = [("a", &a), ("b", &b)];
    let (handle, mut balance) = over(&probes, Builder::new(), RoundRobin::new()).await;
    let mut waiting = task::spawn(balance.call(()));
    assert!(attend(&mut waiting).await.is_none());
    let _ = balance.set_capacity("a", 0.0);
    assert!(attend(&mut waiting).await.is_none());
    let _ = balance.set_capacity("a", 1.0);
    let _ = attend(&mut waiting).await;
    handle.remove(&"b");
    // `a` is a member in service, only not ready yet: the call waits for it.
    if let Some(result) = attend(&mut waiting).await {
        panic!("it ended with {:?}", result.unwrap_err());
    }
}

// ===== patience =====

#[tokio::test(start_paused = true)]
async fn a_call_that_waited_for_readiness_may_still_wait_for_endpoints() {
    let (a, b) = (Probe::gated("a", Gate::Shut), Probe::gated("b", Gate::Open));
    let builder = Builder::new().wait_when_empty(true);
    let (handle, mut balance) = over(&[("a", &a)], builder, RoundRobin::new()).await;
    let mut waiting = task::spawn(balance.call(()));
    assert!(attend(&mut waiting).await.is_none());
    // Longer than calls wait for endpoints, shorter than they wait for readiness.
    advance(10 * SECOND).await;
    handle.remove(&"a");
    if let Some(result) = attend(&mut waiting).await {
        panic!(
            "it has not waited for endpoints yet: {}",
            result.unwrap_err()
        );
    }
    handle.insert("b", b.endpoint());
    assert_eq!(
        attend(&mut waiting).await.unwrap().unwrap(),
        Answer::From("b")
    );
}

// ===== wakers, places and order =====

#[tokio::test(start_paused = true)]
async fn a_future_that_moves_between_tasks_wakes_the_last_one() {
    let a = Probe::gated("a", Gate::Shut);
    let (_handle, mut balance) = over(&[("a", &a)], Builder::new(), RoundRobin::new()).await;
    let mut future = Box::pin(balance.call(()));
    let mut wakers = Vec::new();
    for _ in 0..3 {
        let mut current = task::spawn(());
        assert!(current.enter(|cx, _| future.as_mut().poll(cx)).is_pending());
        // What it had to do after it was moved it does now.
        for _ in 0..4 {
            let _ = current.enter(|cx, _| future.as_mut().poll(cx));
        }
        wakers.push(current);
    }
    a.turn(Gate::Open);
    assert!(
        wakers[2].is_woken(),
        "the last task is woken by the endpoint"
    );
    let answer = wakers[2].enter(|cx, _| future.as_mut().poll(cx));
    assert!(matches!(answer, Poll::Ready(Ok(Answer::From("a")))));
}

#[tokio::test(start_paused = true)]
async fn a_future_that_moves_between_tasks_hears_of_a_new_set() {
    let (handle, changes) = discover::channel();
    let (a, b) = (Probe::gated("a", Gate::Shut), Probe::gated("b", Gate::Open));
    handle.insert("a", a.endpoint());
    let mut balance = Builder::new().balance(changes, RoundRobin::new()).unwrap();
    settle().await;
    let mut future = Box::pin(balance.call(()));
    let mut first = task::spawn(());
    let mut second = task::spawn(());
    for task in [&mut first, &mut second] {
        for _ in 0..4 {
            assert!(task.enter(|cx, _| future.as_mut().poll(cx)).is_pending());
        }
    }
    handle.insert("b", b.endpoint());
    settle().await;
    assert!(second.is_woken());
    let answer = second.enter(|cx, _| future.as_mut().poll(cx));
    assert!(matches!(answer, Poll::Ready(Ok(Answer::From("b")))));
}

#[tokio::test(start_paused = true)]
async fn the_number_of_waiting_calls_is_exact_in_any_order_of_ends() {
    let a = Probe::gated("a", Gate::Shut);
    let builder = Builder::new().max_waiting(7);
    let (_handle, mut balance) = over(&[("a", &a)], builder, RoundRobin::new()).await;
    let mut waiting = std::collections::VecDeque::new();
    let mut random = 1_u64;
    for _ in 0..500 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        match random >> 62 {
            0 => drop(waiting.pop_front()),
            1 => drop(waiting.pop_back()),
            _ => {
                let mut call = task::spawn(balance.call(()));
                match call.poll() {
                    Poll::Pending => waiting.push_back(call),
                    Poll::Ready(result) => {
                        assert_eq!(waiting.len(), 7);
                        assert_eq!(result.unwrap_err().kind(), ErrorKind::TooManyWaiting);
                    }
                }
            }
        }
        let stats = balance.stats();
        assert_eq!(
            (stats.waiting, stats.endpoints[0].in_flight),
            (waiting.len(), 0)
        );
    }
    a.turn(Gate::Open);
    for call in waiting {
        assert_eq!(call.await.unwrap(), Answer::From("a"));
    }
    assert_eq!(balance.stats().waiting, 0);
    assert_eq!(balance.stats().endpoints[0].in_flight, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_wakeup_is_lost_between_publication_and_poll() {
    // The set is empty and full in turn, as fast as it goes, while calls wait for it.
    let a = Probe::gated("a", Gate::Open);
    let (handle, changes) = discover::channel();
    let builder = Builder::new()
        .wait_when_empty(true)
        .wait_for_endpoints(Duration::from_secs(600));
    let balance = builder.balance(changes, RoundRobin::new()).unwrap();
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let mut balance = balance.clone();
            tokio::spawn(async move {
                for _ in 0..300 {
                    assert_eq!(call(&mut balance).await.unwrap(), Answer::From("a"));
                }
            })
        })
        .collect();
    while callers.iter().any(|caller| !caller.is_finished()) {
        handle.insert("a", a.endpoint());
        tokio::task::yield_now().await;
        handle.remove(&"a");
        tokio::task::yield_now().await;
    }
    for caller in callers {
        caller.await.unwrap();
    }
    assert_eq!(balance.stats().waiting, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_calls_share_few_permits_to_the_last() {
    use tower::limit::ConcurrencyLimit;
    let sites = ["a", "b"].map(crate::support::Site::new);
    sites[0].act(Act::After(Duration::from_micros(10)));
    let list = sites.each_ref().map(|site| {
        let limited = ConcurrencyLimit::new(site.clone(), 1);
        (
            if site.calls() == 0 {
                name("limited", 0)
            } else {
                ""
            },
            limited,
        )
    });
    let list = list
        .into_iter()
        .enumerate()
        .map(|(i, (_, limited))| (i, counterpoise::Endpoint::new(Direct(limited))));
    let balance = Balance::new(discover::list(list.collect::<Vec<_>>()), RoundRobin::new());
    balance.ready_when(2).await.unwrap();
    let callers: Vec<_> = (0..16)
        .map(|caller| {
            let mut balance = balance.clone();
            tokio::spawn(async move {
                let mut answers = 0;
                for call in 0..200 {
                    let mut future = Box::pin(balance.call(()));
                    if (caller + call) % 3 == 0 {
                        // Begins to wait, and changes its mind.
                        let _ = (&mut future).now_or_never();
                        continue;
                    }
                    future.await.unwrap();
                    answers += 1;
                }
                answers
            })
        })
        .collect();
    for caller in callers {
        assert!(caller.await.unwrap() > 100);
    }
    let stats = balance.stats();
    assert_eq!(stats.waiting, 0);
    assert!(
        stats
            .endpoints
            .iter()
            .all(|endpoint| endpoint.in_flight == 0),
        "{stats}"
    );
}
