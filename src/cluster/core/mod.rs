//! The core: the deterministic state machine behind everything that changes the set.
//!
//! [`Core::update`] takes an input and the time, and returns effects: what to publish, which
//! health words to set, which events have happened, which endpoints have left. It knows no lock,
//! clock, task or target. The cluster holds it under its one lock and applies the effects.

mod checks;
mod members;
mod outliers;
mod trials;
mod weights;

use std::{collections::BTreeSet, mem, ops::Bound, time::Duration};

use tokio::time::Instant;

pub(crate) use members::MemberChange;

use crate::{
    error::Counts,
    event::Event,
    health::{
        ejection::Ejections,
        evidence::{Epoch, State, Verdict},
        factors::Factors,
        pace::Patience,
        settings::Health,
        tally::Tally,
    },
    policy::Member,
    util::random::Random,
};

/// The members of the set, and what is known of their health.
#[derive(Debug)]
pub(crate) struct Core {
    /// Two columns of one table, in the order of the ids, which is that of joining.
    members: Vec<Member>,
    records: Vec<Record>,
    /// From when on an endpoint waits for its trial.
    queue: BTreeSet<(Instant, u64)>,
    /// The endpoints whose capacity moves with time, and when the next one does.
    moving: BTreeSet<u64>,
    next_move: Option<Instant>,
    /// When endpoints are compared with their peers next.
    next_comparison: Option<Instant>,
    candidates: Candidates,
    health: Health,
    keep_last: bool,
    /// How many members have joined, ever: it orders departures and arrivals.
    joined: u64,
    random: Random,
    /// Whether events are collected.
    listens: bool,
    /// Whether an endpoint was in service after the last input.
    had_eligible: bool,
    effects: Effects,
}

/// What only the core knows of a member.
#[derive(Debug)]
pub(crate) struct Record {
    /// The epoch in the endpoint's health word.
    epoch: Epoch,
    /// How often the service was replaced.
    version: u32,
    pub(crate) ejections: Ejections,
    factors: Factors,
    patience: Patience,
    /// Active checks keep the endpoint out.
    checked_out: bool,
    /// Set once discovery has removed the endpoint: how many had joined then. It leaves at the
    /// end of the batch, unless it is kept.
    left: Option<u64>,
}

/// Counts of the endpoints that have a weight.
#[derive(Debug, Clone, Copy, Default)]
struct Candidates {
    all: usize,
    ejected: usize,
}

/// Something that may change what can be picked.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    /// Discovery has changed the set.
    Batch(Vec<MemberChange>),
    /// An endpoint has failed so many times in a row, in this epoch.
    Failed { id: u64, epoch: Epoch, failures: u32 },
    /// An ejected endpoint that was used all the same has succeeded.
    Recovered { id: u64, epoch: Epoch },
    /// An endpoint pushed back, perhaps for a time.
    PushedBack { id: u64, epoch: Epoch, asked: Option<Duration> },
    /// A call could try an ejected endpoint: its owner if it has one, and none that is excluded
    /// in its epoch and version.
    TrialWanted { owner: Option<u64>, excluded: &'a [(u64, Occasion)] },
    /// The response to a trial has begun.
    TrialAnswered { id: u64, epoch: Epoch },
    /// A trial is over.
    TrialEnded { id: u64, epoch: Epoch, verdict: Verdict },
    /// Active checks have passed, or failed, often enough.
    Checked { id: u64, passes: bool },
    /// The program has set the capacity of the endpoints of this name.
    Capacity { name: &'a str, capacity: u32 },
    /// Time has passed; with the calls of the interval by member, if an interval has ended.
    Time { interval: Option<Vec<Tally>> },
}

/// An epoch of an endpoint, and a version of its service: a call that excludes an endpoint
/// excludes it on this occasion only.
pub(crate) type Occasion = (Epoch, u32);

/// What an input has brought about.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// What is to be published.
    pub(crate) change: Change,
    /// Changes of health words, in order.
    pub(crate) words: Vec<(u64, WordChange)>,
    /// The members that have left, in order.
    pub(crate) left: Vec<u64>,
    /// What has happened, in order; empty unless events are collected.
    pub(crate) events: Vec<Event>,
    /// The endpoint that the call is to try.
    pub(crate) trial: Option<(u64, Epoch)>,
    /// Whether the input concerned a member, in its present epoch.
    pub(crate) applied: bool,
    /// From which latency on, in nanoseconds, a call is slow, if that has changed.
    pub(crate) slow_from: Option<u64>,
}

/// What has changed for picks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    #[default]
    Nothing,
    /// The health or the capacity of members.
    Health,
    /// The members, their targets or their weights.
    Members,
}

/// A change of one health word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WordChange {
    /// A new epoch begins in this state.
    Enter(State),
    /// The endpoint takes no new calls, or takes them again.
    Drained(bool),
}

impl Core {
    pub(crate) fn new(
        health: Health,
        keep_last: bool,
        seed: u64,
        listens: bool,
        now: Instant,
    ) -> Self {
        Self {
            members: Vec::new(),
            records: Vec::new(),
            queue: BTreeSet::new(),
            moving: BTreeSet::new(),
            next_move: None,
            next_comparison: health.compares().then(|| now + health.interval),
            candidates: Candidates::default(),
            health,
            keep_last,
            joined: 0,
            random: Random::seeded(seed),
            listens,
            had_eligible: false,
            effects: Effects::default(),
        }
    }

    /// Applies an input at an instant; returns what it brings about.
    pub(crate) fn update(&mut self, now: Instant, input: Input<'_>) -> Effects {
        match input {
            Input::Batch(changes) => self.apply_batch(changes, now),
            Input::Failed { id, epoch, failures } => self.failed(id, epoch, failures, now),
            Input::Recovered { id, epoch } => self.recovered(id, epoch, now),
            Input::PushedBack { id, epoch, asked } => self.pushed_back(id, epoch, asked, now),
            Input::TrialWanted { owner, excluded } => self.start_trial(owner, excluded, now),
            Input::TrialAnswered { id, epoch } => self.trial_answered(id, epoch, now),
            Input::TrialEnded { id, epoch, verdict } => self.trial_ended(id, epoch, verdict, now),
            Input::Checked { id, passes } => self.checked(id, passes, now),
            Input::Capacity { name, capacity } => self.set_capacity(name, capacity, now),
            Input::Time { interval } => self.advance(interval, now),
        }
        self.note_shortage();
        mem::take(&mut self.effects)
    }

    /// Notes an event if no endpoint is in service any more.
    fn note_shortage(&mut self) {
        let has_eligible = self.candidates.all > self.candidates.ejected;
        if mem::replace(&mut self.had_eligible, has_eligible) && !has_eligible {
            let counts = self.counts();
            self.note(|| Event::NothingEligible { counts });
        }
    }

    fn note(&mut self, event: impl FnOnce() -> Event) {
        if self.listens {
            self.effects.events.push(event());
        }
    }

    /// Records that the change is to be published.
    fn publish(&mut self, change: Change) {
        self.effects.change = self.effects.change.max(change);
    }

    /// Begins a new epoch of a member.
    fn enter(&mut self, i: usize, state: State) {
        self.records[i].epoch = self.records[i].epoch.next();
        self.effects.words.push((self.members[i].id, WordChange::Enter(state)));
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.members.binary_search_by_key(&id, |member| member.id).ok()
    }

    /// Finds a member that is still in the epoch that a report is about.
    fn find_in(&self, id: u64, epoch: Epoch) -> Option<usize> {
        self.find(id).filter(|&i| self.records[i].epoch == epoch)
    }
}

/// What can be read between inputs.
impl Core {
    /// Returns what is known of a member.
    pub(crate) fn get(&self, id: u64) -> Option<(&Member, &Record)> {
        let i = self.find(id)?;
        Some((&self.members[i], &self.records[i]))
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns whether too few endpoints are healthy.
    pub(crate) fn is_panic(&self) -> bool {
        let Candidates { all, ejected } = self.candidates;
        self.health.is_panic(all - ejected, all)
    }

    /// Returns whether ejected endpoints are used, so that any success brings one back.
    fn uses_ejected(&self) -> bool {
        self.is_panic() && !self.health.fails_in_panic()
    }

    /// Returns the indexes of the members that may be picked now, and whether ejected ones are
    /// among them.
    pub(crate) fn eligible(&self) -> (Box<[u32]>, bool) {
        let panic = self.is_panic();
        if panic && self.health.fails_in_panic() {
            return (Box::default(), false);
        }
        let may = |member: &Member| member.is_open() && (panic || member.healthy);
        let indexes = (0_u32..).zip(&self.members).filter(|(_, m)| may(m)).map(|(i, _)| i);
        (indexes.collect(), panic)
    }

    pub(crate) fn counts(&self) -> Counts {
        let members = self.members.len();
        Counts {
            members,
            ejected: self.candidates.ejected,
            drained: members - self.candidates.all,
            unready: 0,
        }
    }

    /// Returns from when on an endpoint waits for its trial.
    pub(crate) fn next_trial(&self) -> Option<Instant> {
        self.queue.first().map(|&(until, _)| until)
    }

    /// Returns the first instant after this one from which on an endpoint waits for its trial.
    pub(crate) fn next_trial_after(&self, instant: Instant) -> Option<Instant> {
        let later = (Bound::Excluded((instant, u64::MAX)), Bound::Unbounded);
        self.queue.range(later).next().map(|&(until, _)| until)
    }

    /// Returns when time moves a capacity or ends an interval, whichever is first.
    pub(crate) fn next_move(&self) -> Option<Instant> {
        self.next_move.into_iter().chain(self.next_comparison).min()
    }

    /// Returns whether an interval has ended, so that its calls are wanted.
    pub(crate) fn is_comparison_due(&self, now: Instant) -> bool {
        self.next_comparison.is_some_and(|at| at <= now)
    }
}

impl Record {
    fn new(now: Instant) -> Self {
        Self {
            epoch: Epoch::default(),
            version: 0,
            ejections: Ejections::new(now),
            factors: Factors::default(),
            patience: Patience::default(),
            checked_out: false,
            left: None,
        }
    }

    /// Returns whether the endpoint stays only because it was among the last.
    pub(crate) const fn is_kept(&self) -> bool {
        self.left.is_some()
    }

    /// Returns whether active checks keep the endpoint out.
    pub(crate) const fn is_checked_out(&self) -> bool {
        self.checked_out
    }

    /// Returns until when the endpoint waits for its trial.
    fn waits_until(&self) -> Option<Instant> {
        if self.checked_out { None } else { self.ejections.due() }
    }
}
