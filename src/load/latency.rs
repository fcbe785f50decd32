//! What is measured, and what it says: costs and failures that fade.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    health::evidence::End,
    load::{Kind, Signals, Window},
};
use crate::{
    load::decay::{Decay, Fading},
    util::time::nanos,
};

/// What one balancer measures.
#[derive(Debug)]
pub(crate) struct Meter {
    origin: Instant,
    signals: Option<Signals>,
    decay: Decay,
    /// The usual latency of calls that succeed, in nanoseconds, as the bits of a double.
    usual: AtomicU64,
    usual_at: AtomicU64,
    /// The greatest latency of those: no endpoint's moving latency is above it by much, unless
    /// for failure.
    peak: Fading,
    /// Whether windows are kept, and from which latency on a call in them is a slow one.
    watches: bool,
    slow_from: AtomicU64,
}

/// What is measured of one endpoint.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    cost: Fading,
    failures: Fading,
    /// Up to when evidence has come.
    seen: AtomicU64,
}

/// Of the set's usual latency, what an endpoint without evidence comes to count as: less
/// than the others, so that somebody tries it, and not so much less that all do.
const UNKNOWN: f64 = 0.5;

/// Of the usual latency, how much a failure counts as.
const PENALTY: f64 = 10.0;

/// Into so many parts is the decay time cut: of the calls within one, only peaks and the first
/// are taken in. So under load a call mostly reads, and writes nothing.
const GRAINS: f64 = 4096.0;

/// Before any call has succeeded, everybody is alike.
const FIRST: f64 = 1e6;

/// And nobody's failures count as more.
const MOST: f64 = 1e10;

impl Meter {
    pub(crate) fn new(signals: Option<Signals>, watches: bool, now: Instant) -> Option<Self> {
        (signals.is_some() || watches).then(|| Self {
            origin: now,
            signals,
            decay: Decay::new(signals.map_or(1e10, |signals| signals.decay.as_nanos() as f64)),
            usual: AtomicU64::new(0),
            usual_at: AtomicU64::new(0),
            peak: Fading::default(),
            watches,
            slow_from: AtomicU64::new(u64::MAX),
        })
    }

    #[inline]
    fn since_origin(&self, at: Instant) -> u64 {
        nanos(at.saturating_duration_since(self.origin))
    }

    fn usual(&self) -> f64 {
        let usual = f64::from_bits(self.usual.load(Ordering::Relaxed));
        if usual > 0.0 { usual } else { FIRST }
    }

    pub(crate) fn has_latency(&self) -> bool {
        self.signals.is_some_and(|signals| signals.kind == Kind::Latency)
    }

    /// Returns the record of an endpoint that joins now.
    pub(crate) fn start(&self, now: Instant) -> Pace {
        Pace { seen: AtomicU64::new(self.since_origin(now)), ..Pace::default() }
    }

    /// Returns what a call to the endpoint costs, in nanoseconds: its moving latency, as if
    /// since the last evidence there had been calls of half the usual latency. Without any
    /// evidence it begins at the usual latency.
    #[inline]
    pub(crate) fn cost(&self, pace: &Pace, now: Instant) -> f64 {
        self.cost_at(pace, self.since_origin(now))
    }

    #[inline]
    fn cost_at(&self, pace: &Pace, now: u64) -> f64 {
        let age = now.saturating_sub(pace.seen.load(Ordering::Relaxed));
        let (fade, usual) = (self.decay.left(age as f64), self.usual());
        let evidence = match pace.cost.is_nothing() {
            true => usual * fade,
            false => pace.cost.at(now, self.decay),
        };
        evidence + UNKNOWN * usual * (1.0 - fade)
    }

    /// Returns how many failed calls count as load still.
    pub(crate) fn failures(&self, pace: &Pace, now: Instant) -> u64 {
        if pace.failures.is_nothing() {
            return 0;
        }
        pace.failures.at(self.since_origin(now), self.decay).round() as u64
    }

    /// Notes the end of a call; in a window too, if it counts there.
    pub(crate) fn note(
        &self,
        pace: &Pace,
        window: Option<&Window>,
        end: End,
        took: Duration,
        now: Instant,
    ) {
        let took = nanos(took).max(1);
        if let Some(window) = window.filter(|_| self.watches) {
            window.note(end, took, self.slow_from.load(Ordering::Relaxed));
        }
        let Some(signals) = self.signals else { return };
        let now = self.since_origin(now);
        if self.is_load(end) {
            pace.failures.update(now, self.decay, |left| left + 1.0);
        }
        if signals.kind == Kind::Latency {
            self.note_latency(pace, end, took as f64, now, signals.penalty);
        }
    }

    /// Returns whether such a call counts as load for a while. Beside latency a push-back does
    /// not: it is slow already, and the capacity sinks.
    fn is_load(&self, end: End) -> bool {
        match end {
            End::Failure => true,
            End::Overload(_) => !self.has_latency(),
            _ => false,
        }
    }

    /// Returns whether the end of such a call is measured: else nobody need read a clock.
    #[inline]
    pub(crate) fn minds(&self, end: End) -> bool {
        self.watches || self.is_load(end) || self.has_latency()
    }

    fn note_latency(&self, pace: &Pace, end: End, took: f64, now: u64, penalty: Option<Duration>) {
        // From here on the whole estimate is evidence: also what was added for want of any.
        let estimate = || self.cost_at(pace, now);
        let penalty = || {
            let least = penalty.map(|least| least.as_nanos() as f64);
            least.unwrap_or_else(|| self.penalty(estimate(), now)).max(took)
        };
        let raise = |to: f64| {
            pace.cost.raise(to.max(estimate()), now, self.decay);
            pace.seen.fetch_max(now, Ordering::Relaxed);
        };
        match end {
            End::Success => {
                self.average(pace, took, now);
                self.note_usual(took, now);
                self.peak.raise_by_far(took, now, self.decay);
            }
            // For how long an endpoint wants less is its capacity's business.
            End::Failure | End::Overload(_) => raise(penalty()),
            // It would have taken longer than that.
            End::Dropped(_) | End::BodyDropped if took > estimate() => raise(took),
            End::Dropped(_) | End::BodyDropped | End::Neutral | End::Unsent => {}
        }
    }

    /// Returns what a failure counts as, by the estimate of its endpoint. Before any call has
    /// succeeded nobody knows what much is: ever more, within bounds.
    fn penalty(&self, estimate: f64, now: u64) -> f64 {
        if self.usual.load(Ordering::Relaxed) == 0 {
            return (2.0 * estimate).clamp(PENALTY * FIRST, MOST);
        }
        (PENALTY * self.usual()).max(2.0 * self.peak.at(now, self.decay))
    }

    /// Takes a latency into the moving average: a greater one at once, a smaller one for the
    /// time since the last. (The peak-sensitive average of Finagle's `PeakEwma`.)
    fn average(&self, pace: &Pace, took: f64, now: u64) {
        let grain = self.decay.time() / GRAINS;
        let since = now.saturating_sub(pace.seen.load(Ordering::Relaxed)) as f64;
        if since < grain && pace.cost.exceeds(took, now as f64 - since, self.decay) {
            return;
        }
        // Whoever moves the mark on may speak for the time in between, and nobody else.
        let before = pace.seen.fetch_max(now, Ordering::Relaxed);
        let kept = self.decay.left(now.saturating_sub(before) as f64);
        pace.cost.update(now, self.decay, |faded| {
            let last = faded / kept;
            if took >= last { took } else { faded + took * (1.0 - kept) }
        });
    }

    /// Takes a latency into the average of the whole set, now and then: so that its cache
    /// line is mostly read.
    fn note_usual(&self, took: f64, now: u64) {
        let before = self.usual_at.load(Ordering::Relaxed);
        let usual = f64::from_bits(self.usual.load(Ordering::Relaxed));
        let since = now.saturating_sub(before) as f64;
        if usual > 0.0 && since < self.decay.time() / 64.0 {
            return;
        }
        let relaxed = Ordering::Relaxed;
        if self.usual_at.compare_exchange(before, now, relaxed, relaxed).is_ok() {
            let kept = if usual > 0.0 { self.decay.left(since) } else { 0.0 };
            let next = usual * kept + took * (1.0 - kept);
            self.usual.store(next.to_bits(), relaxed);
        }
    }

    /// Sets from which latency on a call is slow, in nanoseconds.
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
            Self { meter: Meter::new(Some(signals), false, now).unwrap(), now }
        }

        fn pace(&self) -> Pace {
            self.meter.start(self.now)
        }

        fn end(&self, pace: &Pace, end: End, took: Duration) {
            self.meter.note(pace, None, end, took, self.now);
        }

        fn cost(&self, pace: &Pace) -> f64 {
            self.meter.cost(pace, self.now)
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
        let pace = bench.pace();
        bench.end(&pace, End::Success, SECOND / 100);
        assert!(near(bench.cost(&pace), 10.0 * MS));
        bench.end(&pace, End::Success, SECOND);
        assert!(near(bench.cost(&pace), 1000.0 * MS));
        bench.now += 10 * SECOND;
        bench.end(&pace, End::Success, SECOND / 100);
        let kept = (-1.0_f64).exp();
        assert!(near(bench.cost(&pace), 1000.0 * MS * kept + 10.0 * MS * (1.0 - kept)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_average_does_not_depend_on_how_often_it_is_told() {
        let (mut bench, steps) = (bench(), 1_000);
        let [often, once] = [bench.pace(), bench.pace()];
        for pace in [&often, &once] {
            bench.end(pace, End::Success, SECOND);
        }
        for _ in 0..steps {
            bench.now += 10 * SECOND / steps;
            bench.end(&often, End::Success, SECOND / 10);
        }
        bench.end(&once, End::Success, SECOND / 10);
        assert!((bench.cost(&often) / bench.cost(&once) - 1.0).abs() < 1e-3);
    }

    #[tokio::test(start_paused = true)]
    async fn b79_without_evidence_every_cost_becomes_less_than_the_usual() {
        let mut bench = bench();
        let [penalised, steady, new] = [bench.pace(), bench.pace(), bench.pace()];
        bench.end(&penalised, End::Failure, SECOND / 1000);
        assert!(near(bench.cost(&penalised), 5000.0 * MS));
        for _ in 0..120 {
            bench.now += SECOND;
            bench.end(&steady, End::Success, SECOND / 200);
        }
        for (name, pace) in [("penalised", &penalised), ("new", &new)] {
            let cost = bench.cost(pace);
            assert!(2.4 * MS < cost && cost < 2.6 * MS, "{name}: {cost}");
        }
        assert!(near(bench.cost(&steady), 5.0 * MS));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_but_success_lowers_a_cost() {
        let bench = bench();
        let pace = bench.pace();
        bench.end(&pace, End::Success, SECOND);
        for sign in [End::Failure, End::Overload(None), End::BodyDropped, End::Neutral] {
            let before = bench.cost(&pace);
            bench.end(&pace, sign, Duration::ZERO);
            assert!(bench.cost(&pace) >= before, "{sign:?}");
        }
        bench.end(&pace, End::Overload(None), Duration::ZERO);
        assert!(near(bench.cost(&pace), 5_000.0 * MS));
        bench.end(&pace, End::BodyDropped, 90 * SECOND);
        assert!(near(bench.cost(&pace), 90_000.0 * MS), "it took at least as long");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_now_and_then_do_not_raise_what_is_usual() {
        let mut bench = Bench::new(Signals::latency(10 * SECOND));
        let paces: [Pace; 3] = std::array::from_fn(|_| bench.pace());
        for i in 0..360_000_usize {
            bench.now += SECOND / 100;
            let (pace, took) =
                (&paces[i % 3], if i % 300 == 0 { SECOND / 50 } else { SECOND / 1000 });
            // Only the first of them fails.
            let sign = if i % 102 == 0 { End::Failure } else { End::Success };
            bench.end(pace, sign, took);
            let costs = paces.each_ref().map(|pace| bench.cost(pace));
            // Twice the peak of 20 ms, and a sixteenth for rounding.
            assert!(costs.iter().all(|&cost| 0.5 * MS < cost && cost < 42.5 * MS), "{costs:?}");
            assert!(sign == End::Success || costs[i % 3] >= costs.into_iter().fold(0.0, f64::max));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_count_as_load_for_a_while() {
        let mut bench = Bench::new(Signals::failures(10 * SECOND));
        let pace = bench.pace();
        bench.end(&pace, End::Failure, SECOND);
        bench.end(&pace, End::Success, SECOND);
        let failures = |bench: &Bench| bench.meter.failures(&pace, bench.now);
        assert_eq!(failures(&bench), 1);
        bench.now += 6 * SECOND;
        assert_eq!(failures(&bench), 1);
        bench.now += SECOND;
        assert_eq!(failures(&bench), 0);
    }
}
