//! Least request: of a few candidates, the one with the fewest calls for its weight.

use std::{cmp::Ordering, time::Duration};

use crate::load::Signals;
use crate::policy::{
    Choice, Pick, Policy, Turn, View,
    p2c::{MOST, best_of, best_of_all},
    random::{WeightedTable, member},
};

/// Draws two endpoints at random and takes the one that holds fewer calls for its weight.
///
/// The candidates are distinct, and drawn in proportion to their effective weights. Taken is
/// the one with the least *calls in flight ÷ effective weight*, compared exactly; of equal
/// ones the first that was drawn. So without load the shares are the weights', whatever they
/// are, and under load every endpoint holds calls in proportion to its weight. (Mitzenmacher,
/// "The power of two choices in randomized load balancing", 2001.)
///
/// In flight is whatever was sent and has not ended, and calls that wait for the endpoint to
/// become ready. When a call ends: see [`Builder::judge`](crate::Builder::judge). An endpoint that
/// fails at once holds few calls and so looks good until it is ejected: where ejections are off, or
/// limited, or failures come now and then, have failures count with [`penalty`](Self::penalty).
///
/// Cost per pick: one `fetch_add`, a look-up for each choice, and one look at each
/// candidate, whatever the number of endpoints. Cost per rebuild: O(n). Memory: at most 16
/// bytes per endpoint.
///
/// ```
/// use counterpoise::{discover, policy::LeastRequest, Balance, Direct, Endpoint};
///
/// let endpoints = discover::list([
///     ("a", Endpoint::new(Direct("a service"))),
///     ("b", Endpoint::new(Direct("a service"))),
/// ]);
/// let balance = Balance::new(endpoints, LeastRequest::new());
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[must_use]
pub struct LeastRequest {
    choices: Option<usize>,
    penalty: Option<Duration>,
}

/// Calls for a weight: compared as fractions, exactly.
struct Load {
    /// Whether the request had better not go there.
    reluctant: bool,
    calls: u64,
    weight: u64,
}

impl LeastRequest {
    /// Creates the policy with two choices and without a penalty.
    pub const fn new() -> Self {
        Self { choices: Some(2), penalty: None }
    }

    /// Sets how many candidates are drawn: 1 to 16; others count as the nearest. Default: 2.
    ///
    /// More find idle endpoints more surely, and have many clients rush to the same one.
    pub const fn choices(mut self, choices: usize) -> Self {
        let choices = if choices > MOST { MOST } else { choices };
        self.choices = Some(if choices < 1 { 1 } else { choices });
        self
    }

    /// Looks at every endpoint, rather than at a few: O(n) per pick. Of equal ones each
    /// is taken in proportion to its weight. An idle endpoint is preferred to all that hold a
    /// call, also one that starts slowly.
    pub const fn full_scan(mut self) -> Self {
        self.choices = None;
        self
    }

    /// Sets for how long each failed or pushed-back call counts as one in flight: the number
    /// fades to 1/e in this time, and is rounded. 10 s suits most. Default: zero, it does not.
    ///
    /// Of less than a millisecond counts as a millisecond, and of more than a year as a year.
    pub const fn penalty(mut self, decay: Duration) -> Self {
        self.penalty = if decay.is_zero() { None } else { Some(decay) };
        self
    }

    #[inline]
    fn load(&self, table: &WeightedTable, turn: &Turn<'_>, place: usize) -> Load {
        let index = turn.eligible().get(place).map_or(usize::MAX, |&index| index as usize);
        let failures = if self.penalty.is_some() { turn.failures(index) } else { 0 };
        Load {
            reluctant: !turn.welcomes(index),
            calls: turn.in_flight(index).saturating_add(failures),
            weight: table.span(place).1,
        }
    }
}

impl Default for LeastRequest {
    fn default() -> Self {
        Self::new()
    }
}

impl Policy for LeastRequest {
    type Table = WeightedTable;

    fn compile(&self, view: &View<'_>, _previous: Option<&WeightedTable>) -> WeightedTable {
        WeightedTable::new(view.shares())
    }

    fn signals(&self) -> Option<Signals> {
        self.penalty.map(Signals::failures)
    }
}

impl<Req: ?Sized> Pick<Req> for LeastRequest {
    fn pick(&self, table: &WeightedTable, _request: &Req, turn: &Turn<'_>) -> Choice {
        let score = |place| self.load(table, turn, place);
        let place = match (turn.eligible(), self.choices) {
            ([_], _) => 0,
            (_, Some(2)) => best_of::<2, _>(table, 2, turn, |_| true, score),
            (_, Some(choices)) => best_of::<MOST, _>(table, choices, turn, |_| true, score),
            (_, None) => best_of_all(table, turn, score),
        };
        member(turn, place)
    }
}

impl PartialEq for Load {
    fn eq(&self, other: &Self) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}

impl PartialOrd for Load {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        let over = |a: &Self, b: &Self| u128::from(a.calls) * u128::from(b.weight);
        let by_load = over(self, other).cmp(&over(other, self));
        Some(self.reluctant.cmp(&other.reluctant).then(by_load))
    }
}
