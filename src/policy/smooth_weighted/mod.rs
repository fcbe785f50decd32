//! Smooth weighted round robin: each endpoint in proportion to its weight, spread evenly.

mod credits;
mod queues;
mod tape;
mod tournament;

use crate::policy::{Members, PickContext, PickResult, Picker, Policy};
use credits::Entry;
use std::sync::Arc;

use tape::{Start, Tape};

/// Smooth weighted round robin: nginx's sequence, pick for pick, without a lock.
///
/// Weights of 4, 2 and 1 give A B A C A B A; 5, 1 and 1 give A A B A C A A. Ties go to the
/// endpoint that joined first.
///
/// # The rule
///
/// Each endpoint has a *credit*. A pick adds to every credit the endpoint's share of one
/// pick (its weight over the sum W), takes the endpoint with the greatest credit, and takes
/// one pick off it. This is the rule of nginx's upstream module, in units of picks.
///
/// # How fair
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
/// When endpoints join, leave, are ejected or return, or weights change, each endpoint keeps
/// its credit; newcomers start with none, and what a leaver was owed is spread over the rest
/// by weight. What a leaver was ahead, up to one pick, the next newcomers take over. So no
/// endpoint gets a burst and none starves, however often the set changes. A fresh balancer
/// starts with credits within half a pick, scattered at random, so that the sequences of many
/// clients are not in step; with [`starting_at`](crate::Builder::starting_at) it starts
/// without credit, as nginx does.
///
/// # Cost
///
/// A pick costs one `fetch_add`, and none with a single endpoint. The sequence is made ahead
/// in blocks of 256, by the call that needs the next one, under a lock that other calls
/// take only there. Making a pick costs more with the number d of *different* weights, about
/// log d comparisons: equal weights form a queue of which only the head is compared, and
/// the heads play a tournament. Cycles of up to 65,536 picks are made once and then repeat;
/// longer ones are built anew every 65,536 picks.
///
/// A build costs O(n) for the writer, and O(n log n) for the first call after it, which
/// also replays what was picked since the change before. Memory:
/// at most 256 KiB for the sequence, and about 150 bytes per endpoint.
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
#[allow(unnameable_types, reason = "users name it as `<SmoothWeighted as Policy>::Picker`")]
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
    /// Builds the sequence of the eligible endpoints with these shares: index, id and weight of
    /// each.
    pub(super) fn new(
        members: &Members<'_>,
        shares: impl Iterator<Item = (u32, u64, u64)>,
        previous: Option<&Self>,
    ) -> Self {
        let former = previous.map(|picker| &picker.tape).filter(|tape| !tape.is_empty());
        if let Some(tape) = former
            && members.eligible().is_empty()
        {
            // With nothing to pick, the credits are kept until there is.
            return Self { tape: Arc::clone(tape) };
        }
        let start = match (former, members.random_start()) {
            (Some(tape), _) => {
                // Settled, so that tapes without a pick do not form a chain.
                tape.start();
                Start::Former(Arc::clone(tape))
            }
            (None, Some(seed)) => Start::Scattered(seed),
            (None, None) => Start::Nothing,
        };
        let tape = Tape::new(Entry::of(shares), start);
        if members.eligible().len() < 2 {
            // It will have no picks: the former one is released now.
            tape.start();
        }
        Self { tape: Arc::new(tape) }
    }

    /// Returns the same picker: picks from one are picks from the other.
    pub(super) fn share(&self) -> Self {
        Self { tape: Arc::clone(&self.tape) }
    }

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
