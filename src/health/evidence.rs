//! What the end of a call changes in the words of its endpoint.
//!
//! Each endpoint has one atomic health word. Calls read it at their admission and change it at their
//! end, as the pure function [`weigh`] says. Only the cluster changes the state in the word, under
//! its lock. Each change of state begins a new *epoch*, and the end of a call counts only in the epoch
//! of its admission.

use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use super::report::{Admission, AdmissionKind, End, Epoch, Limits, Report, Verdict};

/// The state of an endpoint's health. The numbers are those in the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Serving = 0,
    /// Ejected until a trial succeeds.
    Ejected = 1,
    /// No longer a member.
    Gone = 2,
    /// Ejected until active checks pass.
    CheckedOut = 3,
}

/// Returns the word after a call has ended, and the report to the cluster.
pub(crate) fn weigh(word: Word, call: Admission, end: End, limits: &Limits) -> (Word, Report) {
    if call.kind == AdmissionKind::Trial {
        return (word, Report::TrialEnded(verdict(end, limits)));
    }
    if end.is_failure(limits) {
        return failure(word, call.epoch, limits);
    }
    match end {
        End::Success if word.epoch() == call.epoch => success(word),
        End::Overload(requested) => (word, Report::PushedBack(requested)),
        _ => (word, Report::Nothing),
    }
}

fn success(word: Word) -> (Word, Report) {
    let report = if word.state() == State::Ejected {
        Report::Recovered
    } else {
        Report::Nothing
    };
    (word.with_failures(0), report)
}

fn failure(word: Word, epoch: Epoch, limits: &Limits) -> (Word, Report) {
    if word.epoch() != epoch || word.state() != State::Serving {
        return (word, Report::Nothing);
    }
    let failures = (word.failures() + 1).min(MAX_FAILURES);
    let report = if failures >= limits.threshold {
        Report::Failed
    } else {
        Report::Nothing
    };
    (word.with_failures(failures), report)
}

fn verdict(end: End, limits: &Limits) -> Verdict {
    if end.is_failure(limits) {
        return Verdict::Failed;
    }
    match end {
        End::Success | End::BodyDropped => Verdict::Passed,
        End::Overload(requested) => Verdict::PushedBack(requested),
        End::Unsent => Verdict::Unsent,
        _ => Verdict::Nothing,
    }
}

impl End {
    /// Returns whether the end is a failure of the endpoint.
    pub(crate) fn is_failure(self, limits: &Limits) -> bool {
        match self {
            Self::Failure => true,
            Self::Dropped(age) => age >= limits.drop_age,
            _ => false,
        }
    }
}

/// The value of a health word: `epoch: 32 | failures: 29 | drained: 1 | state: 2` bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(u64);

const STATE_MASK: u64 = 0b011;
const DRAINED: u64 = 0b100;
const FAILURES_SHIFT: u32 = 3;
const FAILURES_MASK: u64 = (1 << 29) - 1;
const EPOCH_SHIFT: u32 = 32;

/// The greatest count of failures: the 29 bits of the word.
pub(crate) const MAX_FAILURES: u32 = FAILURES_MASK as u32;

impl Word {
    pub(crate) const fn state(self) -> State {
        match self.0 & STATE_MASK {
            0 => State::Serving,
            1 => State::Ejected,
            2 => State::Gone,
            _ => State::CheckedOut,
        }
    }

    pub(crate) const fn failures(self) -> u32 {
        ((self.0 >> FAILURES_SHIFT) & FAILURES_MASK) as u32
    }

    pub(crate) const fn epoch(self) -> Epoch {
        Epoch((self.0 >> EPOCH_SHIFT) as u32)
    }

    pub(crate) const fn is_drained(self) -> bool {
        self.0 & DRAINED != 0
    }

    const fn with_failures(self, failures: u32) -> Self {
        let cleared = self.0 & !(FAILURES_MASK << FAILURES_SHIFT);
        Self(cleared | ((failures as u64) << FAILURES_SHIFT))
    }

    const fn with_drained(self, drained: bool) -> Self {
        Self(if drained {
            self.0 | DRAINED
        } else {
            self.0 & !DRAINED
        })
    }

    /// Returns the first word of the next epoch: the count of failures starts at zero.
    const fn next(self, state: State) -> Self {
        let epoch = self.epoch().next().0 as u64;
        Self((epoch << EPOCH_SHIFT) | (self.0 & DRAINED) | state as u64)
    }
}

/// The health word of one endpoint, shared by the cluster and the calls.
#[derive(Debug, Default)]
pub(crate) struct HealthWord(AtomicU64);

impl HealthWord {
    #[inline]
    pub(crate) fn load(&self) -> Word {
        Word(self.0.load(Ordering::Acquire))
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.load().epoch()
    }

    /// Admits one call, unless the endpoint is drained or not in service. In panic mode ejected
    /// endpoints take calls, too.
    #[inline]
    pub(crate) fn admit(&self, panic: bool) -> Option<Epoch> {
        let word = self.load();
        let open = match word.state() {
            State::Serving => true,
            State::Ejected | State::CheckedOut => panic,
            State::Gone => false,
        };
        if open && !word.is_drained() {
            Some(word.epoch())
        } else {
            None
        }
    }

    /// Weighs the end of a call. Cost: one load, and a compare-and-swap if the word changes.
    #[inline]
    pub(crate) fn end(&self, call: Admission, end: End, limits: &Limits) -> Report {
        let mut word = self.load();
        loop {
            let (next, report) = weigh(word, call, end, limits);
            if next == word {
                return report;
            }
            match self
                .0
                .compare_exchange_weak(word.0, next.0, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return report,
                Err(newer) => word = Word(newer),
            }
        }
    }

    /// Begins a new epoch. Only the cluster calls it, under its lock.
    pub(crate) fn enter(&self, state: State) {
        self.update(|word| word.next(state));
    }

    /// Sets whether the endpoint is drained. Only the cluster calls it, under its lock.
    pub(crate) fn set_drained(&self, drained: bool) {
        self.update(|word| word.with_drained(drained));
    }

    fn update(&self, change: impl Fn(Word) -> Word) {
        let step = |word| Some(change(Word(word)).0);
        let _never_fails = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, step);
    }
}

/// Counts the calls of one endpoint by their ends.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(super) successes: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) overloads: AtomicU64,
    pub(super) neutrals: AtomicU64,
    pub(super) drops: AtomicU64,
}

impl Counters {
    /// Counts the end of a call, unless it is [`End::Unsent`]. A request that was not sent because the
    /// endpoint failed to become ready, or because its code panicked, ends in a failure and is counted.
    #[inline]
    pub(crate) fn count(&self, end: End) {
        let counter = match end {
            End::Success => &self.successes,
            End::Failure => &self.failures,
            End::Overload(_) => &self.overloads,
            End::Neutral => &self.neutrals,
            End::Dropped(_) | End::BodyDropped => &self.drops,
            End::Unsent => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn limits(threshold: u32) -> Limits {
        Limits {
            threshold,
            drop_age: Duration::from_secs(1),
        }
    }

    fn admitted(epoch: Epoch) -> Admission {
        Admission {
            epoch,
            kind: AdmissionKind::Eligible,
        }
    }

    #[test]
    fn ends_count_in_their_own_epoch_only() {
        let word = HealthWord::default();
        let old = admitted(word.admit(false).unwrap());
        assert_eq!(word.end(old, End::Failure, &limits(2)), Report::Nothing);
        assert_eq!(word.end(old, End::Failure, &limits(2)), Report::Failed);
        word.enter(State::Ejected);
        assert_eq!(word.load().failures(), 0);
        assert!(word.admit(false).is_none());
        assert_eq!(word.end(old, End::Failure, &limits(1)), Report::Nothing);
        assert_eq!(word.end(old, End::Success, &limits(1)), Report::Nothing);
        let panic = admitted(word.admit(true).unwrap());
        assert_eq!(word.end(panic, End::Failure, &limits(1)), Report::Nothing);
        assert_eq!(word.end(panic, End::Success, &limits(1)), Report::Recovered);
    }

    #[test]
    fn a_success_clears_the_count_and_a_young_drop_changes_nothing() {
        let word = HealthWord::default();
        let call = admitted(word.admit(false).unwrap());
        word.end(call, End::Failure, &limits(9));
        let young = End::Dropped(Duration::from_millis(999));
        for end in [young, End::Neutral, End::BodyDropped, End::Unsent] {
            assert_eq!(word.end(call, end, &limits(9)), Report::Nothing, "{end:?}");
            assert_eq!(word.load().failures(), 1, "{end:?}");
        }
        word.end(call, End::Dropped(Duration::from_secs(1)), &limits(9));
        assert_eq!(word.load().failures(), 2);
        word.end(call, End::Success, &limits(9));
        assert_eq!(word.load().failures(), 0);
    }

    #[test]
    fn a_trial_changes_no_word_and_its_end_is_reported() {
        let word = HealthWord::default();
        word.enter(State::Ejected);
        let before = word.load();
        let call = Admission {
            epoch: before.epoch(),
            kind: AdmissionKind::Trial,
        };
        for (end, verdict) in [
            (End::Success, Verdict::Passed),
            (End::BodyDropped, Verdict::Passed),
            (End::Failure, Verdict::Failed),
            (End::Dropped(Duration::from_secs(1)), Verdict::Failed),
            (End::Dropped(Duration::ZERO), Verdict::Nothing),
            (End::Neutral, Verdict::Nothing),
            (End::Overload(None), Verdict::PushedBack(None)),
            (End::Unsent, Verdict::Unsent),
        ] {
            assert_eq!(word.end(call, end, &limits(1)), Report::TrialEnded(verdict));
            assert_eq!(word.load(), before);
        }
    }

    #[test]
    fn draining_keeps_epoch_and_count() {
        let word = HealthWord::default();
        let epoch = word.admit(false).unwrap();
        word.end(admitted(epoch), End::Failure, &limits(9));
        word.set_drained(true);
        assert!(word.admit(true).is_none());
        word.set_drained(false);
        assert_eq!(word.admit(false), Some(epoch));
        assert_eq!(word.load().failures(), 1);
    }

    #[test]
    fn the_largest_count_and_epoch_do_not_overflow_into_other_fields() {
        let word = HealthWord(AtomicU64::new(!(STATE_MASK | DRAINED)));
        let call = admitted(word.admit(false).unwrap());
        assert_eq!(
            word.end(call, End::Failure, &limits(MAX_FAILURES)),
            Report::Failed
        );
        assert_eq!(word.load().failures(), MAX_FAILURES);
        assert_eq!(
            (word.load().state(), word.load().is_drained()),
            (State::Serving, false)
        );
        word.enter(State::Ejected);
        assert_eq!((word.epoch(), word.load().failures()), (Epoch(0), 0));
        assert_eq!(word.load().state(), State::Ejected);
    }
}
