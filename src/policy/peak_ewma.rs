//! Peak EWMA: of two candidates, the one whose calls are expected to take less time.

use std::{cmp::Ordering, time::Duration};

use super::{
    Members, Needs, PickContext, PickResult, Picker, Policy,
    cutpoints::Cutpoints,
    p2c::{MOST, best_of},
};

/// Draws two endpoints at random and picks the one of the lower cost: its moving latency times the
/// calls that it would hold for its weight.
///
/// # The cost
///
/// *latency × (calls in flight ÷ weight + 1)*, with the weight over that of the heaviest endpoint.
/// Costs that differ by less than a sixteenth count as equal; of equal ones the first that was drawn
/// is picked. The latency is a peak-sensitive moving average of the successful calls: a longer call
/// counts in full at once, a shorter one by the time since the last (Finagle's `PeakEwma`).
///
/// A failed or overloaded call counts as ten times the usual latency of the set and at least twice
/// the greatest of the recent past, or as [`penalty`](Self::penalty); in any case as no less than
/// the present estimate. A failed call also counts as one call in flight, and this count decays to 1/e
/// in the time of the decay: otherwise, with many calls at the others, an endpoint that fails at once
/// and so holds none would have the lower cost. Before the first success each failure doubles the
/// latency, up to 10 s. A call that is dropped before its response, at the age of
/// [`drop_counts_after`](crate::Health::drop_counts_after) or later, counts as failed. Any other
/// dropped call counts as no less than it took, and never lowers the latency.
///
/// Without calls an endpoint's latency decays to half of the usual one in the set, so that after a
/// penalty or a slow call it gets calls again, but not those of all callers at once. A new endpoint
/// begins at the usual latency.
///
/// # Weights and ramps
///
/// The candidates are distinct, and drawn in proportion to their effective weights: with equal
/// latencies the shares are those of the weights, and under load every endpoint holds calls in
/// proportion to its weight. While an endpoint's capacity is reduced, in a ramp, say, it is compared
/// as second candidate in that part of the picks only, so it gets hardly more than twice its share,
/// however low its cost.
///
/// # Cost of a pick
///
/// One `fetch_add`, two searches in constant time, and the records of two endpoints. Each call takes
/// a second clock reading when it ends. Cost per build: O(n). Memory: at most 16 bytes per endpoint.
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

/// Picks the endpoint of the lower cost.
#[derive(Debug)]
#[allow(
    unnameable_types,
    reason = "users name it as `<PeakEwma as Policy>::Picker`"
)]
pub struct PeakEwmaPicker {
    /// By effective weight.
    weights: Cutpoints,
    /// The greatest of these weights.
    greatest: f64,
}

/// The cost of a further call, compared with the precision of [`NEAR`].
struct Cost {
    /// Whether the member cannot take the request.
    rejects: bool,
    cost: f64,
}

/// Costs that differ by less than this part count as equal: latencies scatter by more.
const NEAR: f64 = 1.0 / 16.0;

impl PeakEwma {
    /// Creates the policy: latencies decay to 1/e in 10 s, and a failure counts as ten times the usual
    /// latency.
    pub const fn new() -> Self {
        Self {
            decay: Duration::from_secs(10),
            penalty: None,
        }
    }

    /// Sets the time in which a latency decays to 1/e.
    ///
    /// Default: 10 s, as in Finagle. Less than a millisecond counts as a millisecond, more than a year
    /// as a year.
    pub const fn decay(mut self, decay: Duration) -> Self {
        self.decay = decay;
        self
    }

    /// Sets the least latency as which a failed or overloaded call counts.
    ///
    /// Default: ten times the usual latency of the set, and at least twice the greatest.
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
        PeakEwmaPicker {
            weights,
            greatest: greatest.unwrap_or(1) as f64,
        }
    }

    fn needs(&self) -> Needs {
        let latency = Needs::latency(self.decay);
        self.penalty
            .map_or(latency, |penalty| latency.penalty(penalty))
    }
}

impl PeakEwmaPicker {
    #[inline]
    fn cost(&self, cx: &PickContext<'_>, place: usize) -> Cost {
        let index = cx
            .eligible()
            .get(place)
            .map_or(usize::MAX, |&index| index as usize);
        let weight = self.weights.span(place).1 as f64;
        let calls = cx.in_flight(index).saturating_add(cx.failures(index));
        let calls = calls as f64 * self.greatest / weight + 1.0;
        Cost {
            rejects: !cx.accepts(index),
            cost: cx.latency_nanos(index) * calls,
        }
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
        let by_cost = if near {
            Ordering::Equal
        } else {
            self.cost.total_cmp(&other.cost)
        };
        Some(self.rejects.cmp(&other.rejects).then(by_cost))
    }
}

impl<Req: ?Sized> Picker<Req> for PeakEwmaPicker {
    fn pick(&self, _request: &Req, cx: &PickContext<'_>) -> PickResult {
        if let [only] = cx.eligible() {
            return PickResult::Member(*only as usize);
        }
        let random = || cx.draw(MOST as u64, 1 << 16) as u16;
        let is_compared = |place| {
            let index = cx.eligible().get(place);
            index.is_none_or(|&index| cx.covers(index as usize, random))
        };
        let cost = |place| self.cost(cx, place);
        cx.eligible_at(best_of::<2, _>(&self.weights, 2, cx, is_compared, cost))
    }
}
