//! Smooth weighted round robin: each endpoint in proportion to its weight, spread evenly.

mod credits;
mod queues;
mod tape;
mod tournament;

use crate::policy::{Choice, Pick, Policy, Turn, View};
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
/// When endpoints join, leave, are ejected or return, or weights change, everybody keeps
/// their credit; newcomers start with none, and what a leaver was owed is spread over the rest
/// by weight. What a leaver was ahead, up to one pick, the next newcomers take over. So nobody
/// bursts and nobody starves, however often the set changes. A fresh
/// balancer starts with credits within half a pick, scattered at random, so that many
/// clients do not march in step; with [`starting_at`](crate::Builder::starting_at) it starts
/// without credit, as nginx does.
///
/// # Cost
///
/// A pick costs one `fetch_add`, and none with a single endpoint. The sequence is made ahead
/// in blocks of 256, by whichever call needs the next one, under a lock that other calls
/// meet only there. Making a pick costs more with the number d of *different* weights, about
/// log d comparisons: equal weights form a queue of which only the head is looked at, and
/// the heads play a tournament. Cycles of up to 65,536 picks are made once and then repeat;
/// longer ones are compiled anew every 65,536 picks.
///
/// A rebuild costs O(n) for the writer, and O(n log n) for the first call after it, which
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

/// The table of [`SmoothWeighted`].
#[derive(Debug)]
pub struct SmoothTable {
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
    type Table = SmoothTable;

    fn compile(&self, view: &View<'_>, previous: Option<&SmoothTable>) -> SmoothTable {
        SmoothTable::new(view, view.shares(), previous)
    }
}

impl<Req: ?Sized> Pick<Req> for SmoothWeighted {
    fn pick(&self, table: &SmoothTable, _request: &Req, turn: &Turn<'_>) -> Choice {
        table.pick(turn)
    }
}

impl SmoothTable {
    /// Compiles the eligible endpoints with these shares: index, id and weight of each.
    pub(super) fn new(
        view: &View<'_>,
        shares: impl Iterator<Item = (u32, u64, u64)>,
        previous: Option<&Self>,
    ) -> Self {
        let former = previous.map(|table| &table.tape).filter(|tape| !tape.is_empty());
        if let Some(tape) = former.filter(|_| view.eligible().is_empty()) {
            // Nobody can be picked: what they are owed is kept until somebody can.
            return Self { tape: Arc::clone(tape) };
        }
        let start = match (former, view.random_start()) {
            (Some(tape), _) => {
                // Settled, so that tapes nobody has picked from do not form a chain.
                tape.start();
                Start::Former(Arc::clone(tape))
            }
            (None, Some(seed)) => Start::Scattered(seed),
            (None, None) => Start::Nothing,
        };
        let tape = Tape::new(Entry::of(shares), start);
        if view.eligible().len() < 2 {
            // Nobody will pick from it: let go of the former one now.
            tape.start();
        }
        Self { tape: Arc::new(tape) }
    }

    /// Returns the same table: picks from one are picks from the other.
    pub(super) fn share(&self) -> Self {
        Self { tape: Arc::clone(&self.tape) }
    }

    #[inline]
    pub(super) fn pick(&self, turn: &Turn<'_>) -> Choice {
        match turn.eligible() {
            [only] => Choice::Member(*only as usize),
            _ => match self.tape.next() {
                Some(index) => Choice::Member(index as usize),
                None => Choice::Renew,
            },
        }
    }
}
