//! Random choice by weight.

use super::{Members, PickContext, PickResult, Picker, Policy, cutpoints::Cutpoints};

/// Picks an eligible endpoint at random, with a chance in proportion to its weight.
///
/// Of the numbers below the sum of the weights each endpoint owns exactly as many as its weight.
/// Cost per pick: one `fetch_add`, and a search that takes two steps on average, whatever the number
/// of endpoints (the cutpoint method of Chen
/// and Asau, "On generating random variates from an empirical distribution", 1974). Cost per
/// build: O(n). Memory: at most 16 bytes per endpoint.
///
/// ```
/// use counterpoise::{discover, policy::WeightedRandom, Balance, Direct, Endpoint};
///
/// let endpoints = discover::list([
///     ("large", Endpoint::new(Direct("a service")).weight(4)),
///     ("small", Endpoint::new(Direct("a service"))),
/// ]);
/// let balance = Balance::new(endpoints, WeightedRandom::new());
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WeightedRandom;

impl WeightedRandom {
    /// Creates the policy.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

/// Picks at random, by weight.
#[derive(Debug)]
#[allow(
    unnameable_types,
    reason = "users name it as `<WeightedRandom as Policy>::Picker`"
)]
pub struct WeightedPicker {
    weights: Cutpoints,
}

impl Policy for WeightedRandom {
    type Picker = WeightedPicker;

    fn build(&self, members: &Members<'_>, _previous: Option<&WeightedPicker>) -> WeightedPicker {
        WeightedPicker {
            weights: Cutpoints::new(members.shares()),
        }
    }
}

impl<Req: ?Sized> Picker<Req> for WeightedPicker {
    fn pick(&self, _request: &Req, cx: &PickContext<'_>) -> PickResult {
        let place = match cx.eligible() {
            [_] => 0,
            _ => self.weights.owner(cx.random_below(self.weights.total())),
        };
        cx.eligible_at(place)
    }
}
