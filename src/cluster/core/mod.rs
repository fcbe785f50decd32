//! The core: a deterministic state machine that holds the members and their health.
//!
//! [`Core::update`] takes an input and the time, and returns effects: the change to publish, the
//! health words to set, the events, and the endpoints that have left. It has no lock, clock, task
//! or target. The cluster keeps it under its lock and applies the effects.

mod checks;
mod effects;
mod input;
mod members;
mod outliers;
mod trials;
mod weights;

use std::{collections::BTreeSet, mem, ops::Bound};

use tokio::time::Instant;

pub(crate) use self::{
    effects::{Change, Effects, WordChange},
    input::Input,
    members::MemberChange,
};

use crate::{
    error::Counts,
    event::Event,
    health::{
        ejection::Ejections,
        evidence::{Epoch, State},
        factors::Factors,
        settings::Health,
        slowness::Patience,
    },
    policy::Member,
    util::random::Random,
};

/// The members of the set, and their health.
#[derive(Debug)]
pub(crate) struct Core {
    /// Members and records have the same indexes. They are sorted by id, which is also the order in
    /// which they joined.
    members: Vec<Member>,
    records: Vec<Record>,
    /// The endpoints that wait for a trial, each with the instant from which it is due.
    queue: BTreeSet<(Instant, u64)>,
    /// The endpoints whose capacity changes with time.
    moving: BTreeSet<u64>,
    /// When the next capacity changes.
    next_move: Option<Instant>,
    /// When the interval ends and endpoints are compared with their peers.
    next_comparison: Option<Instant>,
    weighted: Weighted,
    health: Health,
    keep_last: bool,
    /// How many members have ever joined.
    joined: u64,
    random: Random,
    /// Whether there are listeners, so that events are collected.
    listens: bool,
    /// Whether an endpoint was in service after the last input.
    had_eligible: bool,
    effects: Effects,
}

/// The state of a member that only the core has.
#[derive(Debug)]
pub(crate) struct Record {
    /// The same as in the endpoint's health word.
    epoch: Epoch,
    pub(crate) ejections: Ejections,
    factors: Factors,
    patience: Patience,
    /// Whether active checks keep the endpoint out of service.
    checked_out: bool,
    /// How many members had joined when discovery removed this one; none while it is a member. It
    /// leaves at the end of the batch, unless it is kept.
    left: Option<u64>,
}

/// How many members have a weight, and how many of these are ejected.
#[derive(Debug, Clone, Copy, Default)]
struct Weighted {
    all: usize,
    ejected: usize,
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
            weighted: Weighted::default(),
            health,
            keep_last,
            joined: 0,
            random: Random::seeded(seed),
            listens,
            had_eligible: false,
            effects: Effects::default(),
        }
    }

    /// Applies an input at an instant; returns its effects.
    pub(crate) fn update(&mut self, now: Instant, input: Input<'_>) -> Effects {
        match input {
            Input::Batch(changes) => self.apply_batch(changes, now),
            Input::Failed {
                id,
                epoch,
                failures,
            } => self.failed(id, epoch, failures, now),
            Input::Recovered { id, epoch } => self.recovered(id, epoch, now),
            Input::PushedBack {
                id,
                epoch,
                duration,
            } => self.pushed_back(id, epoch, duration, now),
            Input::TrialWanted { id } => self.start_trial(id, now),
            Input::TrialAnswered { id, epoch } => self.trial_answered(id, epoch, now),
            Input::TrialEnded { id, epoch, verdict } => self.trial_ended(id, epoch, verdict, now),
            Input::Checked { id, passes } => self.checked(id, passes, now),
            Input::Capacity { name, capacity } => self.set_capacity(name, capacity, now),
            Input::Time { interval } => self.advance(interval, now),
        }
        self.note_shortage();
        mem::take(&mut self.effects)
    }

    /// Adds an event if the last eligible endpoint is gone.
    fn note_shortage(&mut self) {
        let has_eligible = self.weighted.all > self.weighted.ejected;
        if mem::replace(&mut self.had_eligible, has_eligible) && !has_eligible {
            let counts = self.counts();
            self.add_event(|| Event::NothingEligible { counts });
        }
    }

    fn add_event(&mut self, event: impl FnOnce() -> Event) {
        if self.listens {
            self.effects.events.push(event());
        }
    }

    /// Requests the publication of a change.
    fn publish(&mut self, change: Change) {
        self.effects.change = self.effects.change.max(change);
    }

    /// Begins a new epoch of a member, in this state.
    fn enter(&mut self, i: usize, state: State) {
        self.records[i].epoch = self.records[i].epoch.next();
        self.effects
            .words
            .push((self.members[i].id, WordChange::Enter(state)));
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.members
            .binary_search_by_key(&id, |member| member.id)
            .ok()
    }

    /// Finds a member that is still in the epoch of a report.
    fn find_in(&self, id: u64, epoch: Epoch) -> Option<usize> {
        let i = self.find(id)?;
        if self.records[i].epoch == epoch {
            Some(i)
        } else {
            None
        }
    }
}

/// Reading between inputs.
impl Core {
    /// Returns a member and its record.
    pub(crate) fn get(&self, id: u64) -> Option<(&Member, &Record)> {
        let i = self.find(id)?;
        Some((&self.members[i], &self.records[i]))
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns whether too few endpoints are healthy, so that panic mode begins.
    pub(crate) fn is_panic(&self) -> bool {
        let Weighted { all, ejected } = self.weighted;
        self.health.is_panic(all - ejected, all)
    }

    /// Returns whether panic mode uses ejected endpoints. A success then recovers one.
    fn uses_ejected(&self) -> bool {
        self.is_panic() && !self.health.fails_in_panic()
    }

    /// Returns the indexes of the eligible members, and whether ejected ones are among them.
    pub(crate) fn eligible(&self) -> (Box<[u32]>, bool) {
        let panic = self.is_panic();
        if panic && self.health.fails_in_panic() {
            return (Box::default(), false);
        }
        let is_eligible = |member: &Member| member.has_weight() && (panic || member.healthy);
        let eligible = (0_u32..)
            .zip(&self.members)
            .filter(|(_, member)| is_eligible(member));
        (eligible.map(|(index, _)| index).collect(), panic)
    }

    pub(crate) fn counts(&self) -> Counts {
        let members = self.members.len();
        Counts {
            members,
            ejected: self.weighted.ejected,
            drained: members - self.weighted.all,
            unready: 0,
        }
    }

    /// Returns when the first trial is due.
    pub(crate) fn next_trial(&self) -> Option<Instant> {
        self.queue.first().map(|&(until, _)| until)
    }

    /// Returns the endpoints whose trial is due, the longest due first.
    pub(crate) fn due_trials(&self, now: Instant) -> impl Iterator<Item = u64> {
        let due = self
            .queue
            .iter()
            .take_while(move |(until, _)| *until <= now);
        due.map(|&(_, id)| id)
    }

    /// Returns when the first trial after an instant is due.
    pub(crate) fn next_trial_after(&self, instant: Instant) -> Option<Instant> {
        let later = (Bound::Excluded((instant, u64::MAX)), Bound::Unbounded);
        self.queue.range(later).next().map(|&(until, _)| until)
    }

    /// Returns when the next capacity changes or the interval ends, whichever is first.
    pub(crate) fn next_move(&self) -> Option<Instant> {
        self.next_move.into_iter().chain(self.next_comparison).min()
    }

    /// Returns whether an interval has ended.
    pub(crate) fn is_comparison_due(&self, now: Instant) -> bool {
        self.next_comparison.is_some_and(|at| at <= now)
    }
}

impl Record {
    fn new(now: Instant) -> Self {
        Self {
            epoch: Epoch::default(),
            ejections: Ejections::new(now),
            factors: Factors::default(),
            patience: Patience::default(),
            checked_out: false,
            left: None,
        }
    }

    /// Returns whether discovery has removed the endpoint and `keep_last` keeps it.
    pub(crate) const fn is_kept(&self) -> bool {
        self.left.is_some()
    }

    /// Returns whether active checks keep the endpoint out of service.
    pub(crate) const fn is_checked_out(&self) -> bool {
        self.checked_out
    }

    /// Returns when the trial of the endpoint is due.
    fn trial_due(&self) -> Option<Instant> {
        if self.checked_out {
            None
        } else {
            self.ejections.due()
        }
    }
}
