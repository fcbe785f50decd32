//! Failures as load and latency as cost: nobody is rewarded for failing, nobody is forgotten.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use counterpoise::{
    Builder, Health,
    call::AtHead,
    health::OutlierDetection,
    policy::{LeastRequest, Members, Needs, PeakEwma, PickContext, PickResult, Picker, Policy},
};
use futures::{FutureExt, future::join_all};
use proptest::{collection::vec, prelude::*, sample::select};
use tokio::time::{advance, sleep};

use crate::{
    bed::{MILLISECOND, SECOND},
    fleet::{Fleet, Job, Push, is_likely},
    support::{Act, picked},
};

const FIVE: [(&str, u32); 5] = [("a", 1), ("b", 1), ("c", 1), ("d", 1), ("n", 1)];

fn seeded(seed: u64) -> Builder<AtHead<Push>> {
    Builder::new()
        .health(Health::off())
        .seed(seed)
        .starting_at(seed)
        .classify(Push(None))
}

/// Returns how many of a thousand calls go to who fails at once, beside who works slowly.
async fn b78<P: Policy<Picker: Picker<Job>>>(policy: P, seed: u64, failing: Act) -> usize {
    let mut fleet = Fleet::with(seeded(seed), policy, &FIVE[..2]).await;
    fleet.act("a", failing);
    fleet.act("b", Act::After(100 * MILLISECOND));
    fleet.share(1_000, "a").await
}

#[tokio::test(start_paused = true)]
async fn b78_failing_fast_attracts_nothing() {
    for seed in 0..8 {
        for failing in [Act::FailAfter(MILLISECOND), Act::Err, Act::Reject] {
            let shares = [
                b78(PeakEwma::new(), seed, failing).await,
                b78(PeakEwma::new().penalty(5 * SECOND), seed, failing).await,
                b78(LeastRequest::new().penalty(10 * SECOND), seed, failing).await,
                b78(
                    LeastRequest::new().full_scan().penalty(10 * SECOND),
                    seed,
                    failing,
                )
                .await,
            ];
            assert!(
                shares.iter().all(|&share| share <= 200),
                "{shares:?}, {failing:?}"
            );
            let without = b78(LeastRequest::new(), seed, failing).await;
            assert!(without <= 580, "{without}: both are idle, so even");
        }
    }
}

/// At the start nobody knows what a call takes: one endpoint fails at once, and the other works
/// on its first calls.
#[tokio::test(start_paused = true)]
async fn b78_failing_fast_attracts_nothing_before_any_call_has_succeeded() {
    for seed in 0..8 {
        let mut fleet = Fleet::with(seeded(seed), PeakEwma::new(), &FIVE[..2]).await;
        fleet.act("a", Act::Err);
        fleet.act("b", Act::After(10 * SECOND));
        let mut calls = Vec::new();
        for _ in 0..1_000 {
            let mut call = Box::pin(fleet.start());
            if call.as_mut().now_or_never().is_none() {
                calls.push(call);
            }
            advance(MILLISECOND).await;
        }
        assert!(fleet.calls("a") <= 50, "{} of 1,000", fleet.calls("a"));
    }
}

/// Returns the share of `a` in a hundred calls, so long after it failed once.
async fn b79<P: Policy<Picker: Picker<Job>>>(policy: P, seconds: u32) -> usize {
    let mut fleet = Fleet::with(seeded(7), policy, &FIVE[..2]).await;
    fleet.act("a", Act::Err);
    while fleet.stats("a").failures == 0 {
        fleet.route(1).await;
        assert!(fleet.next < 1_000, "it is never called");
    }
    fleet.act("a", Act::After(5 * MILLISECOND));
    fleet.act("b", Act::After(5 * MILLISECOND));
    // B is steady; A is not called meanwhile, or the case says nothing.
    let _ = fleet.balance.set_capacity("a", 0.0);
    for _ in 0..10 * seconds {
        fleet.route(1).await;
        sleep(95 * MILLISECOND).await;
    }
    let _ = fleet.balance.set_capacity("a", 1.0);
    fleet.share(100, "a").await
}

#[tokio::test(start_paused = true)]
async fn b79_a_penalised_endpoint_is_tried_again() {
    let shares = [
        b79(PeakEwma::new().penalty(5 * SECOND), 120).await,
        b79(PeakEwma::new(), 120).await,
        b79(LeastRequest::new().penalty(10 * SECOND), 120).await,
    ];
    assert!(shares.iter().all(|&share| share >= 10), "{shares:?}");
    // And no rush: the first call that succeeds makes it one like the other.
    assert!(shares.iter().all(|&share| share <= 90), "{shares:?}");
}

#[tokio::test(start_paused = true)]
async fn b79_two_that_were_penalised_both_come_back() {
    let policy = PeakEwma::new().penalty(5 * SECOND);
    let mut fleet = Fleet::with(seeded(3), policy, &FIVE[..3]).await;
    ["a", "b"].iter().for_each(|name| fleet.act(name, Act::Err));
    fleet.act("c", Act::After(5 * MILLISECOND));
    while fleet.stats("a").failures == 0 || fleet.stats("b").failures == 0 {
        fleet.route(1).await;
        assert!(fleet.next < 1_000, "one is never called");
    }
    ["a", "b"]
        .iter()
        .for_each(|name| fleet.act(name, Act::After(5 * MILLISECOND)));
    for _ in 0..1_200 {
        fleet.route(1).await;
        sleep(95 * MILLISECOND).await;
    }
    let route = fleet.route(150).await;
    for name in ["a", "b", "c"] {
        let share = route.iter().filter(|&&other| other == name).count();
        assert!(share >= 15, "{name} gets {share} of 150");
    }
}

/// Four endpoints of 20 ms, and a newcomer.
async fn with_newcomer(act: Act) -> Fleet<PeakEwma> {
    let mut fleet = Fleet::with(seeded(5), PeakEwma::new(), &FIVE[..4]).await;
    FIVE[..4]
        .iter()
        .for_each(|(name, _)| fleet.act(name, Act::After(20 * MILLISECOND)));
    fleet.route(400).await;
    fleet.join("n", 1).await;
    fleet.act("n", act);
    fleet
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_is_neither_flooded_nor_starved_by_a_burst() {
    for wait in [0, 30, 300] {
        let mut fleet = with_newcomer(Act::After(20 * MILLISECOND)).await;
        advance(wait * SECOND).await;
        let burst: Vec<_> = (0..100).map(|_| fleet.start()).collect();
        let held = fleet.stats("n").in_flight;
        assert!((10..=40).contains(&held), "{held} of 100 after {wait} s");
        join_all(burst).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_is_neither_flooded_nor_starved_by_calls_in_a_row() {
    let mut fleet = with_newcomer(Act::After(20 * MILLISECOND)).await;
    let share = fleet.share(1_000, "n").await;
    assert!((100..=400).contains(&share), "{share} of 1,000");
    // One that turns out to be slow gets little, but is looked after.
    let mut fleet = with_newcomer(Act::After(SECOND)).await;
    let share = fleet.share(1_000, "n").await;
    assert!((1..=50).contains(&share), "{share} of 1,000");
}

/// As in life: latencies are never quite the same.
#[tokio::test(start_paused = true)]
async fn with_like_latencies_the_shares_are_the_weights() {
    let set = [("a", 1), ("b", 1), ("c", 2), ("d", 4)];
    let mut fleet = Fleet::with(seeded(5), PeakEwma::new(), &set).await;
    for (name, micros) in [("a", 20_000), ("b", 20_200), ("c", 19_900), ("d", 20_300)] {
        fleet.act(name, Act::After(Duration::from_micros(micros)));
    }
    let route = fleet.route(2_000).await;
    for (name, weight) in set {
        let share = route.iter().filter(|&&other| other == name).count();
        assert!(
            is_likely(share, 2_000, f64::from(weight) / 8.0),
            "{name}: {share}"
        );
    }
}

// ===== what every end of a call does to the cost =====

/// Sends calls where the test says, and notes what each endpoint costs.
#[derive(Debug, Clone)]
struct Spy {
    needs: Needs,
    next: Arc<AtomicUsize>,
    /// Whether requests are refused, once the costs are noted.
    looks: Arc<AtomicBool>,
    costs: Arc<Mutex<Vec<Duration>>>,
}

impl Policy for Spy {
    type Picker = SpyPicker;

    fn build(&self, members: &Members<'_>, _previous: Option<&SpyPicker>) -> SpyPicker {
        SpyPicker {
            spy: self.clone(),
            members: members.len(),
        }
    }

    fn needs(&self) -> Needs {
        self.needs
    }
}

struct SpyPicker {
    spy: Spy,
    members: usize,
}

impl<Req> Picker<Req> for SpyPicker {
    fn pick(&self, _request: &Req, cx: &PickContext<'_>) -> PickResult {
        let costs = (0..self.members).map(|index| cx.latency(index)).collect();
        *self.spy.costs.lock().unwrap() = costs;
        if self.spy.looks.load(Ordering::SeqCst) {
            PickResult::Refuse("a look")
        } else {
            PickResult::Member(self.spy.next.load(Ordering::SeqCst))
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum End {
    Ok,
    Err,
    Overload,
    Drop,
}

#[derive(Debug, Clone)]
struct Step {
    at: usize,
    end: End,
    took: u64,
    pause: u64,
}

fn step() -> impl Strategy<Value = Step> {
    let ends = select(vec![End::Ok, End::Ok, End::Err, End::Overload, End::Drop]);
    let took = select(vec![0, 1, 5, 40, 200, 900, 1_500, 9_000]);
    let pause = select(vec![0, 0, 1, 50, 2_000, 15_000, 100_000]);
    (0..3_usize, ends, took, pause).prop_map(|(at, end, took, pause)| Step {
        at,
        end,
        took,
        pause,
    })
}

/// Outlier detection measures calls as well; a policy that needs no latency reads none all the same.
#[tokio::test(start_paused = true)]
async fn a_policy_that_needs_no_latency_reads_zero() {
    let spy = Spy {
        needs: Needs::none(),
        next: Arc::default(),
        looks: Arc::default(),
        costs: Arc::default(),
    };
    let health = Health::new().outlier_detection(OutlierDetection::new().slower_than(2.0));
    let builder = seeded(1).health(health);
    let fleet = Fleet::with(builder, spy.clone(), &FIVE[..3]).await;
    for _ in 0..3 {
        assert_eq!(picked(&fleet.balance, Job::None).as_deref(), Some("a"));
        assert_eq!(*spy.costs.lock().unwrap(), [Duration::ZERO; 3]);
    }
}

struct Spied {
    spy: Spy,
    fleet: Fleet<Spy>,
}

impl Spied {
    async fn new(penalty: Option<Duration>, wait: Option<Duration>) -> Self {
        let needs = Needs::latency(10 * SECOND);
        let needs = penalty.map_or(needs, |penalty| needs.penalty(penalty));
        let spy = Spy {
            needs,
            next: Arc::default(),
            looks: Arc::default(),
            costs: Arc::default(),
        };
        let builder = seeded(1).classify(Push(wait));
        Self {
            fleet: Fleet::with(builder, spy.clone(), &FIVE[..3]).await,
            spy,
        }
    }

    fn cost(&self, index: usize) -> Duration {
        self.spy.looks.store(true, Ordering::SeqCst);
        assert_eq!(picked(&self.fleet.balance, Job::None), None);
        self.spy.looks.store(false, Ordering::SeqCst);
        self.spy.costs.lock().unwrap()[index]
    }

    /// Makes a call; returns the cost just before and after its end.
    async fn play(&mut self, step: &Step) -> (Duration, Duration) {
        let took = Duration::from_millis(step.took);
        let sleeps = Act::After(took);
        let act = match step.end {
            End::Ok => sleeps,
            End::Err => Act::FailAfter(took),
            End::Overload => Act::Reject,
            End::Drop => Act::Hang,
        };
        self.fleet.act(FIVE[step.at].0, act);
        self.spy.next.store(step.at, Ordering::SeqCst);
        let mut call = Box::pin(self.fleet.start());
        if took.is_zero() || matches!(step.end, End::Overload) {
            let before = self.cost(step.at);
            let _ended = call.as_mut().now_or_never();
            drop(call);
            return (before, self.cost(step.at));
        }
        assert!(call.as_mut().now_or_never().is_none());
        advance(took).await;
        let before = self.cost(step.at);
        match step.end {
            End::Drop => {}
            _ => drop(call.as_mut().await),
        }
        drop(call);
        (before, self.cost(step.at))
    }
}

/// In nanoseconds, less what an estimate may lose in rounding.
fn lowered(before: Duration, after: Duration) -> bool {
    (after.as_nanos() as f64) < before.as_nanos() as f64 * (1.0 - 1e-5) - 2.0
}

async fn never_rewarded(
    penalty: Option<Duration>,
    wait: Option<Duration>,
    script: &[Step],
) -> Result<(), TestCaseError> {
    let mut spied = Spied::new(penalty, wait).await;
    for step in script {
        let (before, after) = spied.play(step).await;
        if !matches!(step.end, End::Ok) {
            prop_assert!(
                !lowered(before, after),
                "{step:?}: {before:?}, then {after:?}"
            );
        }
        advance(Duration::from_millis(step.pause)).await;
    }
    // One works on: in bounded time all others cost half as much, whatever they did.
    for _ in 0..300 {
        spied
            .play(&Step {
                at: 0,
                end: End::Ok,
                took: 5,
                pause: 0,
            })
            .await;
        advance(SECOND).await;
    }
    for index in 1..3 {
        let cost = spied.cost(index);
        let half = Duration::from_micros(2_400)..Duration::from_micros(2_700);
        prop_assert!(half.contains(&cost), "{cost:?}");
    }
    Ok(())
}

#[test]
fn no_end_but_success_makes_an_endpoint_more_attractive() {
    let config = ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..Default::default()
    };
    let rng = proptest::test_runner::TestRng::deterministic_rng(
        proptest::test_runner::RngAlgorithm::ChaCha,
    );
    let penalties = vec![None, Some(Duration::from_micros(1)), Some(5 * SECOND)];
    let waits = select(vec![None, Some(MILLISECOND), Some(60 * SECOND)]);
    let cases = (select(penalties), waits, vec(step(), 1..25));
    let mut runner = proptest::test_runner::TestRunner::new_with_rng(config, rng);
    let result = runner.run(&cases, |(penalty, wait, script)| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(never_rewarded(penalty, wait, &script))
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_says_nothing_changes_no_cost() {
    let mut spied = Spied::new(None, None).await;
    spied
        .play(&Step {
            at: 0,
            end: End::Ok,
            took: 40,
            pause: 0,
        })
        .await;
    let before = spied.cost(0);
    let (at_end, after) = spied
        .play(&Step {
            at: 0,
            end: End::Drop,
            took: 1,
            pause: 0,
        })
        .await;
    assert_eq!(at_end, after, "a young drop");
    assert!(before >= after);
}
