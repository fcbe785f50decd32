//! Metrics from state, and log events.

use std::{
    collections::BTreeMap,
    fmt::{Debug, Write as _},
    sync::{Arc, Mutex},
};

use counterpoise::{Builder, Outcome, observe::Metrics};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tokio::time::advance;
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
    subscriber::with_default,
};

use crate::{
    bed::{Bed, SECOND, eject3, refusals},
    support::{Act, settle},
};

/// Reports to a recorder of its own; returns what it has, as text.
struct Scrape {
    recorder: DebuggingRecorder,
    metrics: Metrics,
    /// Counters since the start: the recorder forgets them when it is read.
    counters: BTreeMap<String, u64>,
    gauges: BTreeMap<String, f64>,
}

impl Scrape {
    fn new() -> Self {
        let recorder = DebuggingRecorder::new();
        let metrics = Metrics::new("test");
        Self {
            recorder,
            metrics,
            counters: BTreeMap::new(),
            gauges: BTreeMap::new(),
        }
    }

    fn scrape(&mut self, bed: &Bed<impl Clone>) {
        let stats = bed.balance.stats();
        let snapshotter = self.recorder.snapshotter();
        metrics::with_local_recorder(&self.recorder, || self.metrics.report(&stats));
        for (key, _, _, value) in snapshotter.snapshot().into_vec() {
            let labels = key.key().labels().map(|label| label.value().to_owned());
            let labels: Vec<_> = labels.filter(|value| value != "test").collect();
            let name = format!("{} {}", key.key().name(), labels.join(" "));
            let name = name.trim_start_matches("counterpoise_").trim().to_owned();
            match value {
                DebugValue::Counter(more) => *self.counters.entry(name).or_default() += more,
                DebugValue::Gauge(value) => drop(self.gauges.insert(name, value.0)),
                DebugValue::Histogram(_) => panic!("no histograms"),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn counters_and_gauges_are_those_of_the_state() {
    let builder = Builder::new()
        .health(eject3())
        .classify_fn(refusals(Outcome::Overload));
    let mut bed = Bed::build(&["a", "b"], builder).await;
    let mut scrape = Scrape::new();
    bed.route(4).await;
    scrape.scrape(&bed);
    assert_eq!(scrape.counters["calls_total a success"], 2);
    bed.sites["b"].act(Act::Err);
    bed.route(6).await;
    bed.sites["a"].act(Act::Reject);
    bed.route(1).await;
    bed.sites["a"].act(Act::Hang);
    let running = bed.start();
    drop(bed.start());
    scrape.scrape(&bed);
    scrape.scrape(&bed);
    let counter = |name: &str| scrape.counters[name];
    assert_eq!(counter("calls_total a success"), 5);
    assert_eq!(counter("calls_total a overload"), 1);
    assert_eq!(counter("calls_total a dropped"), 1);
    assert_eq!(
        (
            counter("calls_total b failure"),
            counter("ejections_total b")
        ),
        (3, 1)
    );
    let gauge = |name: &str| scrape.gauges[name];
    assert_eq!((gauge("in_flight a"), gauge("in_flight b")), (1.0, 0.0));
    assert_eq!(
        (gauge("effective_weight a"), gauge("effective_weight b")),
        (0.5, 0.0)
    );
    assert_eq!(
        (gauge("endpoints ejected"), gauge("endpoints serving")),
        (1.0, 1.0)
    );
    assert_eq!((gauge("panic"), gauge("waiting")), (0.0, 0.0));
    drop(running);
}

#[tokio::test(start_paused = true)]
async fn whoever_leaves_and_returns_is_counted_on() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    let mut scrape = Scrape::new();
    bed.route(4).await;
    scrape.scrape(&bed);
    bed.handle.remove(&"b");
    settle().await;
    scrape.scrape(&bed);
    assert_eq!(scrape.gauges["effective_weight b"], 0.0);
    bed.handle.insert("b", bed.sites["b"].endpoint());
    settle().await;
    bed.route(2).await;
    scrape.scrape(&bed);
    assert_eq!(scrape.counters["calls_total b success"], 3);
    assert_eq!(scrape.gauges["effective_weight b"], 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_reporter_reports_at_once_and_ends_with_the_balancer() {
    let bed = Bed::new(&["a"], eject3()).await;
    let reporter = tokio::spawn(bed.balance.report(Metrics::new("test"), 10 * SECOND));
    advance(25 * SECOND).await;
    settle().await;
    assert!(!reporter.is_finished());
    drop(bed);
    settle().await;
    assert!(reporter.is_finished());
}

/// Notes events as lines of text.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.0.insert_str(0, &format!("{value:?}")),
            name => write!(self.0, " {name}={value:?}").unwrap(),
        }
    }
}

impl Subscriber for Notes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "counterpoise"
    }

    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}

    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0
            .lock()
            .unwrap()
            .push(format!("{} {}", event.metadata().level(), line.0));
    }

    fn enter(&self, _span: &span::Id) {}

    fn exit(&self, _span: &span::Id) {}
}

#[test]
fn events_are_logged() {
    // While there is only one, tests on other threads would decide for it who is heard.
    let _other = tracing::Dispatch::new(Notes::default());
    let notes = Notes::default();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    with_default(notes.clone(), || {
        runtime.block_on(async {
            let mut bed = Bed::new(&["a", "b"], eject3()).await;
            bed.eject("b").await;
            advance(10 * SECOND).await;
            bed.route(1).await;
            bed.handle.remove(&"b");
            settle().await;
        });
    });
    let want = [
        "INFO endpoint joined endpoint=a weight=1",
        "INFO endpoint joined endpoint=b weight=1",
        "WARN endpoint ejected endpoint=b returns_in=Some(10s) cause=ConsecutiveFailures",
        "DEBUG endpoint on trial endpoint=b",
        "INFO endpoint recovered endpoint=b",
        "INFO endpoint left endpoint=b",
    ];
    assert_eq!(*notes.0.lock().unwrap(), want);
}
