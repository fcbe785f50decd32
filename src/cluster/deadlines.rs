//! The instants from which a call has work to do under the lock.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

use crate::util::time;

/// The deadlines of the cluster, in nanoseconds since `origin`.
///
/// They are set under the lock, and each call reads them without it.
#[derive(Debug)]
pub(crate) struct Deadlines {
    origin: Instant,
    /// The earliest deadline, the only one that each call reads.
    any: AtomicU64,
    /// The publication of gathered transitions.
    publish: AtomicU64,
    /// The next change of a capacity, or the end of an interval.
    moves: AtomicU64,
    /// The first trial of an ejected endpoint.
    trial: AtomicU64,
}

/// No deadline.
const NEVER: u64 = u64::MAX;

impl Deadlines {
    pub(crate) const fn new(origin: Instant) -> Self {
        Self {
            origin,
            any: AtomicU64::new(NEVER),
            publish: AtomicU64::new(NEVER),
            moves: AtomicU64::new(NEVER),
            trial: AtomicU64::new(NEVER),
        }
    }

    pub(crate) fn set(
        &self,
        publish: Option<Instant>,
        moves: Option<Instant>,
        trial: Option<Instant>,
    ) {
        let nanos = |at: Option<Instant>| at.map_or(NEVER, |at| self.nanos(at));
        let [publish, moves, trial] = [publish, moves, trial].map(nanos);
        self.publish.store(publish, Ordering::Release);
        self.moves.store(moves, Ordering::Release);
        self.trial.store(trial, Ordering::Release);
        self.any
            .store(publish.min(moves).min(trial), Ordering::Release);
    }

    /// Returns whether a deadline has passed. Cost: one load while there is none.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.passed(&self.any, now)
    }

    /// Returns the earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        let due = self.any.load(Ordering::Acquire);
        (due != NEVER).then(|| self.origin + Duration::from_nanos(due))
    }

    /// Returns whether a trial is due.
    pub(crate) fn is_trial_due(&self, now: Instant) -> bool {
        self.passed(&self.trial, now)
    }

    /// Returns whether gathered transitions are to be published.
    pub(crate) fn is_publication_due(&self, now: Instant) -> bool {
        self.passed(&self.publish, now)
    }

    /// Returns whether transitions were gathered.
    pub(crate) fn has_gathered(&self) -> bool {
        self.publish.load(Ordering::Acquire) != NEVER
    }

    /// Claims the changes of capacities, if they are due. One call gets the claim, so that the
    /// others do not wait for the lock; it must take the lock and set the deadlines again.
    pub(crate) fn claim_moves(&self, now: Instant) -> bool {
        let due = self.moves.load(Ordering::Acquire);
        let relaxed = Ordering::Relaxed;
        self.passed(&self.moves, now)
            && self
                .moves
                .compare_exchange(due, NEVER, relaxed, relaxed)
                .is_ok()
    }

    #[inline]
    fn passed(&self, deadline: &AtomicU64, now: Instant) -> bool {
        let due = deadline.load(Ordering::Acquire);
        due != NEVER && self.nanos(now) >= due
    }

    #[inline]
    pub(crate) fn nanos(&self, at: Instant) -> u64 {
        time::nanos(at.saturating_duration_since(self.origin)).min(NEVER - 1)
    }
}
