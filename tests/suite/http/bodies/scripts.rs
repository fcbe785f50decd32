//! Random scripts of bodies that are opened, read, dropped and kept, against a plain model.

use bytes::Bytes;
use counterpoise::{
    Builder, Health,
    call::{AtHead, Judge},
    health::Overload,
    http::{AtBodyEnd, AtFirstData, Status},
};
use hyper::{Response, body::Body};
use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use crate::{
    body_bed::{BodyBed, Echo, Script, endings, endpoint, poll, reply},
    support::{Broken, settle},
};

const NAMES: [&str; 3] = ["a", "b", "c"];
const SCRIPTS: [&str; 14] = [
    "", "=", "d", "=d", "ddt", "=d.dt", "t", "!", "d!", "=dd!", ".d", "p", "dp", "d.d",
];

#[derive(Debug, Clone)]
enum Step {
    /// Calls the endpoint whose turn it is, which answers with a status and a body.
    Open(u16, &'static str),
    Fail,
    /// Polls one of the bodies.
    Poll(prop::sample::Index),
    Drop(prop::sample::Index),
    Forget(prop::sample::Index),
    /// Replaces the service of an endpoint.
    Replace(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    let status = select(vec![200, 200, 200, 404, 500, 429]);
    prop_oneof![
        6 => (status, select(&SCRIPTS[..])).prop_map(|(status, body)| Step::Open(status, body)),
        1 => Just(Step::Fail),
        9 => index().prop_map(Step::Poll),
        3 => index().prop_map(Step::Drop),
        1 => index().prop_map(Step::Forget),
        1 => (0..NAMES.len()).prop_map(Step::Replace),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    Head,
    FirstData,
    BodyEnd,
}

/// What is shown of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Shown {
    in_flight: u64,
    /// In a row.
    failures: u32,
    endings: String,
}

impl Shown {
    /// A judgement of health.
    fn judge(&mut self, outcome: char) {
        match outcome {
            'S' => self.failures = 0,
            'F' => self.failures += 1,
            _ => {}
        }
    }

    fn end(&mut self, ending: char) {
        self.in_flight -= 1;
        self.endings.push(ending);
    }

    fn sorted(&self) -> Self {
        let letters = ["S", "F", "O", "N", "D"];
        let endings = letters.map(|letter| letter.repeat(self.endings.matches(letter).count()));
        Self {
            endings: endings.concat(),
            ..self.clone()
        }
    }
}

/// A call, as the documentation says.
struct Call {
    endpoint: usize,
    script: Vec<char>,
    knows_its_end: bool,
    /// What the head has told, if it was more than "good so far".
    told: Option<char>,
    over: bool,
}

struct Model {
    rule: Rule,
    shown: [Shown; NAMES.len()],
    calls: usize,
}

impl Model {
    fn next(&mut self) -> usize {
        let endpoint = self.calls % NAMES.len();
        self.calls += 1;
        self.shown[endpoint].in_flight += 1;
        endpoint
    }

    fn open(&mut self, status: u16, text: &str) -> Call {
        let endpoint = self.next();
        let outcome = match status {
            500 => 'F',
            429 => 'O',
            _ => 'S',
        };
        let script: Vec<char> = text.trim_start_matches('=').chars().rev().collect();
        let told = (outcome != 'S').then_some(outcome);
        let knows_its_end = text.starts_with('=');
        if let Some(outcome) = told {
            self.shown[endpoint].judge(outcome);
        }
        let mut call = Call {
            endpoint,
            script,
            knows_its_end,
            told,
            over: false,
        };
        if self.rule == Rule::Head || (knows_its_end && call.script.is_empty()) {
            self.close(&mut call, 'S');
        }
        call
    }

    fn close(&mut self, call: &mut Call, outcome: char) {
        if std::mem::replace(&mut call.over, true) {
            return;
        }
        let shown = &mut self.shown[call.endpoint];
        if call.told.is_none() {
            shown.judge(outcome);
        }
        shown.end(call.told.unwrap_or(outcome));
    }

    /// Returns what the body yields.
    fn poll(&mut self, call: &mut Call) -> char {
        let frame = call.script.pop().unwrap_or('$');
        let last = call.knows_its_end && call.script.is_empty();
        match frame {
            '.' => {}
            'd' if self.rule == Rule::FirstData || last => self.close(call, 'S'),
            'd' => {}
            '!' | 'p' => self.close(call, 'F'),
            _ => self.close(call, 'S'),
        }
        frame
    }

    fn check<J: Clone>(&self, bed: &BodyBed<J>) -> Result<(), TestCaseError> {
        for (name, shown) in NAMES.iter().zip(&self.shown) {
            let stats = bed.stats(name);
            let (in_flight, failures) = (stats.in_flight, stats.consecutive_failures);
            let is = Shown {
                in_flight,
                failures,
                endings: endings(&stats),
            };
            prop_assert_eq!(is, shown.sorted(), "{} {:?}", name, self.rule);
        }
        let picks: u64 = NAMES.iter().map(|name| bed.stats(name).picks).sum();
        prop_assert_eq!(picks, self.calls as u64);
        Ok(())
    }
}

async fn play<J, B>(judge: J, rule: Rule, steps: &[Step]) -> Result<(), TestCaseError>
where
    J: Judge<Echo, (), Response<Script>, Broken, Response = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error = Broken> + Unpin,
{
    let health = Health::new()
        .consecutive_failures(1_000_000)
        .overload(Overload::off());
    let builder = Builder::new().health(health).judge(judge);
    let mut bed = BodyBed::new(&NAMES, builder).await;
    let mut model = Model {
        rule,
        shown: std::array::from_fn(|_| Shown::default()),
        calls: 0,
    };
    let mut bodies: Vec<(Call, B)> = Vec::new();
    for step in steps {
        match step {
            Step::Open(status, text) => {
                let body = bed.call(reply(*status, Script::new(text))).await.unwrap();
                bodies.push((model.open(*status, text), body));
            }
            Step::Fail => {
                bed.fail().await;
                let endpoint = model.next();
                model.shown[endpoint].judge('F');
                model.shown[endpoint].end('F');
            }
            Step::Replace(place) => {
                bed.handle.insert(NAMES[*place], endpoint());
                settle().await;
            }
            _ if bodies.is_empty() => {}
            Step::Poll(index) => {
                let index = index.index(bodies.len());
                let (call, body) = &mut bodies[index];
                let frame = model.poll(call);
                prop_assert_eq!(poll(body), frame);
                if frame == 'p' {
                    drop(bodies.swap_remove(index));
                }
            }
            Step::Drop(index) => {
                let (mut call, body) = bodies.swap_remove(index.index(bodies.len()));
                drop(body);
                if !call.over && call.told.is_none() {
                    call.told = Some('D');
                }
                model.close(&mut call, 'D');
            }
            Step::Forget(index) => {
                std::mem::forget(bodies.swap_remove(index.index(bodies.len())).1);
            }
        }
        model.check(&bed)?;
    }
    Ok(())
}

#[test]
fn any_script_of_bodies_ends_every_call_once() {
    let config = Config {
        cases: 300,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let result = TestRunner::new_with_rng(config, rng).run(&vec(step(), 1..80), |steps| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            play(AtHead::new(Status::new()), Rule::Head, &steps).await?;
            play(AtFirstData::new(Status::new()), Rule::FirstData, &steps).await?;
            play(AtBodyEnd::new(Status::new()), Rule::BodyEnd, &steps).await
        })
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
