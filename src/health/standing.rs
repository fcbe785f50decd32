//! One endpoint's health as a single atomic word.
//!
//! Whoever admits a call, counts a failure or clears the count touches only this word.
//! The state in it is changed only under the door's mutex, and every change of state
//! begins a new *epoch*: what a call reports counts only in the epoch that admitted it.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of a health epoch: it changes with every ejection and every return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Epoch(u32);

/// Where an endpoint stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// In service.
    Serving,
    /// Out of service until a trial succeeds.
    Ejected,
    /// No longer a member.
    Gone,
    /// Out of service until active checks pass.
    CheckedOut,
}

/// `epoch: 32 | failures: 29 | drained: 1 | state: 2`.
#[derive(Debug, Default)]
pub(crate) struct Standing(AtomicU64);

const STATE: u64 = 0b011;
const DRAINED: u64 = 0b100;
const FAILURES: u32 = 3;
const FAILURES_MASK: u64 = (1 << 29) - 1;
const PERIOD: u32 = 32;

/// The largest count of failures that the word holds.
pub(crate) const MAX_FAILURES: u32 = FAILURES_MASK as u32;

#[derive(Clone, Copy)]
struct Word(u64);

impl Word {
    const fn state(self) -> State {
        match self.0 & STATE {
            0 => State::Serving,
            1 => State::Ejected,
            2 => State::Gone,
            _ => State::CheckedOut,
        }
    }

    const fn failures(self) -> u32 {
        ((self.0 >> FAILURES) & FAILURES_MASK) as u32
    }

    const fn epoch(self) -> Epoch {
        Epoch((self.0 >> PERIOD) as u32)
    }

    const fn is_drained(self) -> bool {
        self.0 & DRAINED != 0
    }

    const fn with_failures(self, failures: u32) -> Self {
        let cleared = self.0 & !(FAILURES_MASK << FAILURES);
        Self(cleared | ((failures as u64) << FAILURES))
    }

    /// The first word of the next epoch: the count starts at zero.
    const fn next(self, state: State) -> Self {
        let epoch = self.epoch().0.wrapping_add(1) as u64;
        let state = match state {
            State::Serving => 0,
            State::Ejected => 1,
            State::Gone => 2,
            State::CheckedOut => 3,
        };
        Self((epoch << PERIOD) | (self.0 & DRAINED) | state)
    }
}

impl Standing {
    #[inline]
    fn load(&self) -> Word {
        Word(self.0.load(Ordering::Acquire))
    }

    fn update(&self, change: impl Fn(Word) -> Option<Word>) -> Option<Word> {
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |w| change(Word(w)).map(|w| w.0))
            .ok()
            .map(Word)
    }

    pub(crate) fn failures(&self) -> u32 {
        self.load().failures()
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.load().epoch()
    }

    pub(crate) fn is_serving(&self) -> bool {
        self.load().state() == State::Serving
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.load().is_drained()
    }

    /// Opens or refuses the gate for one call. `panic` also lets calls through to ejected
    /// endpoints.
    #[inline]
    pub(crate) fn admit(&self, panic: bool) -> Option<Epoch> {
        let word = self.load();
        let open = match word.state() {
            State::Serving => true,
            State::Ejected | State::CheckedOut => panic,
            State::Gone => false,
        };
        (open && !word.is_drained()).then(|| word.epoch())
    }

    /// Notes a success; returns true if it should bring an ejected endpoint back.
    #[inline]
    pub(crate) fn success(&self, epoch: Epoch) -> bool {
        let word = self.load();
        if word.epoch() != epoch {
            return false;
        }
        if word.failures() != 0 {
            let same = |w: Word| w.epoch() == epoch && w.failures() != 0;
            self.update(|w| same(w).then(|| w.with_failures(0)));
        }
        word.state() == State::Ejected
    }

    /// Notes a failure; returns true if the endpoint has failed `threshold` times in a row.
    pub(crate) fn failure(&self, epoch: Epoch, threshold: u32) -> bool {
        let counts = |w: Word| w.epoch() == epoch && w.state() == State::Serving;
        let raised = |w: Word| w.with_failures((w.failures() + 1).min(MAX_FAILURES));
        self.update(|w| counts(w).then(|| raised(w)))
            .is_some_and(|w| raised(w).failures() >= threshold)
    }

    /// Begins a new epoch. Only under the door's mutex.
    pub(crate) fn enter(&self, state: State) {
        self.update(|w| Some(w.next(state)));
    }

    /// Ejects if the endpoint still serves, in the given epoch, with that many failures:
    /// a success may have come in between. Only under the door's mutex.
    pub(crate) fn eject(&self, epoch: Epoch, threshold: u32) -> bool {
        let failed = |w: Word| {
            w.epoch() == epoch && w.state() == State::Serving && w.failures() >= threshold
        };
        self.update(|w| failed(w).then(|| w.next(State::Ejected))).is_some()
    }

    /// Sets whether the endpoint takes new calls at all. Only under the door's mutex.
    pub(crate) fn set_drained(&self, drained: bool) {
        self.update(|w| Some(Word(if drained { w.0 | DRAINED } else { w.0 & !DRAINED })));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_in_its_own_period_only() {
        let standing = Standing::default();
        let old = standing.admit(false).unwrap();
        assert!(!standing.failure(old, 2));
        assert!(standing.failure(old, 2));
        assert!(standing.eject(old, 2));
        assert_eq!(standing.failures(), 0);
        assert!(standing.admit(false).is_none());
        assert!(!standing.failure(old, 1), "a straggler says nothing");
        assert!(!standing.success(old), "a straggler brings nobody back");
        let panic = standing.admit(true).unwrap();
        assert!(!standing.failure(panic, 1));
        assert!(standing.success(panic));
    }

    #[test]
    fn a_success_between_threshold_and_ejection_wins() {
        let standing = Standing::default();
        let epoch = standing.admit(false).unwrap();
        assert!(standing.failure(epoch, 1));
        standing.success(epoch);
        assert!(!standing.eject(epoch, 1));
    }

    #[test]
    fn draining_keeps_period_and_count() {
        let standing = Standing::default();
        let epoch = standing.admit(false).unwrap();
        standing.failure(epoch, 9);
        standing.set_drained(true);
        assert!(standing.admit(true).is_none());
        standing.set_drained(false);
        assert_eq!(standing.admit(false), Some(epoch));
        assert_eq!(standing.failures(), 1);
    }

    #[test]
    fn the_largest_count_and_period_overflow_into_nothing() {
        let standing = Standing(AtomicU64::new(!(STATE | DRAINED)));
        let epoch = standing.admit(false).unwrap();
        assert!(standing.failure(epoch, MAX_FAILURES));
        assert_eq!(standing.failures(), MAX_FAILURES);
        assert_eq!((standing.load().state(), standing.is_drained()), (State::Serving, false));
        standing.enter(State::Ejected);
        assert_eq!((standing.epoch(), standing.failures()), (Epoch(0), 0));
        assert_eq!(standing.load().state(), State::Ejected);
    }
}
