//! The inputs of the core.

use std::time::Duration;

use super::members::MemberChange;
use crate::health::{
    evidence::{Epoch, Verdict},
    tally::Tally,
};

/// Something that may change the set or the health of its members.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    /// Discovery has changed the set.
    Batch(Vec<MemberChange>),
    /// An endpoint has failed so often in a row in this epoch.
    Failed {
        id: u64,
        epoch: Epoch,
        failures: u32,
    },
    /// A call to an ejected endpoint has succeeded in panic mode.
    Recovered { id: u64, epoch: Epoch },
    /// An endpoint has pushed back, perhaps for a duration.
    PushedBack {
        id: u64,
        epoch: Epoch,
        duration: Option<Duration>,
    },
    /// A call could be the trial of this ejected endpoint.
    TrialWanted { id: u64 },
    /// The response of a trial has begun.
    TrialAnswered { id: u64, epoch: Epoch },
    /// A trial has ended.
    TrialEnded {
        id: u64,
        epoch: Epoch,
        verdict: Verdict,
    },
    /// Active checks have passed or failed often enough.
    Checked { id: u64, passes: bool },
    /// The program has set the capacity of the endpoints of this name.
    Capacity { name: &'a str, capacity: u32 },
    /// A deadline has passed. If an interval has ended, with the tallies of its calls by member.
    Time { interval: Option<Vec<Tally>> },
}
