//! The members and their records: the state behind the door.
//!
//! Nothing here is atomic or published: [`Cluster`](crate::cluster::Cluster) holds the core under
//! one mutex and publishes what has changed.

mod checks;
mod members;
mod outliers;
mod trials;
mod weights;

use std::{collections::BTreeSet, mem, ops::Bound, sync::Arc};

use tokio::time::Instant;

use crate::{
    cluster::{node::Node, nodes::Changes},
    error::Counts,
    event::Event,
    health::{
        ejection::Record, factors::Factors, pace::Patience, settings::Health, standing::Epoch,
    },
    policy::Member,
    util::random::Random,
};

#[derive(Debug)]
pub(crate) struct Core<T> {
    /// Three columns of one table, in the order of the ids, which is that of joining.
    nodes: Vec<Arc<Node<T>>>,
    members: Vec<Member>,
    records: Vec<Entry>,
    /// Who waits to be tried, and from when on.
    queue: BTreeSet<(Instant, u64)>,
    /// Whose capacity moves by itself, and when the next does.
    moving: BTreeSet<u64>,
    next_move: Option<Instant>,
    /// When endpoints are compared with their peers next.
    next_comparison: Option<Instant>,
    tally: Tally,
    health: Health,
    keep_last: bool,
    /// How the nodes differ from those of the last snapshot.
    pub(crate) unpublished: Changes,
    /// How many members have joined, ever: by this is told who left before whom.
    joined: u64,
    random: Random,
    /// Nodes that were let go of: their services are dropped outside the door.
    discarded: Vec<Arc<Node<T>>>,
    /// What has happened, if anybody listens.
    events: Option<Vec<Event>>,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) record: Record,
    factors: Factors,
    patience: Patience,
    /// Active checks have taken it out.
    checked_out: bool,
    /// Discovery has removed it, when so many had joined. It leaves at the end of the batch,
    /// unless it is kept.
    left: Option<u64>,
}

impl Entry {
    /// Returns whether it stays only because it was among the last.
    pub(crate) const fn is_kept(&self) -> bool {
        self.left.is_some()
    }

    /// Returns whether active checks keep it out.
    pub(crate) const fn is_checked_out(&self) -> bool {
        self.checked_out
    }

    /// Returns until when it waits to be tried by a call.
    fn waits_until(&self) -> Option<Instant> {
        self.record.due().filter(|_| !self.checked_out)
    }
}

/// The endpoints that have a weight.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    candidates: usize,
    ejected: usize,
}

impl Tally {
    fn is_panic(self, health: &Health) -> bool {
        health.is_panic(self.candidates - self.ejected, self.candidates)
    }
}

impl<T> Core<T> {
    pub(crate) fn new(health: Health, keep_last: bool, seed: u64, now: Instant) -> Self {
        Self {
            moving: BTreeSet::new(),
            next_move: None,
            next_comparison: health.compares().then(|| now + health.interval),
            events: None,
            nodes: Vec::new(),
            members: Vec::new(),
            records: Vec::new(),
            queue: BTreeSet::new(),
            tally: Tally::default(),
            health,
            keep_last,
            unpublished: Changes::default(),
            joined: 0,
            random: Random::seeded(seed),
            discarded: Vec::new(),
        }
    }

    // ===== what is in it =====

    /// Returns what is known of a member.
    pub(crate) fn get(&self, id: u64) -> Option<(&Member, &Entry)> {
        let i = self.find(id)?;
        Some((&self.members[i], &self.records[i]))
    }

    pub(crate) fn nodes(&self) -> &[Arc<Node<T>>] {
        &self.nodes
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns whether too few endpoints are healthy.
    pub(crate) fn is_panic(&self) -> bool {
        self.tally.is_panic(&self.health)
    }

    /// Returns whether ejections are ignored, so that any success brings an endpoint back.
    fn ignores_health(&self) -> bool {
        self.is_panic() && !self.health.fails_in_panic()
    }

    /// Returns who may be picked now, and whether ejections are ignored for it.
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
            ejected: self.tally.ejected,
            drained: members - self.tally.candidates,
            unready: 0,
        }
    }

    /// Returns from when on somebody waits to be tried.
    pub(crate) fn next_trial(&self) -> Option<Instant> {
        self.queue.first().map(|&(until, _)| until)
    }

    /// Returns the next instant after this one from which on somebody waits to be tried.
    pub(crate) fn next_trial_after(&self, instant: Instant) -> Option<Instant> {
        let later = (Bound::Excluded((instant, u64::MAX)), Bound::Unbounded);
        self.queue.range(later).next().map(|&(until, _)| until)
    }

    pub(crate) fn take_discarded(&mut self) -> Vec<Arc<Node<T>>> {
        mem::take(&mut self.discarded)
    }

    /// Has events noted from here on.
    pub(crate) fn listen(&mut self) {
        self.events = Some(Vec::new());
    }

    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        self.events.as_mut().map(mem::take).unwrap_or_default()
    }

    /// Returns whether nobody is a member.
    pub(crate) const fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns whether somebody is in service, whatever panic makes of it.
    pub(crate) const fn has_eligible(&self) -> bool {
        self.tally.candidates > self.tally.ejected
    }

    fn note(&mut self, event: impl FnOnce() -> Event) {
        if let Some(events) = &mut self.events {
            events.push(event());
        }
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.members.binary_search_by_key(&id, |member| member.id).ok()
    }

    /// Finds an endpoint that is still in the epoch a report is about.
    fn find_in(&self, id: u64, epoch: Epoch) -> Option<usize> {
        self.find(id).filter(|&i| self.nodes[i].state.standing.epoch() == epoch)
    }
}
