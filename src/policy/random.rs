//! Random choice, with the same chance for each endpoint.

use super::{Members, Needs, PickContext, PickResult, Picker, Policy, cutpoints::Cutpoints};

/// Picks an eligible endpoint at random, each with the same chance.
///
/// The draws come from the balancer's tickets and its [`seed`](crate::Builder::seed), so that
/// they can be repeated. Weights are ignored, except zero; while capacities differ, the chance of an
/// endpoint is in proportion to its capacity. Cost per pick: one `fetch_add`, and none with a single
/// endpoint. Cost per build: O(n), to compare the capacities.
///
/// ```
/// use counterpoise::{discover, policy::Random, Balance, Direct, Endpoint};
///
/// let endpoints = discover::list([("a", Endpoint::new(Direct("a service")))]);
/// let balance = Balance::new(endpoints, Random::new());
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Random;

impl Random {
    /// Creates the policy.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

/// Picks at random.
#[derive(Debug)]
#[allow(
    unnameable_types,
    reason = "users name it as `<Random as Policy>::Picker`"
)]
pub struct RandomPicker {
    /// The capacities, while they differ.
    uneven: Option<Cutpoints>,
}

impl Policy for Random {
    type Picker = RandomPicker;

    fn build(&self, members: &Members<'_>, _previous: Option<&RandomPicker>) -> RandomPicker {
        let uneven = members.is_uneven();
        RandomPicker {
            uneven: uneven.then(|| Cutpoints::new(members.capacities())),
        }
    }

    fn needs(&self) -> Needs {
        Needs::none().quick_build()
    }
}

impl<Req: ?Sized> Picker<Req> for RandomPicker {
    fn pick(&self, _request: &Req, cx: &PickContext<'_>) -> PickResult {
        let place = match (cx.eligible(), &self.uneven) {
            ([_], _) => 0,
            (_, Some(weights)) => weights.owner(cx.random_below(weights.total())),
            (eligible, None) => cx.random_below(eligible.len() as u64) as usize,
        };
        cx.eligible_at(place)
    }
}
