//! Capacities: what part of each weight counts, and how that moves with time.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::cluster::core::{Core, Entry};
use crate::{
    event::{Event, WeightCause},
    health::standing::Epoch,
    policy::Member,
};

impl<T> Core<T> {
    /// Returns when a capacity moves by itself or endpoints are compared, whichever is first.
    pub(crate) fn next_move(&self) -> Option<Instant> {
        self.next_move.into_iter().chain(self.next_comparison).min()
    }

    /// Does what time brings: moves capacities, compares endpoints with their peers. Returns
    /// whether anything has changed.
    pub(crate) fn advance(&mut self, now: Instant) -> bool {
        let mut changed = false;
        if self.next_move.is_some_and(|at| at <= now) {
            changed = self.move_capacities(now);
        }
        if self.next_comparison.is_some_and(|at| at <= now) {
            self.next_comparison = Some(now + self.health.interval);
            changed |= self.compare(now);
        }
        changed
    }

    /// Returns a member with the capacity that a pick at this instant would find.
    pub(crate) fn due(&self, member: &Member, entry: &Entry, now: Instant) -> Member {
        let mut member = member.clone();
        let is_due = self.next_move.is_some_and(|at| at <= now);
        if is_due && self.moving.contains(&member.id) {
            member.capacity = entry.factors.capacity(now, &self.health);
        }
        member
    }

    fn move_capacities(&mut self, now: Instant) -> bool {
        let moving = std::mem::take(&mut self.moving);
        self.next_move = None;
        let mut changed = false;
        for id in moving {
            if let Some(i) = self.find(id) {
                changed |= self.refresh(i, now);
            }
        }
        changed
    }

    /// Sets the capacity that the factors make, and notes when it moves next.
    pub(crate) fn refresh(&mut self, i: usize, now: Instant) -> bool {
        let factors = &mut self.records[i].factors;
        let capacity = factors.capacity(now, &self.health);
        if let Some(next) = factors.next(now, &self.health) {
            self.moving.insert(self.members[i].id);
            self.next_move = Some(self.next_move.map_or(next, |at| at.min(next)));
        }
        let former = std::mem::replace(&mut self.members[i].capacity, capacity);
        if (former == 0) != (capacity == 0) {
            self.open_or_drain(i);
        }
        former != capacity
    }

    /// Lets an endpoint that joined or returned take up its share, slowly if that is asked
    /// for.
    pub(crate) fn start_slowly(&mut self, i: usize, now: Instant) {
        self.records[i].factors.start(now, &self.health);
        self.refresh(i, now);
    }

    /// Sets the part of the weight that counts, of every endpoint of this name; returns
    /// whether there is one.
    pub(crate) fn set_capacity(&mut self, name: &str, capacity: u32, now: Instant) -> bool {
        let mut found = false;
        for i in 0..self.members.len() {
            if &*self.members[i].name == name {
                found = true;
                self.records[i].factors.set(capacity);
                if self.refresh(i, now) {
                    self.note_weight(i, WeightCause::Capacity);
                }
            }
        }
        self.keep_limit(now);
        found
    }

    /// Lowers the capacity of an endpoint that pushed back; returns whether it is a member, in
    /// that epoch.
    pub(crate) fn push_back(
        &mut self,
        id: u64,
        epoch: Epoch,
        asked: Option<Duration>,
        now: Instant,
    ) -> bool {
        let Some(i) = self.find_in(id, epoch) else { return false };
        self.records[i].factors.push_back(asked, now, &self.health);
        if self.refresh(i, now) {
            self.note_weight(i, WeightCause::Overload);
        }
        true
    }

    pub(crate) fn note_weight(&mut self, i: usize, cause: WeightCause) {
        let member = &self.members[i];
        let (endpoint, weight) = (Arc::clone(&member.name), member.weight);
        let effective_weight = member.effective_weight();
        self.note(|| Event::WeightChanged { endpoint, weight, effective_weight, cause });
    }
}
