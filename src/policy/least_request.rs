//! Least request: of a few candidates, the one with the fewest calls for its weight.

use std::{cmp::Ordering, time::Duration};

use super::{
    Members, Needs, PickContext, PickResult, Picker, Policy,
    cutpoints::Cutpoints,
    p2c::{MOST, best_of, best_of_all},
};

/// Draws two endpoints at random and takes the one that holds fewer calls for its weight.
///
/// The candidates are distinct, and drawn in proportion to their effective weights. The pick is the
/// one of the least *calls in flight ÷ effective weight*, compared exactly; of equal ones the first
/// that was drawn. So without load the shares are those of the weights, and under load every
/// endpoint holds calls in proportion to its weight. (Mitzenmacher, "The power of two choices in
/// randomized load balancing", 2001.)
///
/// In flight are calls that were sent and have not ended, and calls that wait for the endpoint to
/// become ready; the [judge](crate::Builder::judge) decides when a call ends. An endpoint that
/// fails at once holds few calls, so it gets more until it is ejected. Where ejections are off or
/// limited, or failures are occasional, [`penalty`](Self::penalty) counts failures as load.
///
/// Cost per pick: one `fetch_add`, and for each choice a search in constant time and a load of its
/// counter. Cost per build: O(n). Memory: at most 16 bytes per
/// endpoint.
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

/// Calls over weight, compared exactly as fractions.
struct Load {
    /// Whether the member cannot take the request.
    rejects: bool,
    calls: u64,
    weight: u64,
}

impl LeastRequest {
    /// Creates the policy with two choices and without a penalty.
    pub const fn new() -> Self {
        Self {
            choices: Some(2),
            penalty: None,
        }
    }

    /// Sets how many candidates are drawn.
    ///
    /// Default: 2. Less than 1 counts as 1, more than 16 as 16. More candidates find idle endpoints
    /// more surely, but many clients then send to the same endpoint at once.
    pub const fn choices(mut self, choices: usize) -> Self {
        let choices = if choices > MOST { MOST } else { choices };
        self.choices = Some(if choices < 1 { 1 } else { choices });
        self
    }

    /// Compares all endpoints instead of a few.
    ///
    /// Equal endpoints are picked in proportion to their weights. An idle endpoint precedes all that
    /// hold a call, also during its ramp. Cost: O(n) per pick.
    pub const fn full_scan(mut self) -> Self {
        self.choices = None;
        self
    }

    /// Sets for how long each failed or overloaded call counts as one in flight.
    ///
    /// The number of such calls decays to 1/e in this time and is rounded; 10 s suits most services.
    /// Default: zero, no penalty. Less than a millisecond counts as a millisecond, more than a year as
    /// a year.
    pub const fn penalty(mut self, decay: Duration) -> Self {
        self.penalty = if decay.is_zero() { None } else { Some(decay) };
        self
    }
}

impl Default for LeastRequest {
    fn default() -> Self {
        Self::new()
    }
}

/// Picks the endpoint of the least load.
#[derive(Debug)]
#[allow(
    unnameable_types,
    reason = "users name it as `<LeastRequest as Policy>::Picker`"
)]
pub struct LeastRequestPicker {
    policy: LeastRequest,
    weights: Cutpoints,
}

impl Policy for LeastRequest {
    type Picker = LeastRequestPicker;

    fn build(
        &self,
        members: &Members<'_>,
        _previous: Option<&LeastRequestPicker>,
    ) -> LeastRequestPicker {
        LeastRequestPicker {
            policy: *self,
            weights: Cutpoints::new(members.shares()),
        }
    }

    fn needs(&self) -> Needs {
        self.penalty.map_or(Needs::none(), Needs::failures)
    }
}

impl LeastRequestPicker {
    #[inline]
    fn load(&self, cx: &PickContext<'_>, place: usize) -> Load {
        let index = cx
            .eligible()
            .get(place)
            .map_or(usize::MAX, |&index| index as usize);
        let failures = if self.policy.penalty.is_some() {
            cx.failures(index)
        } else {
            0
        };
        Load {
            rejects: !cx.accepts(index),
            calls: cx.in_flight(index).saturating_add(failures),
            weight: self.weights.span(place).1,
        }
    }
}

impl<Req: ?Sized> Picker<Req> for LeastRequestPicker {
    fn pick(&self, _request: &Req, cx: &PickContext<'_>) -> PickResult {
        let (weights, score) = (&self.weights, |place| self.load(cx, place));
        let place = match (cx.eligible(), self.policy.choices) {
            ([_], _) => 0,
            (_, Some(2)) => best_of::<2, _>(weights, 2, cx, |_| true, score),
            (_, Some(choices)) => best_of::<MOST, _>(weights, choices, cx, |_| true, score),
            (_, None) => best_of_all(weights, cx, score),
        };
        cx.eligible_at(place)
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
        Some(self.rejects.cmp(&other.rejects).then(by_load))
    }
}
