//! The measurement of load: moving latencies, failures and windows of all endpoints.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

use super::{Kind, Measurement, Signals, Window, decay::Decay, usual::Usual};
use crate::{health::evidence::End, util::time::nanos};

/// The measurement of one balancer: its settings, and what all endpoints share.
#[derive(Debug)]
pub(crate) struct Meter {
    origin: Instant,
    signals: Option<Signals>,
    decay: Decay,
    usual: Usual,
    /// Whether calls are counted in windows.
    keeps_windows: bool,
    /// The latency in nanoseconds above which a call counts as slow in a window.
    slow_from: AtomicU64,
}

/// The decay time without signals, 10 s in nanoseconds; only windows are kept then.
const UNUSED_DECAY: f64 = 1e10;

impl Meter {
    pub(crate) fn new(signals: Option<Signals>, keeps_windows: bool, now: Instant) -> Option<Self> {
        if signals.is_none() && !keeps_windows {
            return None;
        }
        let decay = signals.map_or(UNUSED_DECAY, |signals| signals.decay.as_nanos() as f64);
        Some(Self {
            origin: now,
            signals,
            decay: Decay::new(decay),
            usual: Usual::default(),
            keeps_windows,
            slow_from: AtomicU64::new(u64::MAX),
        })
    }

    #[inline]
    fn since_origin(&self, at: Instant) -> u64 {
        nanos(at.saturating_duration_since(self.origin))
    }

    #[inline]
    pub(crate) fn has_latency(&self) -> bool {
        self.signals
            .is_some_and(|signals| signals.kind == Kind::Latency)
    }

    /// Returns the record of an endpoint that joins now.
    pub(crate) fn start(&self, now: Instant) -> Measurement {
        Measurement::new(self.since_origin(now))
    }

    /// Returns the cost of a call to the endpoint: its moving latency, in nanoseconds.
    ///
    /// It begins at the usual latency. Without calls it moves to half the usual latency.
    #[inline]
    pub(crate) fn cost(&self, measurement: &Measurement, now: Instant) -> f64 {
        self.cost_at(measurement, self.since_origin(now))
    }

    #[inline]
    fn cost_at(&self, measurement: &Measurement, now: u64) -> f64 {
        measurement.estimate(self.usual.latency(), now, self.decay)
    }

    /// Returns how many failed calls count as load at an instant.
    #[inline]
    pub(crate) fn failures(&self, measurement: &Measurement, now: Instant) -> u64 {
        if !measurement.has_failures() {
            return 0;
        }
        measurement
            .failures(self.since_origin(now), self.decay)
            .round() as u64
    }

    /// Notes the end of a call, also in the window if there is one.
    pub(crate) fn note(
        &self,
        measurement: &Measurement,
        window: Option<&Window>,
        end: End,
        took: Duration,
        now: Instant,
    ) {
        let took = nanos(took).max(1);
        if let Some(window) = window
            && self.keeps_windows
        {
            window.note(end, took, self.slow_from.load(Ordering::Relaxed));
        }
        let Some(signals) = self.signals else { return };
        let now = self.since_origin(now);
        if self.is_load(end) {
            measurement.add_failure(now, self.decay);
        }
        if signals.kind == Kind::Latency {
            self.note_latency(measurement, end, took as f64, now, signals.penalty);
        }
    }

    /// Returns whether such a call counts as load for a while. With latency a push-back does not: it
    /// raises the latency already, and lowers the capacity.
    fn is_load(&self, end: End) -> bool {
        match end {
            End::Failure => true,
            End::Overload(_) => !self.has_latency(),
            _ => false,
        }
    }

    /// Returns whether the end of such a call is measured, so that it needs a clock reading.
    #[inline]
    pub(crate) fn measures(&self, end: End) -> bool {
        self.keeps_windows || self.is_load(end) || self.has_latency()
    }

    fn note_latency(
        &self,
        measurement: &Measurement,
        end: End,
        took: f64,
        now: u64,
        penalty: Option<Duration>,
    ) {
        match end {
            End::Success => {
                measurement.average(took, now, self.decay);
                self.usual.note(took, now, self.decay);
            }
            End::Failure | End::Overload(_) => {
                let penalty = match penalty {
                    Some(penalty) => penalty.as_nanos() as f64,
                    None => self
                        .usual
                        .penalty(self.cost_at(measurement, now), now, self.decay),
                };
                self.raise(measurement, penalty.max(took), now);
            }
            // The call would have taken longer than until its drop.
            End::Dropped(_) | End::BodyDropped if took > self.cost_at(measurement, now) => {
                self.raise(measurement, took, now);
            }
            End::Dropped(_) | End::BodyDropped | End::Neutral | End::Unsent => {}
        }
    }

    /// Raises the moving latency to a value, or to its present estimate if that is greater.
    fn raise(&self, measurement: &Measurement, to: f64, now: u64) {
        measurement.raise(to.max(self.cost_at(measurement, now)), now, self.decay);
    }

    /// Sets the latency in nanoseconds above which a call is slow.
    pub(crate) fn set_slow_from(&self, latency: u64) {
        self.slow_from.store(latency, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MS: f64 = 1e6;

    struct Bench {
        meter: Meter,
        now: Instant,
    }

    impl Bench {
        fn new(signals: Signals) -> Self {
            let now = Instant::now();
            Self {
                meter: Meter::new(Some(signals), false, now).unwrap(),
                now,
            }
        }

        fn measurement(&self) -> Measurement {
            self.meter.start(self.now)
        }

        fn end(&self, measurement: &Measurement, end: End, took: Duration) {
            self.meter.note(measurement, None, end, took, self.now);
        }

        fn cost(&self, measurement: &Measurement) -> f64 {
            self.meter.cost(measurement, self.now)
        }
    }

    fn bench() -> Bench {
        Bench::new(Signals::latency(10 * SECOND).penalty(5 * SECOND))
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-5 * b.abs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_peak_counts_at_once_and_is_averaged_away() {
        let mut bench = bench();
        let measurement = bench.measurement();
        bench.end(&measurement, End::Success, SECOND / 100);
        assert!(near(bench.cost(&measurement), 10.0 * MS));
        bench.end(&measurement, End::Success, SECOND);
        assert!(near(bench.cost(&measurement), 1000.0 * MS));
        bench.now += 10 * SECOND;
        bench.end(&measurement, End::Success, SECOND / 100);
        let kept = (-1.0_f64).exp();
        assert!(near(
            bench.cost(&measurement),
            1000.0 * MS * kept + 10.0 * MS * (1.0 - kept)
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn the_average_does_not_depend_on_the_number_of_calls() {
        let (mut bench, steps) = (bench(), 1_000);
        let [often, once] = [bench.measurement(), bench.measurement()];
        for measurement in [&often, &once] {
            bench.end(measurement, End::Success, SECOND);
        }
        for _ in 0..steps {
            bench.now += 10 * SECOND / steps;
            bench.end(&often, End::Success, SECOND / 10);
        }
        bench.end(&once, End::Success, SECOND / 10);
        assert!((bench.cost(&often) / bench.cost(&once) - 1.0).abs() < 1e-3);
    }

    #[tokio::test(start_paused = true)]
    async fn b79_without_calls_every_cost_becomes_less_than_the_usual() {
        let mut bench = bench();
        let [penalised, steady, new] = [
            bench.measurement(),
            bench.measurement(),
            bench.measurement(),
        ];
        bench.end(&penalised, End::Failure, SECOND / 1000);
        assert!(near(bench.cost(&penalised), 5000.0 * MS));
        for _ in 0..120 {
            bench.now += SECOND;
            bench.end(&steady, End::Success, SECOND / 200);
        }
        for (name, measurement) in [("penalised", &penalised), ("new", &new)] {
            let cost = bench.cost(measurement);
            assert!(2.4 * MS < cost && cost < 2.6 * MS, "{name}: {cost}");
        }
        assert!(near(bench.cost(&steady), 5.0 * MS));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_but_success_lowers_a_cost() {
        let bench = bench();
        let measurement = bench.measurement();
        bench.end(&measurement, End::Success, SECOND);
        for end in [
            End::Failure,
            End::Overload(None),
            End::BodyDropped,
            End::Neutral,
        ] {
            let before = bench.cost(&measurement);
            bench.end(&measurement, end, Duration::ZERO);
            assert!(bench.cost(&measurement) >= before, "{end:?}");
        }
        bench.end(&measurement, End::Overload(None), Duration::ZERO);
        assert!(near(bench.cost(&measurement), 5_000.0 * MS));
        bench.end(&measurement, End::BodyDropped, 90 * SECOND);
        assert!(
            near(bench.cost(&measurement), 90_000.0 * MS),
            "it took at least as long"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn failures_now_and_then_do_not_raise_what_is_usual() {
        let mut bench = Bench::new(Signals::latency(10 * SECOND));
        let measurements: [Measurement; 3] = std::array::from_fn(|_| bench.measurement());
        for i in 0..360_000_usize {
            bench.now += SECOND / 100;
            let (measurement, took) = (
                &measurements[i % 3],
                if i % 300 == 0 {
                    SECOND / 50
                } else {
                    SECOND / 1000
                },
            );
            // Only calls of the first endpoint fail.
            let end = if i % 102 == 0 {
                End::Failure
            } else {
                End::Success
            };
            bench.end(measurement, end, took);
            let costs = measurements
                .each_ref()
                .map(|measurement| bench.cost(measurement));
            // Twice the peak of 20 ms, and a sixteenth for rounding.
            assert!(
                costs
                    .iter()
                    .all(|&cost| 0.5 * MS < cost && cost < 42.5 * MS),
                "{costs:?}"
            );
            assert!(end == End::Success || costs[i % 3] >= costs.into_iter().fold(0.0, f64::max));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_count_as_load_for_a_while() {
        let mut bench = Bench::new(Signals::failures(10 * SECOND));
        let measurement = bench.measurement();
        bench.end(&measurement, End::Failure, SECOND);
        bench.end(&measurement, End::Success, SECOND);
        let failures = |bench: &Bench| bench.meter.failures(&measurement, bench.now);
        assert_eq!(failures(&bench), 1);
        bench.now += 6 * SECOND;
        assert_eq!(failures(&bench), 1);
        bench.now += SECOND;
        assert_eq!(failures(&bench), 0);
    }
}
