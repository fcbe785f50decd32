//! Random scripts of calls, failures, changes and time, against a plain model of health.

use std::time::Duration;

use counterpoise::{Builder, Health, Outcome, observe::EndpointState};
use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use tokio::time::Instant;

use crate::{
    bed::Bed,
    support::{Act, Answer, Broken},
};

const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];
const PERIOD: Duration = Duration::from_secs(10);
const THRESHOLD: u32 = 2;

#[derive(Debug, Clone)]
enum Step {
    /// Has an endpoint succeed, fail or say nothing from now on.
    Act(&'static str, Act),
    Call(usize),
    Announce(&'static str, u32),
    Remove(&'static str),
    Advance(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let key = || select(&KEYS[..]);
    let act = select(vec![Act::Ok, Act::Err, Act::Err, Act::Reject]);
    prop_oneof![
        3 => (key(), act).prop_map(|(key, act)| Step::Act(key, act)),
        6 => (1..12_usize).prop_map(Step::Call),
        2 => (key(), 0..3_u32).prop_map(|(key, weight)| Step::Announce(key, weight)),
        1 => key().prop_map(Step::Remove),
        3 => (1..12_u64).prop_map(Step::Advance),
    ]
}

/// One endpoint, as the documentation says.
#[derive(Debug, Clone, Copy)]
struct Member {
    key: &'static str,
    weight: u32,
    failures: u32,
    /// Until when it is out, if it is.
    out: Option<Instant>,
    /// Trials in a row that said nothing.
    vain: u32,
}

struct Model {
    /// In the order in which they joined.
    members: Vec<Member>,
    max_ejected: f64,
}

impl Model {
    fn candidates(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.weight > 0)
    }

    fn ejected(&self) -> usize {
        self.candidates()
            .filter(|member| member.out.is_some())
            .count()
    }

    fn is_panic(&self) -> bool {
        self.ejected() > 0 && self.ejected() == self.candidates().count()
    }

    fn limit(&self) -> usize {
        match self.candidates().count() {
            0 | 1 => 0,
            n => ((n as f64 * self.max_ejected) as usize).max(1),
        }
    }

    fn soonest_back(&self) -> Option<Member> {
        let out = self.candidates().filter(|member| member.out.is_some());
        out.min_by_key(|member| member.out).copied()
    }

    /// Returns who is tried by the next call.
    fn due(&self) -> Option<&'static str> {
        let soonest = self
            .soonest_back()
            .filter(|member| member.out <= Some(Instant::now()));
        soonest.map(|member| member.key)
    }

    fn member(&mut self, key: &str) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.key == key)
    }

    fn may_be_called(&mut self, key: &str) -> bool {
        let (due, panic) = (self.due(), self.is_panic());
        let Some(member) = self.member(key) else {
            return false;
        };
        let healthy = member.out.is_none() || panic;
        due.map_or(healthy && member.weight > 0, |due| due == key)
    }

    fn called(&mut self, key: &str, act: Act) {
        let (trial, room) = (self.due() == Some(key), self.ejected() < self.limit());
        let (now, member) = (Instant::now(), self.member(key).unwrap());
        match act {
            Act::Ok => (member.failures, member.out, member.vain) = (0, None, 0),
            Act::Err if trial => (member.out, member.vain) = (Some(now + PERIOD), 0),
            Act::Err if member.out.is_some() => {}
            Act::Err => {
                member.failures += 1;
                if member.failures >= THRESHOLD && room {
                    (member.failures, member.out, member.vain) = (0, Some(now + PERIOD), 0);
                }
            }
            _ if trial => {
                member.out = Some(now + (PERIOD * (1 << member.vain.min(7)) / 100).min(PERIOD));
                member.vain += 1;
            }
            _ => {}
        }
    }

    fn announced(&mut self, key: &'static str, weight: u32) {
        match self.member(key) {
            Some(member) => member.weight = weight,
            None => self.members.push(Member {
                key,
                weight,
                failures: 0,
                out: None,
                vain: 0,
            }),
        }
    }

    fn keep_limit(&mut self) {
        while self.ejected() > self.limit() {
            let Some(soonest) = self.soonest_back() else {
                return;
            };
            let member = self.member(soonest.key).unwrap();
            (member.failures, member.out, member.vain) = (0, None, 0);
        }
    }

    fn check(&self, stats: &counterpoise::Stats) -> Result<(), TestCaseError> {
        prop_assert_eq!(stats.counts.ejected, self.ejected());
        prop_assert!(self.ejected() <= self.limit());
        prop_assert_eq!(stats.panic, self.is_panic());
        prop_assert_eq!(stats.endpoints.len(), self.members.len());
        for (shown, member) in stats.endpoints.iter().zip(&self.members) {
            let state = match (member.weight, member.out) {
                (0, _) => EndpointState::Drained,
                (_, Some(_)) => EndpointState::Ejected,
                (_, None) => EndpointState::Serving,
            };
            let left = member
                .out
                .map(|out| out.saturating_duration_since(Instant::now()));
            prop_assert_eq!((&*shown.name, shown.state), (member.key, state));
            prop_assert_eq!(
                (shown.consecutive_failures, shown.weight, shown.returns_in),
                (member.failures, member.weight, left)
            );
            prop_assert_eq!(shown.in_flight, 0);
        }
        Ok(())
    }
}

fn classify(result: Result<&Answer, &Broken>) -> Outcome {
    match result {
        Ok(Answer::From(_)) => Outcome::Success,
        Ok(Answer::Rejected(_)) => Outcome::Neutral,
        Err(_) => Outcome::Failure,
    }
}

async fn play(max_ejected: f64, script: &[Step]) -> Result<(), TestCaseError> {
    let health = Health::new()
        .consecutive_failures(THRESHOLD)
        .base_ejection(PERIOD);
    let health = health.growth(1.0).jitter(0.0).max_ejected(max_ejected);
    let builder = Builder::new().health(health).classify_fn(classify);
    let mut bed = Bed::build(&KEYS, builder).await;
    let mut model = Model {
        members: Vec::new(),
        max_ejected,
    };
    KEYS.iter().for_each(|key| model.announced(key, 1));
    let mut acts = std::collections::HashMap::new();
    for step in script {
        match *step {
            Step::Act(key, act) => {
                bed.sites[key].act(act);
                acts.insert(key, act);
            }
            Step::Call(calls) => {
                for _ in 0..calls {
                    let key = &*bed.route(1).await;
                    if model.candidates().count() == 0 {
                        prop_assert_eq!(key, "-");
                        continue;
                    }
                    prop_assert!(model.may_be_called(key), "{key}: {:?}", model.members);
                    model.called(key, *acts.get(key).unwrap_or(&Act::Ok));
                    model.check(&bed.balance.stats())?;
                }
            }
            Step::Announce(key, weight) => {
                bed.announce(key, weight).await;
                model.announced(key, weight);
            }
            Step::Remove(key) => {
                bed.remove(key).await;
                model.members.retain(|member| member.key != key);
            }
            Step::Advance(seconds) => tokio::time::advance(Duration::from_secs(seconds)).await,
        }
        model.keep_limit();
        model.check(&bed.balance.stats())?;
    }
    Ok(())
}

#[test]
fn any_script_of_calls_changes_and_time_does_what_the_documentation_says() {
    let config = Config {
        cases: 400,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let cases = (select(vec![0.2, 0.5, 1.0]), vec(step(), 1..60));
    let result = TestRunner::new_with_rng(config, rng).run(&cases, |(max_ejected, script)| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(play(max_ejected, &script))
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
