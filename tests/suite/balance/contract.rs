//! What tower asks of a service: readiness, wakers, clones, and the layers above.

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    marker::PhantomPinned,
    pin::pin,
    rc::Rc,
    task::Poll,
    time::Duration,
};

use counterpoise::{
    Attempts, AttemptsLayer, Balance, BalanceLayer, Builder, Direct, Endpoint, Error, Health,
    Outcome,
    call::ResponseFuture,
    discover,
    error::ErrorKind,
    health::PanicMode,
    observe::EndpointState,
    policy::{Pick, RoundRobin},
};
use tokio::time::{Instant, advance};
use tokio_test::task;
use tower::{
    BoxError, Layer, Service, ServiceBuilder, ServiceExt,
    buffer::Buffer,
    limit::ConcurrencyLimit,
    load_shed::{LoadShed, error::Overloaded},
    retry::Policy as RetryPolicy,
    service_fn,
    timeout::error::Elapsed,
    util::BoxCloneSyncService,
};

use crate::{
    probes::{Gate, Probe, answers, call, count, for_each_policy, name},
    support::{Act, Answer, Broken, Site, Sites, settle},
};

/// Retries so many times.
#[derive(Debug, Clone, Copy)]
struct Again(usize);

impl<Res, E> RetryPolicy<(), Res, E> for Again {
    type Future = std::future::Ready<()>;

    fn retry(&mut self, _request: &mut (), result: &mut Result<Res, E>) -> Option<Self::Future> {
        if result.is_ok() {
            return None;
        }
        self.0 = self.0.checked_sub(1)?;
        Some(std::future::ready(()))
    }

    fn clone_request(&mut self, (): &()) -> Option<()> {
        Some(())
    }
}

type Probes<P> = Balance<Direct<Probe>, P>;

/// Returns a balancer over probes that has seen them all.
async fn over<P: Pick<()>>(builder: Builder, probes: &[&Probe], policy: P) -> Probes<P> {
    let list = probes.iter().enumerate().map(|(i, probe)| (i, probe.endpoint()));
    let balance = builder.starting_at(0).balance(discover::list(list), policy).unwrap();
    settle().await;
    balance
}

/// Starts a call, which is then a future that nothing has polled.
fn start<S: Service<()> + Clone>(balance: &S) -> task::Spawn<S::Future> {
    let mut clone = balance.clone();
    assert!(task::spawn(clone.ready()).poll().is_ready());
    task::spawn(clone.call(()))
}

/// Waits for a call to end; returns its result and how often it was polled.
async fn polled<F: Future>(call: F) -> (F::Output, usize) {
    let (mut call, mut polls) = (pin!(call), 0);
    let result = poll_fn(|cx| {
        polls += 1;
        assert!(polls < 1_000, "a busy loop");
        call.as_mut().poll(cx)
    });
    (result.await, polls)
}

/// Polls a call that waits until it is quiet, which it must soon be.
fn rest<F: Future>(waiting: &mut task::Spawn<F>) {
    for _ in 0..4 {
        assert!(waiting.poll().is_pending());
        if !waiting.is_woken() {
            return;
        }
    }
    panic!("a busy loop");
}

fn probes<const N: usize>(gates: [Gate; N]) -> [Probe; N] {
    let mut number = 0;
    gates.map(|gate| {
        number += 1;
        Probe::new(name("p", number), gate)
    })
}

// ===== B98: readiness belongs to one instance =====

#[tokio::test(start_paused = true)]
async fn b98_every_call_is_on_the_instance_that_was_made_ready() {
    async fn case<P: Pick<()>>(policy: P) {
        let [a, b] = probes([Gate::Open, Gate::Open]);
        b.act(Act::Err);
        let builder = Builder::new().health(Health::off());
        let balance = over(builder, &[&a, &b], policy).await;
        for _ in 0..1_000 {
            let stack = ServiceBuilder::new().retry(Again(1)).service(balance.clone());
            let _ = call(&mut { stack }).await;
        }
        let stats = balance.stats();
        let picks = |name| stats.endpoint(name).unwrap().picks as usize;
        assert_eq!((a.polls(), a.calls()), (picks("0"), picks("0")), "one ready per call");
        assert_eq!((b.polls(), b.calls()), (picks("1"), picks("1")), "one ready per call");
        // a, then b and the retry at a, again and again: each attempt takes the next turn.
        assert_eq!((a.calls(), b.calls()), (1_000, 999));
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn clones_carry_no_readiness() {
    let [a] = probes([Gate::Open]);
    let mut balance = over(Builder::new(), &[&a], RoundRobin::new()).await;
    let ready = balance.ready().await.unwrap();
    let mut clone = ready.clone();
    assert_eq!(a.polls(), 0, "ready reserves nothing");
    assert_eq!(ready.call(()).await.unwrap(), Answer::From("p1"));
    assert_eq!(clone.ready().await.unwrap().call(()).await.unwrap(), Answer::From("p1"));
    assert_eq!((a.polls(), a.calls()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn ready_reserves_nothing_and_never_fails() {
    async fn case<P: Pick<()>>(policy: P) {
        let limited = service_fn(async |()| Ok::<_, Broken>(Answer::From("limited")));
        let limited = ConcurrencyLimit::new(limited, 1);
        let list = discover::list([("a", Endpoint::new(Direct(limited)))]);
        let balance = Builder::new().balance(list, policy).unwrap();
        settle().await;
        let mut idle = vec![balance.clone(); 100];
        for clone in &mut idle {
            let ready = task::spawn(clone.ready()).poll().is_ready();
            assert!(ready);
        }
        // A hundred clones that are ready and do not call starve nobody.
        assert!(matches!(start(&balance).poll(), Poll::Ready(Ok(_))));
    }
    for_each_policy!(case);
    let (_handle, changes) = discover::channel::<&str, Direct<Site>>();
    let mut empty = Balance::new(changes, RoundRobin::new());
    assert!(matches!(task::spawn(empty.ready()).poll(), Poll::Ready(Ok(_))));
}

// ===== B102, B104: waiting =====

#[tokio::test(start_paused = true)]
async fn b102_waiting_calls_behind_a_buffer_do_not_deadlock() {
    async fn case<P: Pick<()>>(policy: P) {
        let site = Site::new("a");
        let limited = Endpoint::new(Direct(ConcurrencyLimit::new(site.clone(), 1)));
        let list = discover::list([("a", limited)]);
        let buffer = Buffer::new(Builder::new().balance(list, policy).unwrap(), 1);
        settle().await;
        site.act(Act::After(Duration::from_secs(1)));
        let held = tokio::spawn(buffer.clone().oneshot(()));
        settle().await;
        site.act(Act::Ok);
        let tasks: Vec<_> = (0..10).map(|_| tokio::spawn(buffer.clone().oneshot(()))).collect();
        settle().await;
        assert_eq!(site.calls(), 1, "the others wait");
        for dropped in [7, 0, 3, 9, 4] {
            tasks[dropped].abort();
        }
        settle().await;
        held.await.unwrap().unwrap();
        let mut served = 0;
        for task in tasks {
            match task.await {
                Ok(answer) => served += usize::from(answer.unwrap() == Answer::From("a")),
                Err(ended) => assert!(ended.is_cancelled()),
            }
        }
        assert_eq!((served, site.calls()), (5, 6));
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b102_a_timeout_around_each_caller_bounds_the_wait() {
    let site = Site::new("a");
    site.act(Act::Hang);
    let limited = Endpoint::new(Direct(ConcurrencyLimit::new(site.clone(), 1)));
    let balance = Balance::new(discover::list([("a", limited)]), RoundRobin::new());
    settle().await;
    let buffer = Buffer::new(balance, 1);
    let held = tokio::spawn(buffer.clone().oneshot(()));
    settle().await;
    let start = Instant::now();
    let second = Duration::from_secs(1);
    let stack = ServiceBuilder::new().timeout(second).service(buffer);
    let callers = (0..10).map(|_| stack.clone().oneshot(()));
    for ended in futures::future::join_all(callers).await {
        assert!(ended.unwrap_err().is::<Elapsed>());
    }
    assert_eq!(start.elapsed(), second);
    assert_eq!(site.calls(), 1);
    held.abort();
}

#[tokio::test(start_paused = true)]
async fn b104_one_ready_endpoint_of_a_thousand_serves_the_call() {
    async fn case<P: Pick<()>>(policy: P) {
        let all: Vec<_> = (0..1_000)
            .map(|i| Probe::new(name("p", i), if i == 777 { Gate::Open } else { Gate::Shut }))
            .collect();
        let refs: Vec<_> = all.iter().collect();
        let mut balance = over(Builder::new(), &refs, policy).await;
        assert_eq!(answers(&mut balance, 1).await, ["p777"]);
        let polls = || all.iter().map(Probe::polls).sum::<usize>();
        assert_eq!(answers(&mut balance, 10).await, ["p777"; 10]);
        assert!(polls() <= 2 * 1_000 + 10 * 7, "each is found stuck once, with two looks");
        for _ in 0..100 {
            let before = polls();
            assert_eq!(answers(&mut balance, 1).await, ["p777"]);
            // Three draws may land on stuck ones, which are looked at twice.
            assert!(polls() - before <= 7, "{} polls", polls() - before);
        }
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_call_polls_only_who_has_woken_it() {
    let [a, b, c] = probes([Gate::Shut, Gate::Shut, Gate::Shut]);
    let balance = over(Builder::new(), &[&a, &b, &c], RoundRobin::new()).await;
    let mut waiting = start(&balance);
    rest(&mut waiting);
    let polls = [a.polls(), b.polls(), c.polls()];
    assert_eq!(polls, [2, 2, 2], "at the first look, and for its waker");
    for _ in 0..10 {
        assert!(waiting.poll().is_pending());
        assert!(!waiting.is_woken());
    }
    assert_eq!([a.polls(), b.polls(), c.polls()], polls, "nobody was woken");
    b.turn(Gate::Open);
    assert!(waiting.is_woken());
    assert_eq!(waiting.await.unwrap(), Answer::From("p2"));
    assert_eq!([a.polls(), c.polls()], [polls[0], polls[2]]);
}

#[tokio::test(start_paused = true)]
async fn all_clones_that_wait_wake_when_an_endpoint_joins() {
    async fn case<P: Pick<()>>(policy: P) {
        let site = Site::new("a");
        let (handle, changes) = discover::channel();
        let balance = Builder::new().balance(changes, policy).unwrap();
        let mut waiting: Vec<_> = (0..100).map(|_| start(&balance)).collect();
        for call in &mut waiting {
            assert!(call.poll().is_pending());
            assert!(!call.is_woken());
        }
        assert_eq!(balance.stats().waiting, 100);
        handle.insert("a", site.endpoint());
        settle().await;
        assert!(waiting.iter().all(task::Spawn::is_woken));
        for mut call in waiting {
            assert!(matches!(call.poll(), Poll::Ready(Ok(Answer::From("a")))));
        }
        assert_eq!((balance.stats().waiting, site.calls()), (0, 100));
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn so_many_calls_wait_and_dropping_one_frees_its_place() {
    let site = Site::new("a");
    let (handle, changes) = discover::channel();
    let balance = Builder::new().max_waiting(3).balance(changes, RoundRobin::new()).unwrap();
    let mut waiting: Vec<_> = (0..3).map(|_| start(&balance)).collect();
    assert!(waiting.iter_mut().all(|call| call.poll().is_pending()));
    let refused = || match start(&balance).poll() {
        Poll::Ready(Err(error)) => error.kind() == ErrorKind::TooManyWaiting,
        _ => false,
    };
    assert!(refused());
    assert!(refused());
    assert_eq!(balance.stats().waiting, 3);
    drop(waiting.swap_remove(1));
    assert_eq!(balance.stats().waiting, 2);
    let mut fourth = start(&balance);
    assert!(fourth.poll().is_pending());
    assert!(refused());
    handle.insert("a", site.endpoint());
    settle().await;
    waiting.push(fourth);
    for call in waiting {
        call.await.unwrap();
    }
    assert_eq!((balance.stats().waiting, site.calls()), (0, 3));
}

#[tokio::test(start_paused = true)]
async fn waiting_calls_that_are_dropped_take_no_place_and_leave_no_trace() {
    let [a] = probes([Gate::Shut]);
    let balance = over(Builder::new(), &[&a], RoundRobin::new()).await;
    let mut waiting: Vec<_> = (0..10).map(|_| start(&balance)).collect();
    assert!(waiting.iter_mut().all(|call| call.poll().is_pending()));
    assert_eq!(balance.stats().waiting, 10);
    advance(Duration::from_secs(20)).await;
    drop(waiting);
    let stats = balance.stats();
    let node = stats.endpoint("0").unwrap();
    assert_eq!((stats.waiting, node.in_flight, node.drops, node.failures), (0, 0, 0, 0));
    assert_eq!(a.site.instances(), 2, "the member's and the test's own");
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_is_ready_again_is_not_called_unready() {
    let [a] = probes([Gate::Shut]);
    let mut balance = over(Builder::new(), &[&a], RoundRobin::new()).await;
    let mut waiting = start(&balance);
    assert!(waiting.poll().is_pending());
    let state = |balance: &Probes<_>| balance.stats().endpoint("0").unwrap().state;
    assert_eq!(state(&balance), EndpointState::Unready);
    drop(waiting);
    a.turn(Gate::Open);
    call(&mut balance).await.unwrap();
    assert_eq!(state(&balance), EndpointState::Serving, "the last poll was ready");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_removed_endpoints_ends_with_the_set() {
    let a = Probe::new("a", Gate::Shut);
    let (handle, changes) = discover::channel();
    handle.insert("a", a.endpoint());
    let balance = Balance::new(changes, RoundRobin::new());
    settle().await;
    let mut waiting = start(&balance);
    assert!(waiting.poll().is_pending());
    handle.remove(&"a");
    settle().await;
    assert!(waiting.is_woken());
    // An empty set fails at once, unless waiting is configured.
    let Poll::Ready(Err(error)) = waiting.poll() else { panic!("it waits for nobody") };
    assert_eq!(error.kind(), ErrorKind::Empty);
    assert_eq!(a.site.instances(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_a_removed_endpoint_goes_to_the_next_that_joins() {
    let (a, b) = (Probe::new("a", Gate::Shut), Probe::new("b", Gate::Open));
    let (handle, changes) = discover::channel();
    handle.insert("a", a.endpoint());
    let balance = Balance::new(changes, RoundRobin::new());
    settle().await;
    let mut waiting = start(&balance);
    assert!(waiting.poll().is_pending());
    handle.set([("b", b.endpoint())]);
    settle().await;
    assert_eq!(waiting.await.unwrap(), Answer::From("b"));
    a.turn(Gate::Open);
    assert_eq!((a.calls(), b.calls(), a.site.instances()), (0, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_quietly_while_an_endpoint_that_failed_it_is_due() {
    let [a, b] = probes([Gate::Fails, Gate::Shut]);
    let health = Health::new().consecutive_failures(1).jitter(0.0);
    let builder = Builder::new().health(health).wait_for_ready(Duration::from_secs(60));
    let balance = over(builder, &[&a, &b], RoundRobin::new()).await;
    let mut waiting = start(&balance);
    assert!(waiting.poll().is_pending());
    assert_eq!(balance.stats().endpoint("0").unwrap().state, EndpointState::Ejected);
    let (result, polls) = polled(waiting).await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::ReadyTimeout);
    assert!(polls <= 10, "a busy loop: {polls} polls");
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_quietly_while_an_endpoint_it_waits_for_is_ejected_and_due() {
    let [a, b] = probes([Gate::Open, Gate::Shut]);
    let health = Health::new().consecutive_failures(1).jitter(0.0);
    let builder = Builder::new().health(health).wait_for_ready(Duration::from_secs(60));
    let balance = over(builder, &[&a, &b], RoundRobin::new()).await;
    a.turn(Gate::Shut);
    let mut waiting = start(&balance);
    assert!(waiting.poll().is_pending());
    a.turn(Gate::Fails);
    let mut other = start(&balance);
    assert!(other.poll().is_pending(), "it waits for b");
    a.turn(Gate::Shut);
    assert_eq!(balance.stats().endpoint("0").unwrap().state, EndpointState::Ejected);
    drop(other);
    let (result, polls) = polled(waiting).await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::ReadyTimeout);
    assert!(polls <= 10, "a busy loop: {polls} polls");
}

#[tokio::test(start_paused = true)]
async fn a_waiting_call_makes_the_next_trial_of_an_endpoint_that_failed_one() {
    let [a, b] = probes([Gate::Open, Gate::Shut]);
    let health = Health::new().consecutive_failures(1).jitter(0.0);
    let builder = Builder::new().health(health).wait_for_ready(Duration::from_secs(300));
    let mut balance = over(builder, &[&a, &b], RoundRobin::new()).await;
    a.act(Act::Err);
    call(&mut balance).await.unwrap_err();
    a.act(Act::After(Duration::from_secs(1)));
    advance(Duration::from_secs(10)).await;
    // The first call tries a, and is dropped too young to count; the second waits for b.
    let mut trial = start(&balance);
    assert!(trial.poll().is_pending());
    let mut waiting = start(&balance);
    rest(&mut waiting);
    assert_eq!(balance.stats().endpoint("0").unwrap().state, EndpointState::OnTrial);
    drop(trial);
    assert!(waiting.is_woken(), "the place of the trial is free");
    let start = Instant::now();
    assert_eq!(waiting.await.unwrap(), Answer::From("p1"));
    // A trial that says nothing is followed by a pause of a hundredth of the period.
    assert_eq!(start.elapsed(), Duration::from_millis(1_100));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_call_goes_to_an_endpoint_that_has_recovered_since_it_failed_it() {
    let [a, b] = probes([Gate::FailsOnce, Gate::Shut]);
    let health = Health::new().consecutive_failures(1).jitter(0.0);
    let mut balance = over(Builder::new().health(health), &[&a, &b], RoundRobin::new()).await;
    let mut waiting = start(&balance);
    rest(&mut waiting);
    advance(Duration::from_secs(10)).await;
    assert_eq!(answers(&mut balance, 1).await, ["p1"], "the trial");
    assert!(waiting.is_woken());
    // One stuck endpoint never blocks a call that another could serve.
    assert!(matches!(waiting.poll(), Poll::Ready(Ok(Answer::From("p1")))));
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_while_all_are_ejected_fail_or_go_out_and_never_spin() {
    let [a, b] = probes([Gate::Open, Gate::Open]);
    let health = Health::new().consecutive_failures(1).panic_mode(PanicMode::Fail);
    let builder = Builder::new().health(health);
    let mut balance = over(builder, &[&a, &b], RoundRobin::new()).await;
    for probe in [&a, &b] {
        probe.act(Act::Err);
        call(&mut balance).await.unwrap_err();
    }
    let mut failing = start(&balance);
    let Poll::Ready(Err(error)) = failing.poll() else { panic!("it waits or works") };
    assert_eq!((error.kind(), error.counts().ejected), (ErrorKind::Ejected, 2));
    assert!(!failing.is_woken());
    assert_eq!(a.polls() + b.polls(), 2, "nobody was asked");
}

// ===== B105, B106: readiness and health =====

#[tokio::test(start_paused = true)]
async fn b105_a_readiness_error_is_a_failure_and_no_removal() {
    async fn case<P: Pick<()>>(policy: P) {
        let [a, b] = probes([Gate::Open, Gate::FailsOnce]);
        let health = Health::new().consecutive_failures(1).jitter(0.0);
        let mut balance = over(Builder::new().health(health), &[&a, &b], policy).await;
        assert_eq!(answers(&mut balance, 10).await, ["p1"; 10]);
        let stats = balance.stats();
        let node = stats.endpoint("1").unwrap();
        assert_eq!((node.state, node.failures, node.ejections), (EndpointState::Ejected, 1, 1));
        assert_eq!((stats.counts.members, stats.counts.ejected, b.polls()), (2, 1, 1));
        advance(Duration::from_secs(10)).await;
        assert_eq!(answers(&mut balance, 1).await, ["p2"], "the trial");
        assert_eq!(count(&answers(&mut balance, 10).await, "p2"), 5);
        assert_eq!(balance.stats().endpoint("1").unwrap().state, EndpointState::Serving);
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b105_when_nobody_becomes_ready_the_error_names_the_last() {
    async fn case<P: Pick<()>>(policy: P) {
        let [a, b] = probes([Gate::Fails, Gate::Fails]);
        let mut balance = over(Builder::new(), &[&a, &b], policy).await;
        let error = call(&mut balance).await.unwrap_err();
        assert_eq!((error.kind(), error.endpoint()), (ErrorKind::ReadyFailed, Some("1")));
        assert_eq!(error.find::<Broken>().unwrap().0, "p2");
        assert!(error.is_unsent() && error.is_unavailable());
        assert_eq!((a.polls(), b.polls()), (1, 1), "each is asked once for one call");
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b106_health_is_judged_by_outcomes_and_not_by_readiness() {
    async fn case<P: Pick<()>>(policy: P) {
        let [a, b] = probes([Gate::Open, Gate::Open]);
        a.act(Act::Err);
        let health = Health::new().consecutive_failures(3).jitter(0.0);
        let balance = over(Builder::new().health(health), &[&a, &b], policy).await;
        let stack = ServiceBuilder::new()
            .layer(AttemptsLayer::new())
            .retry(Again(1))
            .service(balance.clone());
        let call_all = async || {
            for _ in 0..100 {
                call(&mut stack.clone()).await.unwrap();
            }
        };
        call_all().await;
        assert_eq!(a.calls(), 3);
        advance(Duration::from_secs(10)).await;
        call_all().await;
        assert_eq!(a.calls(), 4, "one trial in the next period");
        a.act(Act::Ok);
        advance(Duration::from_secs(20)).await;
        call_all().await;
        assert_eq!(a.calls(), 4 + 1 + 50 - 1 + usize::from(a.calls() > 54));
        assert_eq!(balance.stats().endpoint("0").unwrap().state, EndpointState::Serving);
    }
    for_each_policy!(case);
}

// ===== B107: timeouts =====

#[tokio::test(start_paused = true)]
async fn b107_a_timeout_above_covers_the_wait() {
    async fn case<P: Pick<()>>(policy: P) {
        let [a, b] = probes([Gate::Shut, Gate::Shut]);
        let balance = over(Builder::new(), &[&a, &b], policy).await;
        let second = Duration::from_secs(1);
        let stack = ServiceBuilder::new().timeout(second).service(balance.clone());
        let start = Instant::now();
        let error = stack.oneshot(()).await.unwrap_err();
        assert!(error.is::<Elapsed>());
        assert_eq!(start.elapsed(), second);
        assert_eq!(balance.stats().waiting, 0);
        let (a, b) = (a.site.instances(), b.site.instances());
        assert_eq!((a, b), (2, 2), "no service is left behind");
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b107_without_a_timeout_the_crates_own_patience_ends_the_wait() {
    async fn case<P: Pick<()>>(policy: P) {
        let [a, b, c] = probes([Gate::Shut, Gate::Shut, Gate::Shut]);
        let mut balance = over(Builder::new(), &[&a, &b, &c], policy).await;
        let start = Instant::now();
        let error = call(&mut balance).await.unwrap_err();
        assert_eq!(start.elapsed(), Duration::from_secs(30));
        assert_eq!((error.kind(), error.counts().unready), (ErrorKind::ReadyTimeout, 3));
        assert_eq!(error.counts().members, 3);
    }
    for_each_policy!(case);
}

// ===== B108: retries =====

#[tokio::test(start_paused = true)]
async fn b108_no_retry_goes_to_the_endpoint_that_failed_it() {
    async fn case<P: Pick<()>>(policy: P) {
        let [a, b] = probes([Gate::Open, Gate::Open]);
        let builder = Builder::new().health(Health::off());
        let balance = over(builder, &[&a, &b], policy).await;
        let stack = ServiceBuilder::new()
            .layer(AttemptsLayer::new())
            .retry(Again(1))
            .service(balance.clone());
        for round in 0..100 {
            for probe in [&a, &b] {
                probe.act(Act::Err);
            }
            let before = a.calls();
            let mut first = start(&stack);
            let other = if a.calls() > before { "p2" } else { "p1" };
            for probe in [&a, &b] {
                probe.act(Act::Ok);
            }
            assert_eq!(start(&balance).await.unwrap(), Answer::From(other), "in between");
            let Poll::Ready(Ok(retried)) = first.poll() else { panic!("not retried") };
            assert_eq!(retried, Answer::From(other));
            if round % 2 == 0 {
                // So that the next round fails at the other.
                call(&mut balance.clone()).await.unwrap();
            }
        }
        assert_eq!((a.calls(), b.calls()), (175, 175));
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b108_with_nobody_else_the_retry_goes_to_the_same() {
    let [a] = probes([Gate::Open]);
    a.act(Act::Err);
    let builder = Builder::new().health(Health::off());
    let balance = over(builder, &[&a], RoundRobin::new()).await;
    let stack = ServiceBuilder::new().layer(AttemptsLayer::new()).retry(Again(2)).service(balance);
    stack.oneshot(()).await.unwrap_err();
    assert_eq!(a.calls(), 3, "a preference, not a ban");
}

#[tokio::test(start_paused = true)]
async fn b108_each_of_many_retries_goes_to_another() {
    async fn case<P: Pick<()>>(policy: P) {
        let all = probes([Gate::Open; 7]);
        all.iter().for_each(|probe| probe.act(Act::Err));
        let refs: Vec<_> = all.iter().collect();
        let builder = Builder::new().health(Health::off());
        let balance = over(builder, &refs, policy).await;
        for round in 1..=20 {
            let attempts = Attempts::new();
            let retry = ServiceBuilder::new().retry(Again(6)).service(balance.clone());
            attempts.scope(retry.oneshot(())).await.unwrap_err();
            let mut names: Vec<_> = attempts.names().iter().map(ToString::to_string).collect();
            names.sort();
            assert_eq!(names, ["0", "1", "2", "3", "4", "5", "6"]);
            assert!(all.iter().all(|probe| probe.calls() == round));
        }
    }
    for_each_policy!(case);
}

// ===== B110, B112 =====

#[tokio::test(start_paused = true)]
async fn b110_shed_load_is_an_outcome_like_any_other() {
    async fn case<P: Pick<()>>(policy: P) {
        let sites = Sites::new(&["a", "b"]);
        let shed = |name| {
            let limited = ConcurrencyLimit::new(sites[name].clone(), 1);
            (name, Endpoint::new(Direct(LoadShed::new(limited))))
        };
        let list = discover::list([shed("a"), shed("b")]);
        let health = Health::new().consecutive_failures(3);
        let builder = Builder::new().starting_at(0).health(health);
        let balance = builder.balance(list, policy).unwrap();
        settle().await;
        sites["a"].act(Act::Hang);
        let mut held = start(&balance);
        assert!(held.poll().is_pending());
        let mut refused = 0;
        for _ in 0..20 {
            match call(&mut balance.clone()).await {
                Ok(answer) => assert_eq!(answer, Answer::From("b")),
                Err(error) => {
                    assert_eq!(error.endpoint(), Some("a"));
                    assert!(error.find::<Overloaded>().is_some());
                    refused += 1;
                }
            }
        }
        assert_eq!(refused, 3, "then it is out");
        assert_eq!((sites["a"].calls(), sites["b"].calls()), (1, 17));
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b110_shed_load_that_is_ignored_keeps_its_turns_and_the_retry_moves_on() {
    let sites = Sites::new(&["a", "b"]);
    let shed = |name| {
        let limited = ConcurrencyLimit::new(sites[name].clone(), 1);
        (name, Endpoint::new(Direct(LoadShed::new(limited))))
    };
    let list = discover::list([shed("a"), shed("b")]);
    let builder = Builder::new()
        .starting_at(0)
        .health(Health::new().consecutive_failures(1))
        .classify_fn(|result: Result<&Answer, &BoxError>| match result {
            Err(error) if error.is::<Overloaded>() => Outcome::Overload,
            Err(_) => Outcome::Failure,
            Ok(_) => Outcome::Success,
        });
    let balance = builder.balance(list, RoundRobin::new()).unwrap();
    settle().await;
    sites["a"].act(Act::Hang);
    let mut held = start(&balance);
    assert!(held.poll().is_pending());
    let stack =
        ServiceBuilder::new().layer(AttemptsLayer::new()).retry(Again(1)).service(balance.clone());
    for _ in 0..20 {
        assert_eq!(stack.clone().oneshot(()).await.unwrap(), Answer::From("b"));
    }
    let stats = balance.stats();
    let a = stats.endpoint("a").unwrap();
    assert_eq!((a.state, a.failures), (EndpointState::Serving, 0));
    assert!(a.overloads >= 10, "it keeps its turns");
    assert_eq!(sites["b"].calls(), 20);
}

#[tokio::test(start_paused = true)]
async fn b112_failing_fast_ends_with_the_first_endpoint_that_is_back() {
    async fn case<P: Pick<()>>(policy: P) {
        let [a, b] = probes([Gate::Open, Gate::Open]);
        let minute = Duration::from_secs(60);
        let health = Health::new()
            .consecutive_failures(1)
            .base_ejection(minute)
            .jitter(0.0)
            .panic_mode(PanicMode::Fail);
        let mut balance = over(Builder::new().health(health), &[&a, &b], policy).await;
        for probe in [&a, &b] {
            probe.act(Act::Err);
            call(&mut balance).await.unwrap_err();
        }
        a.act(Act::Ok);
        for _ in 0..1_000 {
            let error = call(&mut balance).await.unwrap_err();
            assert_eq!((error.kind(), error.counts().ejected), (ErrorKind::Ejected, 2));
        }
        assert_eq!((a.calls(), b.calls()), (1, 1));
        advance(minute).await;
        assert_eq!(answers(&mut balance, 1).await, ["p1"]);
        assert_eq!(balance.stats().endpoint("0").unwrap().state, EndpointState::Serving);
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn b112_failing_fast_ends_with_a_new_endpoint() {
    async fn case<P: Pick<()>>(policy: P) {
        let site = Site::new("a");
        let (handle, changes) = discover::channel();
        let mut balance = Builder::new().balance(changes, policy).unwrap();
        handle.insert("a", site.endpoint());
        settle().await;
        handle.remove(&"a");
        settle().await;
        for _ in 0..1_000 {
            assert_eq!(call(&mut balance).await.unwrap_err().kind(), ErrorKind::Empty);
        }
        handle.insert("a", site.endpoint());
        settle().await;
        assert_eq!(answers(&mut balance, 1).await, ["a"]);
    }
    for_each_policy!(case);
}

// ===== types =====

/// A request that can do nothing but be moved.
struct Bare {
    number: u32,
    _unsync: Cell<()>,
    _unpin: PhantomPinned,
}

#[tokio::test(start_paused = true)]
async fn requests_need_neither_clone_nor_sync_nor_unpin() {
    async fn case<P: Pick<Bare>>(policy: P) {
        let double = service_fn(async |bare: Bare| Ok::<_, Broken>(2 * bare.number));
        let (handle, changes) = discover::channel();
        let mut balance = Builder::new().balance(changes, policy).unwrap();
        let bare = || Bare { number: 21, _unsync: Cell::new(()), _unpin: PhantomPinned };
        let waiting = tokio::spawn(balance.ready().await.unwrap().call(bare()));
        settle().await;
        handle.insert("a", Endpoint::new(Direct(double)));
        assert_eq!(waiting.await.unwrap().unwrap(), 42);
        assert_eq!(balance.ready().await.unwrap().call(bare()).await.unwrap(), 42);
    }
    case(counterpoise::policy::RoundRobin::new()).await;
    case(counterpoise::policy::ModuloRoundRobin::new()).await;
    case(counterpoise::policy::BoxPolicy::new(RoundRobin::new())).await;
}

#[tokio::test(start_paused = true)]
async fn requests_need_not_be_send() {
    let count = service_fn(async |rc: Rc<u32>| Ok::<_, Broken>(*rc + 1));
    let list = discover::list([("a", Endpoint::new(Direct(count)))]);
    let mut balance = Balance::new(list, RoundRobin::new());
    let call = pin!(balance.ready().await.unwrap().call(Rc::new(1)));
    assert_eq!(call.await.unwrap(), 2);
}

const fn is_send<T: Send>() {}
const fn is_send_sync_clone<T: Send + Sync + Clone + 'static>() {}
const fn is_unpin<T: Unpin>() {}

type Reqwest = Balance<counterpoise::http::Origin, RoundRobin, reqwest::Client>;
type Tonic = Balance<Direct<tonic::transport::Channel>, RoundRobin>;

const _: () = {
    is_send_sync_clone::<Reqwest>();
    is_send_sync_clone::<Tonic>();
    is_send_sync_clone::<BalanceLayer<counterpoise::http::Origin, RoundRobin>>();
    is_send_sync_clone::<Builder>();
    is_send_sync_clone::<discover::Handle<String, Direct<Site>>>();
    is_send::<discover::Changes<String, Direct<Site>>>();
    is_send::<<Reqwest as Service<reqwest::Request>>::Future>();
    is_send::<<Tonic as Service<http::Request<tonic::body::Body>>>::Future>();
    is_send::<
        ResponseFuture<(), Direct<Site>, RoundRobin, (), counterpoise::health::ErrorsAreFailures>,
    >();
    is_unpin::<
        ResponseFuture<(), Direct<Site>, RoundRobin, (), counterpoise::health::ErrorsAreFailures>,
    >();
    is_send_sync_clone::<Attempts>();
    is_send::<Error>();
};

#[tokio::test(start_paused = true)]
async fn works_under_the_layers_of_tower_and_in_a_box() {
    async fn case<P: Pick<()>>(policy: P) {
        let [a, b] = probes([Gate::Open, Gate::Open]);
        a.act(Act::Err);
        let list = discover::list([("a", a.endpoint()), ("b", b.endpoint())]);
        let layer = Builder::new().starting_at(0).layer(list, policy).unwrap();
        let stack = ServiceBuilder::new()
            .buffer(8)
            .timeout(Duration::from_secs(1))
            .layer(AttemptsLayer::new())
            .retry(Again(1))
            .layer(layer.clone())
            .service(());
        let mut boxed: BoxCloneSyncService<(), Answer, BoxError> = BoxCloneSyncService::new(stack);
        assert_eq!(answers(&mut boxed.clone(), 4).await, ["p2"; 4]);
        b.act(Act::Err);
        let error = call(&mut boxed).await.unwrap_err();
        let error = error.downcast_ref::<Error>().unwrap();
        assert_eq!(error.kind(), ErrorKind::Call);
        b.act(Act::Hang);
        assert!(call(&mut boxed).await.unwrap_err().is::<Elapsed>());
        assert!(layer.stats().endpoints.iter().all(|endpoint| endpoint.in_flight == 0));
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn a_layer_hands_its_client_to_the_target() {
    struct Shard(u32);
    impl<C: Clone> counterpoise::Target<C> for Shard {
        type Service = tower::util::MapRequest<C, Box<dyn Fn(u32) -> u32 + Send>>;

        fn attach(&self, client: &C) -> Self::Service {
            let shard = self.0;
            tower::util::MapRequest::new(client.clone(), Box::new(move |n| n + shard))
        }
    }
    let list = discover::list([("a", Endpoint::new(Shard(10))), ("b", Endpoint::new(Shard(20)))]);
    let layer = Builder::new().starting_at(0).layer(list, RoundRobin::new()).unwrap();
    let client = service_fn(async |n: u32| Ok::<_, Broken>(n));
    let mut balance = layer.layer(client);
    for want in [11, 21, 11] {
        assert_eq!(balance.ready().await.unwrap().call(1).await.unwrap(), want);
    }
}
