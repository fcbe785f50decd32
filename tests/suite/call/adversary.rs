//! Attacks on the order in which a call looks for its endpoint: policies whose candidates repeat,
//! do not exist or never end, trials that a call did not ask for, and the bound.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use counterpoise::{
    Attempts, Balance, Builder, Direct, Event, Health,
    discover::{self, Handle},
    error::{Error, ErrorKind},
    health::PanicMode,
    observe::EndpointState,
    policy::{
        Candidates, LeastRequest, Members, Needs, PickContext, PickResult, Picker, Policy, Random,
        RoundRobin, SmoothWeighted,
    },
};
use futures::FutureExt;
use tokio::time::advance;
use tokio_test::task::{self, Spawn};
use tower::Service;

use crate::{
    bed::{SECOND, eject1},
    call::attacks::{attend, over},
    probes::{Gate, Probe, answers, call, name},
    support::{Act, Answer, settle},
};

/// Pushes candidates after `skip`, of so many members.
type Offer = fn(skip: usize, members: usize, out: &mut Candidates);

/// A policy that picks and offers what the test says, and counts both.
#[derive(Clone)]
struct Offers {
    pick: fn(usize) -> PickResult,
    offer: Offer,
    bound: Option<f64>,
    members: usize,
    picks: Arc<AtomicUsize>,
    offers: Arc<AtomicUsize>,
}

impl Offers {
    fn new(pick: fn(usize) -> PickResult, offer: Offer) -> Self {
        Self {
            pick,
            offer,
            bound: None,
            members: 0,
            picks: Arc::default(),
            offers: Arc::default(),
        }
    }

    fn bounded(self, factor: f64) -> Self {
        Self {
            bound: Some(factor),
            ..self
        }
    }

    /// Returns how often it was asked for picks and for candidates since the last time.
    fn asked(&self) -> (usize, usize) {
        (
            self.picks.swap(0, Ordering::SeqCst),
            self.offers.swap(0, Ordering::SeqCst),
        )
    }
}

impl Policy for Offers {
    type Picker = Self;

    fn build(&self, members: &Members<'_>, _previous: Option<&Self>) -> Self {
        Self {
            members: members.len(),
            ..self.clone()
        }
    }

    fn needs(&self) -> Needs {
        self.bound
            .map_or(Needs::none(), |factor| Needs::none().bound(factor))
    }
}

impl Picker<()> for Offers {
    fn pick(&self, _request: &(), _cx: &PickContext<'_>) -> PickResult {
        self.picks.fetch_add(1, Ordering::SeqCst);
        (self.pick)(self.members)
    }

    fn candidates(&self, _: &(), _: &PickContext<'_>, skip: usize, out: &mut Candidates) {
        let asked = self.offers.fetch_add(1, Ordering::SeqCst);
        assert!(asked < 1_000_000, "a search that does not end");
        (self.offer)(skip, self.members, out);
    }
}

fn push_all(numbers: impl IntoIterator<Item = usize>, out: &mut Candidates) {
    for number in numbers {
        if !out.push(number) {
            return;
        }
    }
}

const OFFERS: [(&str, Offer); 7] = [
    ("all, backwards", |skip, n, out| {
        push_all((0..n).rev().skip(skip), out);
    }),
    ("all, round and round", |skip, n, out| {
        push_all((0..n).cycle().skip(skip % n.max(1)), out);
    }),
    ("the first for ever", |_, _, out| {
        push_all(std::iter::repeat(0), out);
    }),
    ("none", |_, _, _| {}),
    ("none that exists", |_, n, out| {
        push_all([n, n + 1, usize::MAX].into_iter().cycle(), out);
    }),
    ("the first part only", |skip, n, out| {
        if skip == 0 {
            push_all(0..n, out);
        }
    }),
    ("one at a time", |skip, n, out| {
        if skip < n {
            out.push(skip);
        }
    }),
];

/// The kinds of [`OFFERS`] that reach all members.
const COMPLETE: [&str; 2] = ["all, backwards", "all, round and round"];

type Bed<P> = (
    Vec<Probe>,
    Handle<&'static str, Direct<Probe>>,
    Balance<Direct<Probe>, P>,
);

async fn bed<P: Policy<Picker: Picker<()>>>(n: usize, builder: Builder, policy: P) -> Bed<P> {
    let probes: Vec<_> = (0..n).map(|i| Probe::new(name("p", i))).collect();
    let (handle, changes) = discover::channel();
    handle.set(probes.iter().map(|probe| (probe.name(), probe.endpoint())));
    let builder = builder.starting_at(0).seed(1);
    let balance = builder.balance(changes, policy).unwrap();
    balance.ready_when(n).await.unwrap();
    settle().await;
    (probes, handle, balance)
}

/// Starts a call in the scope of these attempts.
fn start<P>(
    attempts: &Attempts,
    balance: &Balance<Direct<Probe>, P>,
) -> Spawn<<Balance<Direct<Probe>, P> as Service<()>>::Future>
where
    P: Policy<Picker: Picker<()>>,
{
    let (mut balance, mut call) = (balance.clone(), None);
    let started = attempts.scope(async { call = Some(balance.call(())) });
    started.now_or_never().unwrap();
    task::spawn(call.unwrap())
}

fn in_flight<P: Policy>(balance: &Balance<Direct<Probe>, P>) -> Vec<u64> {
    let endpoints = balance.stats().endpoints;
    endpoints
        .iter()
        .map(|endpoint| endpoint.in_flight)
        .collect()
}

// ===== candidates of all kinds =====

#[tokio::test(start_paused = true)]
async fn a_search_ends_whatever_the_policy_offers() {
    for n in [1, 2, 257, 2_000] {
        for (kind, offer) in OFFERS {
            let policy = Offers::new(|_| PickResult::Member(0), offer);
            let builder = Builder::new().health(Health::off());
            let (probes, _handle, mut balance) = bed(n, builder, policy.clone()).await;
            policy.asked();

            // Retries of one request.
            probes.iter().for_each(|probe| probe.act(Act::Err));
            let attempts = Attempts::new();
            for _ in 0..n.min(20) {
                // With no candidate that is new it waits for one, until its time is over.
                attempts.scope(call(&mut balance)).await.unwrap_err();
            }
            let mut names = attempts.names();
            if COMPLETE.contains(&kind) {
                names.sort();
                names.dedup();
                assert_eq!(names.len(), n.min(20), "{kind} of {n}: each once");
            }

            // No endpoint becomes ready.
            policy.asked();
            probes.iter().for_each(|probe| probe.turn(Gate::Fails));
            let polls: Vec<_> = probes.iter().map(Probe::polls).collect();
            let error = call(&mut balance).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ReadyFailed, "{kind} of {n}");
            let (picks, _) = policy.asked();
            assert!(picks <= 2, "{kind} of {n}: {picks} picks in one generation");
            for (probe, before) in probes.iter().zip(polls) {
                let asked = probe.polls() - before;
                assert!(asked <= 1, "{kind} of {n}: {} {asked}", probe.name());
                if COMPLETE.contains(&kind) {
                    assert_eq!(asked, 1, "{kind} of {n}: {}", probe.name());
                }
            }
            let stats = balance.stats();
            assert!(stats.endpoints.iter().all(|e| e.in_flight == 0));
            assert_eq!(stats.waiting, 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn candidates_that_do_not_exist_take_no_trial() {
    // Bound, and the first candidate is none: nobody owns the request.
    let policy = Offers::new(
        |_| PickResult::Any,
        |_, n, out| {
            out.bind();
            push_all([n + 3, usize::MAX].into_iter().cycle(), out);
        },
    );
    let (probes, _handle, mut balance) = bed(3, Builder::new().health(eject1()), policy).await;
    probes[0].act(Act::Err);
    call(&mut balance).await.unwrap_err();
    assert_eq!(balance.stats().counts.ejected, 1);
    advance(11 * SECOND).await;
    let before = probes[0].calls();
    for _ in 0..10 {
        call(&mut balance).await.unwrap();
    }
    assert_eq!(probes[0].calls(), before);
}

#[tokio::test(start_paused = true)]
async fn a_bound_request_tries_its_first_candidate_with_a_weight_and_no_other() {
    for (owner, offer) in [
        (
            2,
            (|skip, _, out| push_all([9, 2, 0, 1].into_iter().skip(skip), out)) as Offer,
        ),
        (1, |skip, _, out| {
            push_all([1, 2, 0].into_iter().skip(skip), out);
        }),
    ] {
        let policy = Binds(Offers::new(|_| PickResult::Any, offer));
        let health = eject1().max_ejected(1.0).panic_mode(PanicMode::Fail);
        let (probes, _handle, mut balance) = bed(3, Builder::new().health(health), policy).await;
        probes.iter().for_each(|probe| probe.act(Act::Err));
        for _ in 0..3 {
            call(&mut balance).await.unwrap_err();
        }
        assert_eq!(balance.stats().counts.ejected, 3);
        probes.iter().for_each(|probe| probe.act(Act::Hang));
        advance(11 * SECOND).await;
        let before: Vec<_> = probes.iter().map(Probe::calls).collect();
        let attempts = Attempts::new();
        let trial = start(&attempts, &balance);
        let more = start(&Attempts::new(), &balance);
        let sent: Vec<_> = probes.iter().map(Probe::calls).collect();
        for i in 0..3 {
            assert_eq!(sent[i] - before[i], usize::from(i == owner), "{i}");
        }
        drop((trial, more));
        assert_eq!(in_flight(&balance), [0, 0, 0]);
    }
}

/// Binds all requests to their candidates.
struct Binds(Offers);

struct BindsPicker(Offers);

impl Policy for Binds {
    type Picker = BindsPicker;

    fn build(&self, members: &Members<'_>, _previous: Option<&BindsPicker>) -> BindsPicker {
        BindsPicker(self.0.build(members, None))
    }

    fn needs(&self) -> Needs {
        self.0.needs()
    }
}

impl Picker<()> for BindsPicker {
    fn pick(&self, request: &(), cx: &PickContext<'_>) -> PickResult {
        self.0.pick(request, cx)
    }

    fn candidates(&self, request: &(), cx: &PickContext<'_>, skip: usize, out: &mut Candidates) {
        out.bind();
        self.0.candidates(request, cx, skip, out);
    }
}

// ===== the order of preference =====

/// Eight endpoints, one for each combination: full or not, tried or not, found not ready or not.
/// The candidates come worst first, and all are visited, best first.
#[tokio::test(start_paused = true)]
async fn room_comes_before_untried_and_untried_before_ready() {
    // Number 8 is drained: what the policy picks is never taken.
    let policy = Offers::new(
        |_| PickResult::Member(8),
        |skip, _, out| push_all((0..8).rev().skip(skip), out),
    )
    .bounded(1.0);
    let builder = Builder::new().health(Health::off());
    let (probes, handle, balance) = bed(9, builder, policy).await;
    handle.insert(probes[8].name(), probes[8].endpoint().weight(0));
    settle().await;
    let is = |number: usize, bit: usize| number & bit != 0;
    let (full, tried, unready) = (4, 2, 1);

    // One call each at those that are to be full.
    let mut held = Vec::new();
    for number in (0..8).filter(|&number| is(number, full)) {
        probes[number].act(Act::Hang);
        let attempts = Attempts::new();
        attempts.prefer(probes[number].name());
        let mut call = start(&attempts, &balance);
        assert!(call.poll().is_pending());
        held.push(call);
    }
    assert_eq!(in_flight(&balance), [0, 0, 0, 0, 1, 1, 1, 1, 0]);

    // Calls find all of them not ready; then some become ready once.
    probes.iter().for_each(|probe| probe.turn(Gate::Shut));
    let waiting: Vec<_> = (0..8).filter(|&number| !is(number, unready)).collect();
    let mut calls: Vec<_> = waiting
        .iter()
        .map(|_| start(&Attempts::new(), &balance))
        .collect();
    for call in &mut calls {
        assert!(attend(call).await.is_none());
    }
    for (number, mut call) in waiting.into_iter().zip(calls) {
        probes[number].act(Act::Hang);
        probes[number].turn(Gate::Open);
        let before = probes[number].calls();
        assert!(call.poll().is_pending());
        assert_eq!(probes[number].calls(), before + 1, "{number}");
        drop(call);
        probes[number].turn(Gate::Shut);
    }

    let log = Arc::new(Mutex::new(Vec::new()));
    for (number, probe) in probes.iter().enumerate() {
        let log = Arc::clone(&log);
        let _same = probe.clone().gating(move |_| {
            log.lock().unwrap().push(number);
            Gate::Shut
        });
    }
    let attempts = Attempts::new();
    for number in (0..8).filter(|&number| is(number, tried)) {
        attempts.avoid(probes[number].name());
    }
    let mut call = start(&attempts, &balance);
    assert!(call.poll().is_pending());
    // Each is polled again once the call waits for it.
    log.lock().unwrap().dedup();
    assert_eq!(*log.lock().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
    drop((call, held));
    assert_eq!(in_flight(&balance), [0; 9]);
}

/// Retries draw tickets, so with two endpoints and one retry for each request all first attempts
/// go to the same one.
#[tokio::test(start_paused = true)]
#[ignore = "open: a retry draws a ticket and moves the rotation (case f22)"]
async fn first_attempts_stay_even_whatever_is_retried() {
    for n in [2, 3, 4, 7] {
        for retries in 0..4 {
            let builder = Builder::new().health(Health::off());
            let (probes, _handle, mut balance) = bed(n, builder, RoundRobin::new()).await;
            probes.iter().for_each(|probe| probe.act(Act::Err));
            let mut firsts = vec![0; n];
            for _ in 0..10 * n {
                let attempts = Attempts::new();
                for _ in 0..=retries {
                    let _failed = attempts.scope(call(&mut balance)).await.unwrap_err();
                }
                let first = &attempts.names()[0];
                let place = probes.iter().position(|probe| probe.name() == &**first);
                firsts[place.unwrap()] += 1;
            }
            assert_eq!(firsts, vec![10; n], "{retries} retries");
        }
    }
}

/// In a large set an ejection is published a little later. A call whose pick is refused meanwhile
/// takes one of the others, and the rotation goes on behind that pick.
#[tokio::test(start_paused = true)]
async fn a_refused_pick_moves_the_rotation_by_one_only() {
    let n = 300;
    let (probes, _handle, mut balance) =
        bed(n, Builder::new().health(eject1()), RoundRobin::new()).await;
    let order = answers(&mut balance, n).await;
    let (at, ejected) = (100, order[100]);
    let probe = probes.iter().find(|probe| probe.name() == ejected).unwrap();
    answers(&mut balance, at).await;
    probe.act(Act::Err);
    call(&mut balance).await.unwrap_err();
    answers(&mut balance, n - at - 1).await;
    let again = answers(&mut balance, n).await;
    let moved: Vec<_> = (0..n).filter(|&i| again[i] != order[i]).collect();
    assert_eq!(moved, [at], "only the refused pick went elsewhere");
    assert_ne!(again[at], ejected);
}

// ===== trials =====

/// Ejects the first of three, whose trial is then due.
async fn due<P: Policy<Picker: Picker<()>>>(health: Health, policy: P) -> Bed<P> {
    let (probes, handle, mut balance) = bed(3, Builder::new().health(health), policy).await;
    probes[0].act(Act::Err);
    while balance.stats().counts.ejected == 0 {
        let _failed = call(&mut balance).await;
    }
    probes[0].act(Act::Ok);
    advance(11 * SECOND).await;
    (probes, handle, balance)
}

/// The trial of an ejected endpoint does not look at what the call avoids, though others are
/// eligible.
#[tokio::test(start_paused = true)]
async fn a_call_is_no_trial_of_an_endpoint_that_it_avoids() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let (probes, _handle, mut balance) = due(eject1(), policy).await;
        let before = probes[0].calls();
        let attempts = Attempts::new();
        attempts.avoid(probes[0].name());
        attempts.scope(call(&mut balance)).await.unwrap();
        assert_eq!(probes[0].calls(), before, "two others are eligible");
    }
    case(RoundRobin::new()).await;
    case(LeastRequest::new()).await;
}

/// A trial that is due takes the call away from the endpoint that it prefers, which is in service.
#[tokio::test(start_paused = true)]
async fn a_call_goes_to_the_preferred_endpoint_also_while_a_trial_is_due() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let (probes, _handle, mut balance) = due(eject1(), policy).await;
        let attempts = Attempts::new();
        attempts.prefer(probes[2].name());
        let answer = attempts.scope(call(&mut balance)).await.unwrap();
        assert_eq!(answer, Answer::From(probes[2].name()));
    }
    case(RoundRobin::new()).await;
    case(Random::new()).await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_a_trial_only_if_nothing_is_eligible() {
    let health = eject1().max_ejected(1.0).panic_mode(PanicMode::Fail);
    let builder = Builder::new().health(health);
    let (probes, _handle, mut balance) = bed(2, builder, RoundRobin::new()).await;
    let attempts = Attempts::new();
    probes.iter().for_each(|probe| probe.act(Act::Err));
    attempts.scope(call(&mut balance)).await.unwrap_err();
    advance(11 * SECOND).await;
    // The first is due, the second is eligible.
    attempts.scope(call(&mut balance)).await.unwrap_err();
    let names: Vec<_> = attempts.names().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["p0", "p1"]);
    // Both are ejected now, and the first is due.
    probes[0].act(Act::Ok);
    let answer = attempts.scope(call(&mut balance)).await.unwrap();
    assert_eq!(answer, Answer::From("p0"));
    assert_eq!(
        balance.stats().endpoint("p0").unwrap().state,
        EndpointState::Serving
    );
}

/// The retry goes to the eligible endpoint that it has not tried, not to the trial that is due.
#[tokio::test(start_paused = true)]
async fn a_retry_is_no_trial_of_another_endpoint_while_one_is_eligible() {
    let health = eject1().max_ejected(0.7);
    let (probes, _handle, mut balance) =
        bed(3, Builder::new().health(health), RoundRobin::new()).await;
    let send = async |balance: &mut Balance<Direct<Probe>, RoundRobin>, attempts: &Attempts| {
        attempts.scope(call(balance)).await
    };
    let early = Attempts::new();
    early.prefer("p2");
    probes[2].act(Act::Err);
    send(&mut balance, &early).await.unwrap_err();
    probes[2].act(Act::Ok);
    // The first attempt comes before the trial is due, the retry after it.
    advance(9 * SECOND).await;
    let attempts = Attempts::new();
    attempts.prefer("p0");
    probes[0].act(Act::Err);
    send(&mut balance, &attempts).await.unwrap_err();
    advance(2 * SECOND).await;
    let answer = send(&mut balance, &attempts).await.unwrap();
    assert_eq!(answer, Answer::From("p1"));
    // The next call makes the trial.
    let answer = call(&mut balance).await.unwrap();
    assert_eq!(answer, Answer::From("p2"));
}

/// A trial goes to an endpoint that is in panic mode at its bound, though another has room.
#[tokio::test(start_paused = true)]
async fn a_trial_in_panic_mode_keeps_the_bound() {
    let policy = Offers::new(
        |_| PickResult::Any,
        |skip, n, out| push_all((0..n).skip(skip), out),
    )
    .bounded(1.0);
    let health = eject1().max_ejected(1.0).panic_mode(PanicMode::UseAll);
    let (probes, _handle, mut balance) = bed(2, Builder::new().health(health), policy).await;
    probes.iter().for_each(|probe| probe.act(Act::Err));
    for _ in 0..2 {
        call(&mut balance).await.unwrap_err();
    }
    assert_eq!(balance.stats().counts.ejected, 2);
    probes.iter().for_each(|probe| probe.act(Act::Hang));
    let attempts = Attempts::new();
    attempts.prefer("p0");
    let mut held = start(&attempts, &balance);
    assert!(held.poll().is_pending());
    assert_eq!(in_flight(&balance), [1, 0]);
    advance(11 * SECOND).await;
    let mut trial = start(&Attempts::new(), &balance);
    assert!(trial.poll().is_pending());
    assert_eq!(in_flight(&balance), [1, 1], "each may hold one of two");
}

/// What happens to a trial before it ends.
const FATES: [&str; 9] = [
    "dropped before its first poll",
    "dropped after it",
    "panics",
    "panics while it becomes ready",
    "fails to become ready",
    "never becomes ready",
    "its endpoint leaves",
    "its endpoint is drained",
    "its endpoint is replaced",
];

/// However a trial ends, its place and its permit are given back, and another follows.
#[tokio::test(start_paused = true)]
async fn a_trial_gives_its_place_and_its_permit_back_whatever_its_fate() {
    for (fate, what) in FATES.into_iter().enumerate() {
        let policy = Offers::new(
            |_| PickResult::Any,
            |skip, n, out| push_all((0..n).skip(skip), out),
        )
        .bounded(1.0);
        let (probes, handle, mut balance) = due(eject1(), policy).await;
        let (a, name) = (&probes[0], probes[0].name());
        match fate {
            2 => a.act(Act::Panic),
            3 => a.turn(Gate::Panics),
            4 => a.turn(Gate::Fails),
            5 => a.turn(Gate::Shut),
            _ => a.act(Act::Hang),
        }
        let mut others = balance.clone();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut trial = task::spawn(others.call(()));
            if fate != 0 {
                drop(trial.poll());
            }
            trial
        }));
        match fate {
            6 => handle.remove(&name),
            7 => handle.insert(name, a.endpoint().weight(0)),
            8 => handle.insert(name, a.endpoint()),
            _ => {}
        }
        settle().await;
        drop(result);
        assert!(in_flight(&balance).iter().all(|&n| n == 0), "{what}");
        a.turn(Gate::Open);
        a.act(Act::Ok);
        handle.insert(name, a.endpoint());
        settle().await;
        advance(100 * SECOND).await;
        let before = a.calls();
        for _ in 0..6 {
            call(&mut balance).await.unwrap();
        }
        assert!(a.calls() > before, "{what}: it was tried again");
        let state = balance.stats().endpoint(name).unwrap().state;
        assert_eq!(state, EndpointState::Serving, "{what}");

        // All permits are back: two calls for each of the three fill them evenly.
        probes.iter().for_each(|probe| probe.act(Act::Hang));
        let held: Vec<_> = (0..6).map(|_| start(&Attempts::new(), &balance)).collect();
        assert_eq!(in_flight(&balance), [2, 2, 2], "{what}");
        drop(held);
        assert_eq!(in_flight(&balance), [0, 0, 0], "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn hedges_that_share_their_attempts_go_to_different_endpoints() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let builder = Builder::new().health(Health::off());
        let (probes, _handle, balance) = bed(3, builder, policy).await;
        probes.iter().for_each(|probe| probe.act(Act::Hang));
        for _ in 0..10 {
            let attempts = Attempts::new();
            attempts.prefer("p1");
            let hedges: Vec<_> = (0..3).map(|_| start(&attempts.clone(), &balance)).collect();
            assert_eq!(in_flight(&balance), [1, 1, 1]);
            assert_eq!(&*attempts.names()[0], "p1");
            drop(hedges);
            assert_eq!(in_flight(&balance), [0, 0, 0]);
        }
    }
    case(RoundRobin::new()).await;
    case(Random::new()).await;
    case(SmoothWeighted::new()).await;
    case(LeastRequest::new()).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_preferred_and_avoided_or_unknown_fails_no_call() {
    let health = eject1().panic_mode(PanicMode::Fail);
    let (probes, handle, mut balance) =
        bed(4, Builder::new().health(health), RoundRobin::new()).await;
    probes[0].act(Act::Err);
    call(&mut balance).await.unwrap_err();
    handle.insert("p1", probes[1].endpoint().weight(0));
    settle().await;
    let before = [probes[0].calls(), probes[1].calls()];
    for preferred in ["p0", "p1", "p2", "nobody", ""] {
        for avoided in [&["p2"][..], &["p0", "p1", "p2", "p3"], &["nobody"], &[]] {
            let attempts = Attempts::new();
            attempts.prefer(preferred);
            avoided.iter().for_each(|&name| attempts.avoid(name));
            let answer = attempts.scope(call(&mut balance)).await.unwrap();
            if preferred == "p2" && !avoided.contains(&"p2") {
                assert_eq!(answer, Answer::From("p2"));
            }
            if avoided == ["p2"] {
                assert_eq!(answer, Answer::From("p3"), "{preferred}");
            }
        }
    }
    assert_eq!([probes[0].calls(), probes[1].calls()], before);
}

/// A listener makes a call in the moment before a trial is sent. The trial counts under the bound
/// already, so the call does not go to the same endpoint.
#[tokio::test(start_paused = true)]
async fn a_trial_and_a_call_in_the_same_moment_keep_the_bound() {
    type Shared = Arc<Mutex<Option<Balance<Direct<Probe>, Binds>>>>;
    type Held = Arc<Mutex<Vec<Spawn<<Balance<Direct<Probe>, Binds> as Service<()>>::Future>>>>;
    let shared: Shared = Arc::default();
    let held: Held = Arc::default();
    let (to, kept) = (Arc::clone(&shared), Arc::clone(&held));
    let called = AtomicBool::new(false);
    let builder = Builder::new().health(eject1()).on_event(move |event| {
        // The call may become the trial of the other endpoint, which causes the same event.
        if let Event::OnTrial { .. } = event
            && !called.swap(true, Ordering::SeqCst)
        {
            let mut balance = to.lock().unwrap().clone().unwrap();
            kept.lock().unwrap().push(task::spawn(balance.call(())));
        }
    });
    let policy = Offers::new(
        |_| PickResult::Member(0),
        |skip, n, out| push_all((0..n).skip(skip), out),
    );
    let (probes, _handle, mut balance) = bed(2, builder, Binds(policy.bounded(1.0))).await;
    *shared.lock().unwrap() = Some(balance.clone());
    probes.iter().for_each(|probe| probe.act(Act::Err));
    while balance.stats().counts.ejected < 2 {
        let attempts = Attempts::new();
        attempts.prefer(if balance.stats().counts.ejected == 0 {
            "p0"
        } else {
            "p1"
        });
        attempts.scope(call(&mut balance)).await.unwrap_err();
    }
    probes.iter().for_each(|probe| probe.act(Act::Hang));
    advance(11 * SECOND).await;
    let trial = start(&Attempts::new(), &balance);
    assert_eq!(held.lock().unwrap().len(), 1, "a trial began");
    assert_eq!(in_flight(&balance), [1, 1], "each may hold one of two");
    drop(trial);
    held.lock().unwrap().clear();
    shared.lock().unwrap().take();
}

#[tokio::test(start_paused = true)]
async fn errors_say_whether_an_endpoint_failed_to_become_ready_or_was_not_in_time() {
    let (a, b) = (
        Probe::gated("a", Gate::Fails),
        Probe::gated("b", Gate::Shut),
    );
    let builder = Builder::new()
        .health(Health::off())
        .wait_for_ready(2 * SECOND);
    let (handle, mut balance) = over(&[("a", &a), ("b", &b)], builder, RoundRobin::new()).await;
    let late = call(&mut balance).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::ReadyTimeout);
    assert_eq!((late.counts().members, late.counts().unready), (2, 1));
    handle.remove(&"b");
    settle().await;
    let failed = call(&mut balance).await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::ReadyFailed);
    assert_eq!(failed.endpoint(), Some("a"));
    for error in [late, failed] {
        let clone = error.clone();
        assert_eq!(clone.to_string(), error.to_string());
        assert_eq!(clone.kind(), error.kind());
        assert_eq!(clone.counts(), error.counts());
        let cause = |error: &Error| std::error::Error::source(error).map(ToString::to_string);
        assert_eq!(cause(&clone), cause(&error));
        assert!(clone.is_unsent() && clone.is_unavailable());
    }
}
