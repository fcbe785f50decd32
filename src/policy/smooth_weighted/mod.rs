//! Smooth weighted round robin: each endpoint in proportion to its weight, spread evenly.

mod credits;
mod queues;
mod tape;
mod tournament;

use std::sync::Arc;

use self::{
    credits::Entry,
    tape::{Start, Tape},
};
use crate::policy::{Members, PickContext, PickResult, Picker, Policy};

/// Smooth weighted round robin: nginx's sequence, pick for pick, without a lock.
///
/// Weights of 4, 2 and 1 give A B A C A B A; 5, 1 and 1 give A A B A C A A. Ties go to the
/// endpoint that joined first.
///
/// # The rule
///
/// Each endpoint has a *credit*. A pick adds to every credit the endpoint's share of one pick (its
/// weight over the sum W), chooses the endpoint of the greatest credit, and subtracts one pick from
/// it. This is the rule of nginx's upstream module, in units of picks.
///
/// # Bounds
///
/// While the eligible endpoints and their weights stay the same, from a start without
/// credit, of n endpoints none is ever *ahead* of its share by more than 1 - 1/n picks, nor
/// *behind* by more than H(n) - 1, where H(n) = 1 + 1/2 + … + 1/n.
///
/// Ahead: credits sum to 0 after each pick and to 1 before, so the greatest is at least 1/n
/// before, and at least 1/n - 1 after it was picked; the others only grew. Behind: let A(k)
/// = 1/(k+1) + … + 1/n. By induction the k greatest credits have a mean of at most A(k): if
/// the endpoint that was picked is among them, their sum has not grown; if not, then before
/// the pick it was at least as great as each of them, so their mean then was at most that of
/// the k + 1 greatest, which is A(k+1) + 1/(k+1) = A(k). For k = 1 this is H(n) - 1.
///
/// Every pick is taken from one sequence exactly once, so this holds under threads too.
///
/// # Changes
///
/// When endpoints join, leave, are ejected or recover, or weights change, each endpoint keeps its
/// credit and new ones start with none. The credit of an endpoint that leaves is spread over the
/// others by weight; if it is negative, the next new endpoints get it, up to one pick. So no endpoint
/// gets a burst and none starves, however often the set changes. A new balancer starts with
/// credits within half a pick, at random, so that the sequences of many clients differ; with
/// [`starting_at`](crate::Builder::starting_at) it starts without credit, as nginx does.
///
/// # Cost
///
/// Per pick: one `fetch_add`, and none with a single endpoint. The call that needs the next block of
/// 256 picks makes it, under a lock that other calls take only there. That costs, for each pick, log d
/// comparisons at d *different* weights: equal weights form a queue, and a tournament compares the
/// heads. Cycles of up to 65,536 picks are made once and repeat; longer ones are built anew every
/// 65,536 picks.
///
/// Per build: O(n), and O(n log n) for the first call after it, which also replays the picks since
/// the last change. Memory: at most 256 KiB for the sequence, and about 150 bytes per endpoint.
///
/// ```
/// use counterpoise::{discover, policy::SmoothWeighted, Balance, Direct, Endpoint};
///
/// let endpoints = discover::list([
///     ("large", Endpoint::new(Direct("a service")).weight(4)),
///     ("small", Endpoint::new(Direct("a service"))),
/// ]);
/// let balance = Balance::new(endpoints, SmoothWeighted::new());
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SmoothWeighted;

/// Picks from a sequence that all picks share.
#[derive(Debug)]
#[allow(
    unnameable_types,
    reason = "users name it as `<SmoothWeighted as Policy>::Picker`"
)]
pub struct SmoothPicker {
    tape: Arc<Tape>,
}

impl SmoothWeighted {
    /// Creates the policy.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

impl Policy for SmoothWeighted {
    type Picker = SmoothPicker;

    fn build(&self, members: &Members<'_>, previous: Option<&SmoothPicker>) -> SmoothPicker {
        SmoothPicker::new(members, members.shares(), previous)
    }
}

impl<Req: ?Sized> Picker<Req> for SmoothPicker {
    fn pick(&self, _request: &Req, cx: &PickContext<'_>) -> PickResult {
        self.next(cx)
    }
}

impl SmoothPicker {
    /// Builds the sequence of the eligible endpoints by their shares: index, id and weight of each.
    pub(super) fn new(
        members: &Members<'_>,
        shares: impl Iterator<Item = (u32, u64, u64)>,
        previous: Option<&Self>,
    ) -> Self {
        let former = previous
            .map(|picker| &picker.tape)
            .filter(|tape| !tape.is_empty());
        if let Some(tape) = former
            && members.eligible().is_empty()
        {
            // With no endpoint eligible, the credits are kept.
            return Self {
                tape: Arc::clone(tape),
            };
        }
        let start = match (former, members.random_start()) {
            (Some(tape), _) => {
                // Computed now, so that tapes without a pick do not form a chain.
                tape.start();
                Start::Former(Arc::clone(tape))
            }
            (None, Some(seed)) => Start::Scattered(seed),
            (None, None) => Start::Nothing,
        };
        let tape = Tape::new(Entry::of(shares), start);
        if members.eligible().len() < 2 {
            // This tape has no picks, so it releases the former one now.
            tape.start();
        }
        Self {
            tape: Arc::new(tape),
        }
    }

    /// Returns the same picker: picks from one are picks from the other.
    pub(super) fn share(&self) -> Self {
        Self {
            tape: Arc::clone(&self.tape),
        }
    }

    /// Returns the next pick of the sequence.
    #[inline]
    pub(super) fn next(&self, cx: &PickContext<'_>) -> PickResult {
        match cx.eligible() {
            [only] => PickResult::Member(*only as usize),
            _ => match self.tape.next() {
                Some(index) => PickResult::Member(index as usize),
                None => PickResult::Renew,
            },
        }
    }
}
