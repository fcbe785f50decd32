//! Envoy's recorded timelines of outlier detection, and what a balancer of ours makes of the
//! same failures. Both become a [`Timeline`], so that one check reads both. Times are in
//! milliseconds.

use counterpoise::{
    Builder, Direct, Health, Outcome, Stats, call::Judge, error::ErrorKind, health::PanicMode,
    observe::EndpointState,
};
use serde_json::Value;
use tokio::time::{Instant, advance};

use crate::{
    bed::{Bed, MILLISECOND, refusals},
    support::{Act, Answer, Broken, Site},
};

const NAMES: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

/// A recorded scenario.
pub(crate) struct Row(Value);

/// Returns the rows about failures in a row.
pub(crate) fn rows() -> Vec<Row> {
    let rows: Vec<_> = all().filter(|row| !row.judges_rates()).collect();
    assert_eq!(rows.len(), 20);
    rows
}

/// Returns the row of this name among those about rates.
pub(crate) fn rate_row(name: &str) -> Row {
    all()
        .find(|row| row.judges_rates() && row.name() == name)
        .unwrap()
}

fn all() -> impl Iterator<Item = Row> {
    let text = include_str!("../../../golden/envoy_outlier.json");
    let file: Value = serde_json::from_str(text).unwrap();
    file["scenarios"]
        .as_array()
        .unwrap()
        .clone()
        .into_iter()
        .map(Row)
}

pub(crate) fn row(name: &str) -> Row {
    rows().into_iter().find(|row| row.name() == name).unwrap()
}

impl Row {
    pub(crate) fn name(&self) -> &str {
        self.0["name"].as_str().unwrap()
    }

    fn number(&self, field: &str) -> u64 {
        self.0[field].as_u64().unwrap()
    }

    pub(crate) fn hosts(&self) -> usize {
        self.number("hosts") as usize
    }

    /// The same with one more action.
    pub(crate) fn with(mut self, action: Value) -> Self {
        self.0["actions"].as_array_mut().unwrap().push(action);
        self
    }

    fn list(&self, field: &str) -> &[Value] {
        self.0[field].as_array().unwrap()
    }

    /// A number of Envoy's settings, if it is given.
    fn rule(&self, field: &str) -> Option<u64> {
        self.0["outlier_detection"][field].as_u64()
    }

    /// A time of Envoy's settings.
    pub(crate) fn time(&self, field: &str) -> u64 {
        let text = self.0["outlier_detection"][field].as_str().unwrap();
        (text.strip_suffix('s').unwrap().parse::<f64>().unwrap() * 1000.0) as u64
    }

    fn judges_rates(&self) -> bool {
        let rates = ["enforcing_success_rate", "enforcing_failure_percentage"];
        rates.iter().any(|rate| self.rule(rate) > Some(0))
    }

    /// Failures in a row that eject. Where 502, 503 and 504 are counted apart, only those.
    pub(crate) fn threshold(&self) -> usize {
        let apart = self.rule("consecutive_gateway_failure");
        apart.or(self.rule("consecutive_5xx")).unwrap() as usize
    }

    /// A 500 is an answer like any other where only gateways can fail.
    fn outcome_of_500(&self) -> Outcome {
        match self.rule("consecutive_gateway_failure") {
            Some(_) => Outcome::Success,
            None => Outcome::Failure,
        }
    }

    /// Whether Envoy's balancer may learn of an ejection a second late.
    pub(crate) fn is_late(&self) -> bool {
        self.0["update_merge_window"] != "0s"
    }

    pub(crate) fn has_panic(&self) -> bool {
        self.number("panic_threshold_percent") > 0
    }

    /// How many hosts Envoy lets be out at once.
    pub(crate) fn limit(&self) -> usize {
        let least = self.0["outlier_detection"]["always_eject_one_host"] == true;
        let share = self.rule("max_ejection_percent").unwrap() as usize * self.hosts() / 100;
        share.max(usize::from(least))
    }

    /// Our settings for the same. The first two periods grow alike: once and twice the base.
    pub(crate) fn health(&self) -> Health {
        Health::new()
            .consecutive_failures(self.threshold() as u32)
            .base_ejection(self.time("base_ejection_time") as u32 * MILLISECOND)
            .max_ejection(self.time("max_ejection_time") as u32 * MILLISECOND)
            .growth(2.0)
            .jitter(0.0)
            .max_ejected(self.rule("max_ejection_percent").unwrap() as f64 / 100.0)
            .panic_below(self.number("panic_threshold_percent") as f64 / 100.0)
            .panic_mode(if self.has_panic() {
                PanicMode::UseAll
            } else {
                PanicMode::Fail
            })
    }
}

/// One call: who got it, if anybody did, and whether the client was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) host: Option<usize>,
    pub(crate) good: bool,
}

#[derive(Debug)]
pub(crate) struct Ejection {
    pub(crate) host: usize,
    /// The call that caused it.
    pub(crate) from: usize,
    /// The first call after it; with us, that is the trial.
    pub(crate) to: Option<usize>,
    began: u64,
    pub(crate) lasted: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Timeline {
    pub(crate) calls: Vec<Call>,
    pub(crate) ejections: Vec<Ejection>,
}

impl Timeline {
    /// Reads what Envoy did.
    pub(crate) fn recorded(row: &Row) -> Self {
        let requests = row.list("requests");
        let calls = requests.iter().map(|request| Call {
            host: request[1].as_u64().map(|host| host as usize),
            good: request[2].as_u64() < Some(500),
        });
        let mut timeline = Self {
            calls: calls.collect(),
            ejections: Vec::new(),
        };
        for event in row.list("events") {
            let (t, host) = (
                event["t"].as_u64().unwrap(),
                event["host"].as_u64().unwrap(),
            );
            let next = requests.partition_point(|request| request[0].as_u64() <= Some(t));
            match event["action"].as_str().unwrap() {
                "eject" => timeline.eject(host as usize, next - 1, t),
                _ => timeline.end(host as usize, next, t),
            }
        }
        timeline
    }

    /// Notes an ejection that showed after this call: its cause is the host's last failure.
    fn eject(&mut self, host: usize, last: usize, now: u64) {
        let failure = Call {
            host: Some(host),
            good: false,
        };
        let from = self.calls[..=last]
            .iter()
            .rposition(|call| *call == failure)
            .unwrap();
        self.ejections.push(Ejection {
            host,
            from,
            to: None,
            began: now,
            lasted: None,
        });
    }

    /// Notes that a host's ejection is over, if it was ejected.
    fn end(&mut self, host: usize, next: usize, now: u64) {
        let out = self
            .ejections
            .iter_mut()
            .find(|out| out.host == host && out.to.is_none());
        if let Some(out) = out {
            (out.to, out.lasted) = (Some(next), Some(now - out.began));
        }
    }

    /// Notes what our last call has changed.
    fn look(&mut self, stats: &Stats, now: u64) {
        let last = self.calls.len() - 1;
        for (host, shown) in stats.endpoints.iter().enumerate() {
            let again = shown.ejections > self.of(host).count() as u64;
            if again || shown.state == EndpointState::Serving {
                self.end(host, last, now);
            }
            if again {
                self.eject(host, last, now);
            }
        }
        assert_eq!(self.out_after(last), stats.counts.ejected);
    }

    /// The ejections of a host.
    pub(crate) fn of(&self, host: usize) -> impl Iterator<Item = &Ejection> {
        self.ejections.iter().filter(move |out| out.host == host)
    }

    /// How many hosts are out after a call.
    pub(crate) fn out_after(&self, call: usize) -> usize {
        let out = |out: &&Ejection| out.from <= call && out.to.is_none_or(|to| call < to);
        self.ejections.iter().filter(out).count()
    }

    /// The calls that an ejection saw go by.
    pub(crate) fn during(&self, out: &Ejection) -> &[Call] {
        &self.calls[out.from + 1..out.to.unwrap_or(self.calls.len())]
    }

    /// How many calls a host has failed since its last success, up to this call.
    pub(crate) fn failures(&self, host: usize, call: usize) -> usize {
        let own = self.calls[..=call]
            .iter()
            .rev()
            .filter(|call| call.host == Some(host));
        own.take_while(|call| !call.good).count()
    }

    pub(crate) fn errors(&self) -> usize {
        self.calls.iter().filter(|call| !call.good).count()
    }
}

/// How many of these calls a host got.
pub(crate) fn share(calls: &[Call], host: usize) -> usize {
    calls.iter().filter(|call| call.host == Some(host)).count()
}

/// Has a balancer live through a row, under the settings that correspond.
pub(crate) async fn replayed(row: &Row) -> Timeline {
    replayed_under(row, row.health()).await
}

/// Has a balancer live through a row: one client, and the hosts change before the call of
/// that time.
pub(crate) async fn replayed_under(row: &Row, health: Health) -> Timeline {
    let builder = Builder::new()
        .health(health)
        .classify_fn(refusals(row.outcome_of_500()));
    let mut bed = Bed::build(&NAMES[..row.hosts()], builder).await;
    // Envoy began at some place of its rotation: here it is reached by calls that go well.
    bed.route(row.list("requests")[0][1].as_u64().unwrap() as usize)
        .await;
    let mut acts = vec![vec![Act::Ok]; row.hosts()];
    let mut timeline = Timeline::default();
    let gap = row.number("request_gap_ms");
    for now in (0..row.list("requests").len() as u64).map(|call| call * gap) {
        let due = |action: &&Value| action[0].as_u64().unwrap().next_multiple_of(gap) == now;
        for action in row.list("actions").iter().filter(due) {
            acts[action[2].as_u64().unwrap() as usize] = pattern(action);
        }
        timeline.calls.push(call(&mut bed, &mut acts).await);
        timeline.look(&bed.balance.stats(), now);
        advance(gap as u32 * MILLISECOND).await;
    }
    timeline
}

/// What a host does from an action on, over and over.
fn pattern(action: &Value) -> Vec<Act> {
    let act = |status: &Value| match status.as_u64().unwrap() {
        200 => Act::Ok,
        500 => Act::Reject,
        503 => Act::Err,
        other => panic!("{other}"),
    };
    match action[1].as_str().unwrap() {
        "open" => vec![Act::Ok],
        "close" => vec![Act::Err],
        "status" => vec![act(&action[3])],
        "pattern" => action[3].as_array().unwrap().iter().map(act).collect(),
        other => panic!("{other}"),
    }
}

/// Makes one call. It takes no time: nobody waits here for a host to be back.
async fn call<J>(bed: &mut Bed<J>, acts: &mut [Vec<Act>]) -> Call
where
    J: Judge<Direct<Site>, (), Answer, Broken, Response = Answer> + Send + 'static,
{
    NAMES
        .iter()
        .zip(&*acts)
        .for_each(|(name, acts)| bed.sites[name].act(acts[0]));
    let (began, answer) = (Instant::now(), bed.call().await);
    assert_eq!(Instant::now(), began);
    let good = matches!(answer, Ok(Answer::From(_)));
    let host = match &answer {
        Ok(Answer::From(name) | Answer::Rejected(name)) => Some(*name),
        Err(error) if error.kind() == ErrorKind::Ejected => None,
        Err(error) => Some(error.endpoint().unwrap()),
    };
    let host = host.map(|name| name.parse::<usize>().unwrap());
    host.iter().for_each(|&host| acts[host].rotate_left(1));
    Call { host, good }
}
