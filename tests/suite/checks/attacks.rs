//! Attacks on trials, checks and bodies at once, and on calls that wait for what these bring:
//! whoever could be tried is tried, and nobody else.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use counterpoise::{
    BoxError, Builder, ConfigError, Direct, Health,
    checks::{Checker, Checks, Probe as Check},
    discover,
    http::{AtBodyEnd, GoodHead, Status, Tracked},
    observe::EndpointState,
    policy::{RoundRobin, affinity::RingHash},
};
use futures::future::{BoxFuture, Ready, ready};
use hyper::Response;
use tokio::time::advance;
use tokio_test::task::{self, Spawn};
use tower::Service;

use crate::{
    bed::{SECOND, eject1},
    body_bed::{BodyBed, Echo, Reply, Script, endpoint, poll, read, reply},
    call::attacks::{attend, over},
    keyed_bed::{Ask, KEY, KeyedBed},
    probes::{Gate, Probe, call},
    support::{Act, Answer, Broken, settle},
};

type Followed = Tracked<Script, GoodHead>;
type Bodies = BodyBed<AtBodyEnd<Status>>;

/// Whom the checks find ill.
#[derive(Debug, Clone, Default)]
struct Ills(Arc<Mutex<HashSet<&'static str>>>);

impl Ills {
    fn set(&self, name: &'static str, ill: bool) {
        let mut ills = self.0.lock().unwrap();
        if ill {
            ills.insert(name)
        } else {
            ills.remove(name)
        };
    }

    /// Every second exactly; one result turns the tide.
    fn checks(&self) -> Checks<Self> {
        Checks::new(self.clone())
            .interval(SECOND)
            .jitter(0.0)
            .rise(1)
            .fall(1)
    }
}

impl<T> Check<T> for Ills {
    type Future = Ready<Result<(), BoxError>>;

    fn probe(&self, name: &str, _target: &T) -> Self::Future {
        ready(if self.0.lock().unwrap().contains(name) {
            Err("ill".into())
        } else {
            Ok(())
        })
    }
}

fn start(checker: Result<Checker, ConfigError>) {
    tokio::spawn(checker.unwrap());
}

/// Lets seconds pass, in small steps.
async fn pass(seconds: u32) {
    for _ in 0..4 * seconds {
        advance(SECOND / 4).await;
        settle().await;
    }
}

async fn bodies(health: Health) -> Bodies {
    let builder = Builder::new()
        .health(health)
        .judge(AtBodyEnd::new(Status::new()));
    let mut bed = Bodies::new(&["a", "b"], builder).await;
    bed.fail::<Followed>().await;
    assert_eq!(bed.state("a"), EndpointState::Ejected);
    bed
}

/// A reply that comes after a while.
fn late(after: Duration, text: &str) -> Reply {
    (after, reply(200, Script::new(text)).1)
}

#[tokio::test(start_paused = true)]
async fn a_late_head_does_not_take_an_endpoint_out_of_the_queue_of_trials() {
    let mut bed = bodies(eject1().trial_successes(2)).await;
    advance(10 * SECOND).await;
    let first: Followed = bed.open("d").await;
    advance(10 * SECOND).await;
    // The first has held its place for long enough: another tries.
    let mut second = task::spawn(bed.balance.call(late(SECOND, "d")));
    assert!(second.poll().is_pending());
    assert_eq!(bed.in_flight("a"), 2);
    // One of two successes that are needed: somebody may try for the other one.
    read(first).await;
    assert_eq!(bed.state("a"), EndpointState::Ejected);
    advance(SECOND).await;
    let Poll::Ready(Ok(response)) = second.poll() else {
        panic!("its head is due")
    };
    read(response.into_body()).await;
    for _ in 0..4 {
        read(bed.open::<Followed>("d").await).await;
    }
    assert_eq!(
        bed.state("a"),
        EndpointState::Serving,
        "it is tried by the next calls"
    );
}

#[tokio::test(start_paused = true)]
async fn no_call_tries_who_is_checked_out_while_the_body_of_a_trial_goes_on() {
    let mut bed = bodies(eject1()).await;
    let ills = Ills::default();
    start(bed.balance.check(ills.checks()));
    pass(10).await;
    let trial: Followed = bed.open("dd").await;
    assert_eq!(bed.state("a"), EndpointState::OnTrial);
    ills.set("a", true);
    pass(2).await;
    assert!(bed.stats("a").checked_out);
    let picks = bed.stats("a").picks;
    for _ in 0..30 {
        pass(1).await;
        bed.open::<Followed>("=").await;
        let stats = bed.stats("a");
        assert!(stats.checked_out && stats.picks == picks, "{stats:?}");
    }
    read(trial).await;
    assert!(
        bed.stats("a").checked_out,
        "nor does a straggler bring it back"
    );
    ills.set("a", false);
    pass(2).await;
    bed.open::<Followed>("=").await;
    assert_eq!(
        (bed.state("a"), bed.stats("a").picks),
        (EndpointState::Serving, picks + 1)
    );
}

/// Checks take endpoints out and let them in at every stage of an ejection, with and without a
/// body that goes on: whoever is well and due in the end is tried, and comes back.
#[tokio::test(start_paused = true)]
async fn whatever_the_checks_did_who_is_well_in_the_end_comes_back() {
    for script in 0..256_u32 {
        let mut bed = bodies(eject1()).await;
        let ills = Ills::default();
        start(bed.balance.check(ills.checks()));
        let mut held: Vec<Followed> = Vec::new();
        for step in 0..4 {
            match script >> (2 * step) & 3 {
                0 => ills.set("a", true),
                1 => ills.set("a", false),
                2 => held.push(bed.open("dd").await),
                _ => drop(held.pop().map(|mut body| poll(&mut body))),
            }
            pass(6).await;
            let stats = bed.stats("a");
            assert!(!stats.checked_out || stats.state == EndpointState::Ejected);
        }
        ills.set("a", false);
        pass(30).await;
        for _ in 0..3 {
            read(bed.open::<Followed>("d").await).await;
        }
        assert_eq!(bed.state("a"), EndpointState::Serving, "script {script}");
        drop(held);
        assert_eq!((bed.in_flight("a"), bed.in_flight("b")), (0, 0));
    }
}

// ===== waiting calls =====

/// Polls a call if something has woken it; returns its answer if it has one.
async fn woken<F: Future>(call: &mut Spawn<F>) -> Option<F::Output> {
    settle().await;
    if call.is_woken() {
        attend(call).await
    } else {
        None
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_call_tries_who_is_due_when_the_checks_let_it_in() {
    let (a, b) = (Probe::gated("a", Gate::Open), Probe::gated("b", Gate::Open));
    let builder = Builder::new().health(eject1());
    let (_handle, mut balance) = over(&[("a", &a), ("b", &b)], builder, RoundRobin::new()).await;
    let ills = Ills::default();
    start(balance.check(ills.checks()));
    b.act(Act::Err);
    for _ in 0..2 {
        let _ = call(&mut balance).await;
    }
    b.act(Act::Ok);
    ills.set("b", true);
    pass(12).await;
    assert!(balance.stats().endpoint("b").unwrap().checked_out);
    a.turn(Gate::Shut);
    let mut waiting = task::spawn(balance.call(()));
    assert!(attend(&mut waiting).await.is_none());
    ills.set("b", false);
    pass(2).await;
    let answer = woken(&mut waiting).await.expect("b is due, and well");
    assert_eq!(answer.unwrap(), Answer::From("b"));
}

/// An endpoint that may be unready, for calls with bodies.
#[derive(Debug, Clone)]
struct Balky {
    echo: Echo,
    gate: Probe,
}

impl Service<Reply> for Balky {
    type Response = Response<Script>;
    type Error = Broken;
    type Future = BoxFuture<'static, Result<Response<Script>, Broken>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.gate.poll_ready(cx)
    }

    fn call(&mut self, reply: Reply) -> Self::Future {
        self.echo.0.call(reply)
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_call_tries_who_has_been_on_trial_for_a_base_period() {
    let gates = ["a", "b"].map(|name| Probe::gated(name, Gate::Open));
    let endpoint = |gate: &Probe| {
        let gate = gate.clone();
        endpoint().map(|echo| Direct(Balky { echo, gate }))
    };
    let list = discover::list([("a", endpoint(&gates[0])), ("b", endpoint(&gates[1]))]);
    let builder = Builder::new()
        .health(eject1())
        .judge(AtBodyEnd::new(Status::new()));
    let mut balance = builder
        .starting_at(0)
        .balance(list, RoundRobin::new())
        .unwrap();
    settle().await;
    let failed = (Duration::ZERO, Err(Broken("a")));
    assert!(balance.call(failed).await.is_err());
    advance(10 * SECOND).await;
    let mut trial = task::spawn(balance.call(late(SECOND, "dd")));
    assert!(trial.poll().is_pending());
    gates[1].turn(Gate::Shut);
    let mut waiting = task::spawn(balance.call(late(Duration::ZERO, "dd")));
    assert!(attend(&mut waiting).await.is_none());
    advance(SECOND).await;
    let answered = attend(&mut trial).await.unwrap().unwrap();
    advance(10 * SECOND).await;
    let body = woken(&mut waiting)
        .await
        .expect("the place is free again")
        .unwrap();
    drop((answered, body));
    assert_eq!(
        balance.stats().endpoint("a").unwrap().state,
        EndpointState::Serving
    );
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_nobody_takes_hides_no_later_one_from_a_waiting_call() {
    let set = [("a", 1), ("b", 1), ("c", 1)];
    let builder = Builder::new().health(eject1());
    let bed = KeyedBed::with(builder, RingHash::by(KEY), &set);
    let key = |name: &str| {
        let owned = (0..)
            .map(|n| format!("user {n}"))
            .find(|key| bed.owner(key) == name);
        owned.unwrap()
    };
    let keys = ["a", "b", "c"].map(key);
    bed.fail(&keys[0]);
    advance(SECOND).await;
    bed.fail(&keys[1]);
    bed.unready("c", true);
    let mut balance = bed.balance.clone();
    let mut waiting = task::spawn(balance.call(Ask::of(&keys[1])));
    assert!(attend(&mut waiting).await.is_none());
    // A is due, but not for this key.
    advance(9 * SECOND).await;
    assert!(attend(&mut waiting).await.is_none());
    advance(SECOND).await;
    let answer = woken(&mut waiting)
        .await
        .expect("b is due, and the key is its own");
    assert_eq!(&*answer.unwrap(), "b");
}
