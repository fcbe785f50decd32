//! Calls that wait until an endpoint is ready.

use std::{task::Poll, time::Duration};

use counterpoise::{
    Balance, Builder, Direct, Endpoint, discover,
    error::ErrorKind,
    observe::EndpointState,
    policy::{Picker, Policy, RoundRobin},
};
use tokio::time::{Instant, advance};
use tokio_test::task;
use tower::{
    ServiceBuilder, ServiceExt, buffer::Buffer, limit::ConcurrencyLimit, timeout::error::Elapsed,
};

use crate::{
    probes::{
        Gate, Probe, Probes, answers, call, for_each_policy, name, over, probes, rest, start,
    },
    support::{Act, Answer, Site, settle},
};

// ===== B102, B104: waiting =====

#[tokio::test(start_paused = true)]
async fn b102_waiting_calls_behind_a_buffer_do_not_deadlock() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let site = Site::new("a");
        let limited = Endpoint::new(Direct(ConcurrencyLimit::new(site.clone(), 1)));
        let list = discover::list([("a", limited)]);
        let buffer = Buffer::new(Builder::new().balance(list, policy).unwrap(), 1);
        settle().await;
        site.act(Act::After(Duration::from_secs(1)));
        let held = tokio::spawn(buffer.clone().oneshot(()));
        settle().await;
        site.act(Act::Ok);
        let tasks: Vec<_> = (0..10)
            .map(|_| tokio::spawn(buffer.clone().oneshot(())))
            .collect();
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
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let all: Vec<_> = (0..1_000)
            .map(|i| Probe::gated(name("p", i), if i == 777 { Gate::Open } else { Gate::Shut }))
            .collect();
        let refs: Vec<_> = all.iter().collect();
        let mut balance = over(Builder::new().seed(1), &refs, policy).await;
        assert_eq!(answers(&mut balance, 1).await, ["p777"]);
        let polls = || all.iter().map(Probe::polls).sum::<usize>();
        // Each call finds those stuck that stand before p777 in its order of candidates.
        assert_eq!(answers(&mut balance, 40).await, ["p777"; 40]);
        assert!(
            polls() <= 2 * 1_000 + 40 * 7,
            "each is found stuck once, with two looks"
        );
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
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
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
    let balance = Builder::new()
        .max_waiting(3)
        .balance(changes, RoundRobin::new())
        .unwrap();
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
    assert_eq!(
        (stats.waiting, node.in_flight, node.drops, node.failures),
        (0, 0, 0, 0)
    );
    assert_eq!(a.instances(), 2, "the member's and the test's own");
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
    assert_eq!(
        state(&balance),
        EndpointState::Serving,
        "the last poll was ready"
    );
}
