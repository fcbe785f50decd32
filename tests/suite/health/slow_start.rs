//! Slow start: when a ramp begins and ends, and what it meets on its way.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
    mpsc,
};

use counterpoise::{
    Builder, Health,
    health::SlowStart,
    policy::{Members, Picker, Policy, RoundRobin, SmoothWeighted},
};
use futures::FutureExt;
use tokio::time::advance;
use tower::Service;

use crate::{
    bed::{MILLISECOND, SECOND, eject1, eject3},
    fleet::{Fleet, Job, Running, Sharing, each_policy},
    support::Act,
};

pub(crate) const OLDS: [(&str, u32); 4] = [("a", 1), ("b", 1), ("c", 1), ("d", 1)];

/// Ten seconds, linear, from a tenth on.
pub(crate) fn ramp(health: Health) -> Builder {
    Builder::new().health(health.slow_start(SlowStart::new(10 * SECOND)))
}

pub(crate) fn near(a: f64, b: f64) -> bool {
    // A step of the ramp is a 128th.
    (a - b).abs() < 1.0 / 100.0
}

#[track_caller]
fn assert_factors<P: Policy<Picker: Picker<Job>>>(fleet: &Fleet<P>, want: &[(&str, f64)]) {
    for &(name, factor) in want {
        assert!(
            near(fleet.factor(name), factor),
            "{name}: {} for {factor}",
            fleet.factor(name)
        );
    }
}

// ===== the cases =====

#[tokio::test(start_paused = true)]
async fn b35_nobody_elses_arrival_ends_or_restarts_a_ramp() {
    let mut fleet = Fleet::new(ramp(Health::new()), RoundRobin::new(), &[("a", 1)]).await;
    fleet.join("b", 1).await;
    advance(4 * SECOND).await;
    fleet.join("c", 1).await;
    advance(SECOND).await;
    assert_factors(&fleet, &[("a", 1.0), ("b", 0.5), ("c", 0.1)]);
    fleet.leave("a").await;
    assert_factors(&fleet, &[("b", 0.5), ("c", 0.1)]);
    advance(3 * SECOND).await;
    assert_factors(&fleet, &[("b", 0.8), ("c", 0.4)]);
    advance(2 * SECOND).await;
    assert_factors(&fleet, &[("b", 1.0), ("c", 0.6)]);
}

#[tokio::test(start_paused = true)]
async fn b36_the_first_batch_does_not_ramp_and_later_ones_do_from_their_arrival() {
    let set = [("a", 1), ("b", 1)];
    let mut fleet = Fleet::new(ramp(Health::new()), RoundRobin::new(), &set).await;
    assert_factors(&fleet, &[("a", 1.0), ("b", 1.0)]);
    advance(100 * SECOND).await;
    fleet.join("c", 1).await;
    assert_factors(&fleet, &[("a", 1.0), ("b", 1.0), ("c", 0.1)]);
    advance(3 * SECOND).await;
    fleet.join("c", 1).await;
    assert_factors(&fleet, &[("a", 1.0), ("b", 1.0), ("c", 0.3)]);
    fleet.leave("c").await;
    fleet.join("c", 1).await;
    assert_factors(&fleet, &[("a", 1.0), ("b", 1.0), ("c", 0.1)]);
}

#[tokio::test(start_paused = true)]
async fn b36_remove_and_insert_in_one_batch_is_a_new_member() {
    let set = [("a", 1), ("b", 1)];
    let mut fleet = Fleet::new(ramp(Health::new()), RoundRobin::new(), &set).await;
    fleet.handle.remove(&"b");
    fleet.join("b", 1).await;
    assert_factors(&fleet, &[("a", 1.0), ("b", 0.1)]);
}

#[tokio::test(start_paused = true)]
async fn b37_a_recovered_endpoint_takes_up_its_share_slowly() {
    let set = [("a", 1), ("b", 1)];
    let mut fleet = Fleet::new(ramp(eject3()), RoundRobin::new(), &set).await;
    fleet.eject("b").await;
    advance(10 * SECOND).await;
    fleet.bring_back("b").await;
    advance(2 * SECOND).await;
    let share = fleet.share(120, "b").await;
    assert!((18..=22).contains(&share), "{share}");
    advance(8 * SECOND).await;
    assert_eq!(fleet.share(120, "b").await, 60);
}

#[tokio::test(start_paused = true)]
async fn b30_a_recovered_endpoint_has_its_weight() {
    for (builder, wait) in [(Builder::new().health(eject3()), 0), (ramp(eject3()), 10)] {
        let mut fleet = Fleet::new(builder, SmoothWeighted::new(), &[("a", 9), ("b", 1)]).await;
        fleet.eject("a").await;
        advance(10 * SECOND).await;
        fleet.bring_back("a").await;
        advance(wait * SECOND).await;
        let share = fleet.share(100, "a").await;
        assert!((89..=91).contains(&share), "{share}");
    }
}

async fn drained<P: Policy<Picker: Picker<Job>>>(_: Sharing, policy: P) {
    let mut fleet = Fleet::new(ramp(Health::new()), policy, &OLDS[..2]).await;
    fleet.join("n", 0).await;
    for _ in 0..12 {
        assert_eq!(fleet.share(50, "n").await, 0);
        advance(SECOND).await;
    }
    assert_eq!(fleet.stats("n").effective_weight, 0.0);
}

#[tokio::test(start_paused = true)]
async fn zero_stays_zero_throughout_the_ramp() {
    each_policy!(drained);
}

async fn ends_on_time<P: Policy<Picker: Picker<Job>>>(_: Sharing, policy: P) {
    let mut fleet = Fleet::new(ramp(Health::new()), policy, &OLDS[..1]).await;
    fleet.join("n", 1).await;
    advance(10 * SECOND - MILLISECOND).await;
    fleet.route(1).await;
    assert!(fleet.factor("n") < 1.0, "{}", fleet.factor("n"));
    let generation = fleet.balance.stats().generation;
    advance(MILLISECOND).await;
    assert_eq!(
        (fleet.factor("n"), fleet.balance.stats().generation),
        (1.0, generation)
    );
    fleet.route(1).await;
    assert_eq!(
        (fleet.factor("n"), fleet.balance.stats().generation),
        (1.0, generation + 1)
    );
    // And that is all: nothing is due any more.
    for _ in 0..20 {
        advance(SECOND).await;
        fleet.route(1).await;
    }
    assert_eq!(fleet.balance.stats().generation, generation + 1);
}

#[tokio::test(start_paused = true)]
async fn the_ramp_ends_on_time_exactly_and_costs_nothing_afterwards() {
    each_policy!(ends_on_time);
}

#[tokio::test(start_paused = true)]
async fn a_ramp_moves_in_steps_of_a_128th() {
    let mut fleet = Fleet::new(ramp(Health::new()), RoundRobin::new(), &OLDS[..1]).await;
    fleet.join("n", 1).await;
    let before = fleet.balance.stats().generation;
    for _ in 0..10_000 {
        advance(MILLISECOND).await;
        fleet.route(1).await;
    }
    let steps = fleet.balance.stats().generation - before;
    assert!(
        (115..=128).contains(&steps),
        "{steps}: the floor saves the first dozen"
    );
}

// ===== what the ramp meets on its way =====

#[tokio::test(start_paused = true)]
async fn a_refresh_in_the_middle_changes_nothing() {
    let mut fleet = Fleet::new(ramp(Health::new()), SmoothWeighted::new(), &OLDS[..1]).await;
    fleet.join("n", 1).await;
    for second in 1..=9 {
        advance(SECOND).await;
        fleet.join("n", 1 + second).await;
        fleet.join("a", 1 + second).await;
        assert_factors(&fleet, &[("a", 1.0), ("n", f64::from(second) / 10.0)]);
        let (got, factor) = (fleet.share(200, "n").await as f64, f64::from(second) / 10.0);
        assert!(
            (got - 200.0 * factor / (1.0 + factor)).abs() < 4.0,
            "{got} at {second}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_set_capacity_multiplies_with_the_ramp_and_restarts_nothing() {
    let mut fleet = Fleet::new(ramp(Health::new()), SmoothWeighted::new(), &OLDS[..1]).await;
    fleet.join("n", 1).await;
    advance(4 * SECOND).await;
    let _ = fleet.balance.set_capacity("n", 0.5);
    assert_factors(&fleet, &[("n", 0.2)]);
    advance(2 * SECOND).await;
    assert_factors(&fleet, &[("n", 0.3)]);
    let _ = fleet.balance.set_capacity("n", 0.0);
    assert_eq!((fleet.factor("n"), fleet.share(50, "n").await), (0.0, 0));
    advance(SECOND).await;
    assert_eq!((fleet.factor("n"), fleet.share(50, "n").await), (0.0, 0));
    let _ = fleet.balance.set_capacity("n", 1.0);
    assert_factors(&fleet, &[("n", 0.7)]);
    advance(3 * SECOND).await;
    assert_eq!(fleet.factor("n"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn with_everybody_ejected_the_ramp_starts_at_the_return() {
    let mut fleet = Fleet::new(ramp(eject1()), RoundRobin::new(), &OLDS[..2]).await;
    fleet.eject("a").await;
    fleet.eject("b").await;
    assert!(fleet.balance.stats().panic);
    advance(SECOND).await;
    let first = fleet.route(1).await[0];
    let other = if first == "a" { "b" } else { "a" };
    // It is back, and carries everything: there is nobody else.
    assert_factors(&fleet, &[(first, 0.1)]);
    assert!(!fleet.balance.stats().panic);
    assert_eq!(fleet.share(20, first).await, 20);
    advance(9 * SECOND).await;
    fleet.bring_back(other).await;
    assert_factors(&fleet, &[(first, 0.9), (other, 0.1)]);
    assert_eq!(fleet.share(100, other).await, 10);
}

#[tokio::test(start_paused = true)]
async fn a_second_ejection_restarts_the_ramp() {
    let mut fleet = Fleet::new(ramp(eject1()), RoundRobin::new(), &OLDS[..2]).await;
    fleet.eject("b").await;
    advance(10 * SECOND).await;
    fleet.bring_back("b").await;
    advance(6 * SECOND).await;
    assert_factors(&fleet, &[("b", 0.6)]);
    fleet.eject("b").await;
    assert_eq!(fleet.stats("b").effective_weight, 0.0);
    advance(20 * SECOND).await;
    fleet.bring_back("b").await;
    assert_factors(&fleet, &[("b", 0.1)]);
}

#[tokio::test(start_paused = true)]
async fn aggression_and_floor_bend_the_curve() {
    let rules = [
        SlowStart::new(10 * SECOND).aggression(2.0),
        SlowStart::new(10 * SECOND).aggression(0.5),
        SlowStart::new(10 * SECOND).floor(0.6),
    ];
    let mut factors = Vec::new();
    for rule in rules {
        let builder = Builder::new().health(Health::new().slow_start(rule));
        let mut fleet = Fleet::new(builder, RoundRobin::new(), &OLDS[..1]).await;
        fleet.join("n", 1).await;
        advance(5 * SECOND).await;
        factors.push((fleet.factor("n") * 1_000.0).round());
    }
    assert_eq!(factors, [707.0, 250.0, 600.0]);
}

#[tokio::test(start_paused = true)]
async fn the_trial_is_the_first_step() {
    let mut fleet = Fleet::new(ramp(eject1()), RoundRobin::new(), &OLDS[..2]).await;
    fleet.eject("b").await;
    let calls = fleet.calls("b");
    advance(10 * SECOND).await;
    fleet.act("b", Act::After(SECOND));
    let trial: Running<_> = fleet.start();
    assert_eq!(fleet.share(50, "b").await, 0);
    assert_eq!(fleet.calls("b"), calls + 1);
    trial.await.unwrap();
    assert_factors(&fleet, &[("b", 0.1)]);
}

/// Compiles like round robin, but while a gate is shut it waits there, having said so.
#[derive(Debug)]
struct Waits {
    shut: Arc<AtomicBool>,
    entered: Mutex<mpsc::Sender<()>>,
    gate: Mutex<mpsc::Receiver<()>>,
}

impl Policy for Waits {
    type Picker = <RoundRobin as Policy>::Picker;

    fn build(&self, members: &Members<'_>, previous: Option<&Self::Picker>) -> Self::Picker {
        if self.shut.swap(false, Ordering::SeqCst) {
            self.entered.lock().unwrap().send(()).unwrap();
            let _opened = self.gate.lock().unwrap().recv();
        }
        RoundRobin::new().build(members, previous)
    }
}

/// One call has the next step compiled; others do not wait for that at the door.
#[tokio::test(start_paused = true)]
async fn no_call_waits_while_another_has_a_step_compiled() {
    let (shut, (enter, entered), (open, gate)) = (
        Arc::new(AtomicBool::new(false)),
        mpsc::channel(),
        mpsc::channel(),
    );
    let (entering, gate) = (Mutex::new(enter), Mutex::new(gate));
    let policy = Waits {
        shut: Arc::clone(&shut),
        entered: entering,
        gate,
    };
    let mut fleet = Fleet::new(ramp(Health::new()), policy, &OLDS[..2]).await;
    fleet.join("n", 1).await;
    advance(5 * SECOND).await;
    shut.store(true, Ordering::SeqCst);
    let (done, ended) = mpsc::channel();
    let caller = |mut call: Box<dyn FnMut() + Send>| {
        let runtime = tokio::runtime::Handle::current();
        std::thread::spawn(move || {
            // The clock of this runtime.
            let _entered = runtime.enter();
            call();
        })
    };
    let (mut first, mut second) = (fleet.balance.clone(), fleet.balance.clone());
    let one = caller(Box::new(move || {
        drop(first.call(None).now_or_never().unwrap());
    }));
    entered.recv().unwrap();
    let other = caller(Box::new(move || {
        drop(second.call(None).now_or_never().unwrap());
        done.send(()).unwrap();
    }));
    let in_time = ended.recv_timeout(std::time::Duration::from_secs(10));
    open.send(()).unwrap();
    one.join().unwrap();
    other.join().unwrap();
    in_time.expect("the other call waits at the door");
}
