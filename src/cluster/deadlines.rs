//! From when on a call has something to do at the door.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

use crate::util::time;

/// The door's deadlines: set behind it, and read by every call. In nanoseconds since `origin`.
#[derive(Debug)]
pub(crate) struct Deadlines {
    origin: Instant,
    /// The first of all: while all is well, a call reads only this.
    any: AtomicU64,
    /// What was gathered is to be published.
    publish: AtomicU64,
    /// Time itself has moved something.
    moves: AtomicU64,
    /// Somebody is to be tried.
    trial: AtomicU64,
}

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
        self.any.store(publish.min(moves).min(trial), Ordering::Release);
    }

    /// Returns whether anything is due. Cost: one load while nothing ever is.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.passed(&self.any, now)
    }

    /// Returns when the first thing is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        let due = self.any.load(Ordering::Acquire);
        (due != NEVER).then(|| self.origin + Duration::from_nanos(due))
    }

    /// Returns whether somebody is to be tried.
    pub(crate) fn is_trial_due(&self, now: Instant) -> bool {
        self.passed(&self.trial, now)
    }

    /// Returns whether what was gathered is to be published.
    pub(crate) fn is_publication_due(&self, now: Instant) -> bool {
        self.passed(&self.publish, now)
    }

    /// Returns whether something was gathered.
    pub(crate) fn has_gathered(&self) -> bool {
        self.publish.load(Ordering::Acquire) != NEVER
    }

    /// Claims what time has moved, if that is due: one call does it, and the others need not
    /// wait at the door. It must go to the door, where the deadlines are set anew.
    pub(crate) fn claim_moves(&self, now: Instant) -> bool {
        let due = self.moves.load(Ordering::Acquire);
        let relaxed = Ordering::Relaxed;
        self.passed(&self.moves, now)
            && self.moves.compare_exchange(due, NEVER, relaxed, relaxed).is_ok()
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
