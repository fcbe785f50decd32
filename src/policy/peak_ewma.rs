//! Peak EWMA: of two candidates, the one whose calls are expected to take less time.

use std::{cmp::Ordering, time::Duration};

use crate::load::Signals;
use crate::policy::{
    Choice, Pick, Policy, Turn, View,
    p2c::{MOST, best_of},
    random::{WeightedTable, member},
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
/// Failure is never fast: a failed or pushed-back call counts as ten times the usual latency of
/// the whole set and at least twice the greatest of late, or as [`penalty`](Self::penalty); never
/// as less than the present estimate. And for a while it counts as one call more in flight: or
/// under many callers, who hold dozens of calls elsewhere, an endpoint that holds none because
/// it fails at once would be the cheaper one still. Before any call has succeeded each failure
/// doubles the cost, up to 10 s. A call that was dropped counts as no less than it took, and
/// never lowers anything.
///
/// Nobody is forgotten: without evidence an endpoint's latency fades to half of what is usual
/// in the set, so that one that was penalised, or was slow once, is tried again; and by not so
/// much that everybody rushes there. A new endpoint begins at the usual latency.
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
/// One `fetch_add`, two look-ups and a look at two endpoints, whatever the number of
/// endpoints. Each call takes a second clock reading when it ends. Cost per rebuild: O(n).
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
    signals: Signals,
}

/// The table of [`PeakEwma`].
#[derive(Debug)]
pub struct CostTable {
    /// By effective weight.
    draws: WeightedTable,
    /// The greatest of these weights.
    greatest: f64,
}

/// What a call would cost: no latency is known so well that a hair should decide.
struct Cost {
    /// Whether the request had better not go there.
    reluctant: bool,
    cost: f64,
}

/// Costs that differ by less than this part are equal.
const NEAR: f64 = 1.0 / 16.0;

impl PeakEwma {
    /// Creates the policy: latencies fade to 1/e in 10 s, and a failure counts as ten times
    /// the usual latency.
    pub fn new() -> Self {
        Self { signals: Signals::latency(Duration::from_secs(10)) }
    }

    /// Sets in what time a latency fades to 1/e. Default: 10 s. Less than a millisecond counts
    /// as a millisecond, and more than a year as a year.
    pub fn decay(mut self, decay: Duration) -> Self {
        self.signals = self.signals.decaying(decay);
        self
    }

    /// Sets what latency a failed or pushed-back call counts as, at least. Default: ten times
    /// the usual latency of the whole set, and at least twice the greatest.
    pub const fn penalty(mut self, penalty: Duration) -> Self {
        self.signals = self.signals.penalty(penalty);
        self
    }
}

impl Default for PeakEwma {
    fn default() -> Self {
        Self::new()
    }
}

impl Policy for PeakEwma {
    type Table = CostTable;

    fn compile(&self, view: &View<'_>, _previous: Option<&CostTable>) -> CostTable {
        let draws = WeightedTable::new(view.shares());
        let greatest = (0..draws.len()).map(|place| draws.span(place).1).max();
        CostTable { draws, greatest: greatest.unwrap_or(1) as f64 }
    }

    fn signals(&self) -> Option<Signals> {
        Some(self.signals)
    }
}

impl CostTable {
    #[inline]
    fn score(&self, turn: &Turn<'_>, place: usize) -> Cost {
        let index = turn.eligible().get(place).map_or(usize::MAX, |&index| index as usize);
        let weight = self.draws.span(place).1 as f64;
        let calls = turn.in_flight(index).saturating_add(turn.failures(index));
        let calls = calls as f64 * self.greatest / weight + 1.0;
        Cost { reluctant: !turn.welcomes(index), cost: turn.cost(index) * calls }
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

impl<Req: ?Sized> Pick<Req> for PeakEwma {
    fn pick(&self, table: &CostTable, _request: &Req, turn: &Turn<'_>) -> Choice {
        if let [only] = turn.eligible() {
            return Choice::Member(*only as usize);
        }
        let random = || turn.draw(MOST as u64, 1 << 16) as u16;
        let attends = |place| {
            let index = turn.eligible().get(place);
            index.is_none_or(|&index| turn.covers(index as usize, random))
        };
        let score = |place| table.score(turn, place);
        member(turn, best_of::<2, _>(&table.draws, 2, turn, attends, score))
    }
}
