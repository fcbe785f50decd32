//! Peak EWMA: of two candidates, the one whose calls are expected to take less time.

use std::{cmp::Ordering, time::Duration};

use super::{
    Members, Needs, PickContext, PickResult, Picker, Policy,
    cutpoints::Cutpoints,
    p2c::{MOST, best_of},
};

/// Draws two endpoints at random and takes the one with the lower cost: the moving latency
/// of its calls, times the calls that it would then hold for its weight.
///
/// # The cost
///
/// *latency × (calls in flight ÷ weight + 1)*, the weight beside the heaviest one's. Costs that
/// differ by less than a sixteenth count as equal, and of equal ones the first that was drawn is
/// taken. The latency is a peak-sensitive moving average of the calls that succeeded: a call that
/// took longer counts at once, one that took less for the time since the last (Finagle's
/// `PeakEwma`).
///
/// A failure never counts as fast: a failed or pushed-back call counts as ten times the usual latency of
/// the whole set and at least twice the greatest of late, or as [`penalty`](Self::penalty); never
/// as less than the present estimate. And for a while it counts as one call more in flight: or
/// under many callers, with dozens of calls elsewhere, an endpoint that holds none because it
/// fails at once would be the cheaper one still. Before any call has succeeded each failure
/// doubles the cost, up to 10 s. A call that was dropped counts as no less than it took, and
/// never lowers anything.
///
/// Without evidence an endpoint's latency fades to half of what is usual in the set, so that one
/// that was penalised, or was slow once, is tried again, and not by all callers at once. A new endpoint begins at the usual latency.
///
/// # Weights and ramps
///
/// The candidates are distinct, and drawn in proportion to their effective weights: so with
/// equal latencies the shares are the weights', and under load every endpoint holds calls in
/// proportion to its own. While an endpoint's capacity is below others', for it starts slowly,
/// say, it is compared as the second candidate in that part of the picks only: however cheap it
/// looks, it gets hardly more than twice its share.
///
/// # Cost of a pick
///
/// One `fetch_add`, two look-ups and the records of two endpoints, whatever the number of
/// endpoints. Each call takes a second clock reading when it ends. Cost per build: O(n).
/// Memory: at most 16 bytes per endpoint. Reading costs changes nothing.
///
/// ```
/// use counterpoise::{discover, policy::PeakEwma, Balance, Direct, Endpoint};
/// use std::time::Duration;
///
/// let endpoints = discover::list([
///     ("a", Endpoint::new(Direct("a service"))),
///     ("b", Endpoint::new(Direct("a service"))),
/// ]);
/// let balance = Balance::new(endpoints, PeakEwma::new().decay(Duration::from_secs(5)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[must_use]
pub struct PeakEwma {
    decay: Duration,
    penalty: Option<Duration>,
}

/// Picks the cheaper of two.
#[derive(Debug)]
#[allow(unnameable_types, reason = "users name it as `<PeakEwma as Policy>::Picker`")]
pub struct PeakEwmaPicker {
    /// By effective weight.
    weights: Cutpoints,
    /// The greatest of these weights.
    greatest: f64,
}

/// What a call would cost, as exactly as a latency is known.
struct Cost {
    /// Whether the member does not accept the request.
    reluctant: bool,
    cost: f64,
}

/// Costs that differ by less than this part are equal.
const NEAR: f64 = 1.0 / 16.0;

impl PeakEwma {
    /// Creates the policy: latencies fade to 1/e in 10 s, and a failure counts as ten times
    /// the usual latency.
    pub const fn new() -> Self {
        Self { decay: Duration::from_secs(10), penalty: None }
    }

    /// Sets in what time a latency fades to 1/e. Default: 10 s. Less than a millisecond counts
    /// as a millisecond, and more than a year as a year.
    pub const fn decay(mut self, decay: Duration) -> Self {
        self.decay = decay;
        self
    }

    /// Sets what latency a failed or pushed-back call counts as, at least. Default: ten times
    /// the usual latency of the whole set, and at least twice the greatest.
    pub const fn penalty(mut self, penalty: Duration) -> Self {
        self.penalty = Some(penalty);
        self
    }
}

impl Default for PeakEwma {
    fn default() -> Self {
        Self::new()
    }
}

impl Policy for PeakEwma {
    type Picker = PeakEwmaPicker;

    fn build(&self, members: &Members<'_>, _previous: Option<&PeakEwmaPicker>) -> PeakEwmaPicker {
        let weights = Cutpoints::new(members.shares());
        let greatest = (0..weights.len()).map(|place| weights.span(place).1).max();
        PeakEwmaPicker { weights, greatest: greatest.unwrap_or(1) as f64 }
    }

    fn needs(&self) -> Needs {
        let latency = Needs::latency(self.decay);
        self.penalty.map_or(latency, |penalty| latency.penalty(penalty))
    }
}

impl PeakEwmaPicker {
    #[inline]
    fn cost(&self, cx: &PickContext<'_>, place: usize) -> Cost {
        let index = cx.eligible().get(place).map_or(usize::MAX, |&index| index as usize);
        let weight = self.weights.span(place).1 as f64;
        let calls = cx.in_flight(index).saturating_add(cx.failures(index));
        let calls = calls as f64 * self.greatest / weight + 1.0;
        Cost { reluctant: !cx.accepts(index), cost: cx.latency_nanos(index) * calls }
    }
}

impl PartialEq for Cost {
    fn eq(&self, other: &Self) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}

impl PartialOrd for Cost {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        let near = (self.cost - other.cost).abs() < NEAR * self.cost.max(other.cost);
        let by_cost = if near { Ordering::Equal } else { self.cost.total_cmp(&other.cost) };
        Some(self.reluctant.cmp(&other.reluctant).then(by_cost))
    }
}

impl<Req: ?Sized> Picker<Req> for PeakEwmaPicker {
    fn pick(&self, _request: &Req, cx: &PickContext<'_>) -> PickResult {
        if let [only] = cx.eligible() {
            return PickResult::Member(*only as usize);
        }
        let random = || cx.draw(MOST as u64, 1 << 16) as u16;
        let attends = |place| {
            let index = cx.eligible().get(place);
            index.is_none_or(|&index| cx.covers(index as usize, random))
        };
        let cost = |place| self.cost(cx, place);
        cx.eligible_at(best_of::<2, _>(&self.weights, 2, cx, attends, cost))
    }
}
