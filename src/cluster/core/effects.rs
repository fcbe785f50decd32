//! The effects of an input.

use crate::{
    event::Event,
    health::evidence::{Epoch, State},
};

/// The effects of an input, for the cluster to apply.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// The change to publish.
    pub(crate) change: Change,
    /// Changes of health words, in order.
    pub(crate) words: Vec<(u64, WordChange)>,
    /// The members that have left, in order.
    pub(crate) left: Vec<u64>,
    /// The events, in order; empty without listeners.
    pub(crate) events: Vec<Event>,
    /// The epoch of a trial that has started.
    pub(crate) trial: Option<Epoch>,
    /// Whether the input applied to a member in its present epoch.
    pub(crate) applied: bool,
    /// The latency from which a call is slow, in nanoseconds, if that has changed.
    pub(crate) slow_from: Option<u64>,
}

/// What has changed for picks, in rising order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    #[default]
    Nothing,
    /// The health or the capacity of members has changed.
    Health,
    /// The members, their targets or their weights have changed.
    Members,
}

/// A change of one health word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WordChange {
    /// A new epoch begins in this state.
    Enter(State),
    /// Whether the endpoint is drained: it takes no new calls.
    Drained(bool),
}
