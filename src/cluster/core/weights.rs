//! Capacities: the part of each weight that counts, and its change with time.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Change, Core, Record};
use crate::{
    event::{Event, WeightCause},
    health::{evidence::Epoch, tally::Tally},
    policy::Member,
};

impl Core {
    /// Updates the capacities that change with time, and ends an interval.
    pub(super) fn advance(&mut self, interval: Option<Vec<Tally>>, now: Instant) {
        if self.next_move.is_some_and(|at| at <= now) {
            self.update_capacities(now);
        }
        if let Some(interval) = interval {
            self.next_comparison = Some(now + self.health.interval);
            self.compare(&interval, now);
        }
    }

    /// Returns a member with the capacity that a pick at this instant would use.
    pub(crate) fn at(&self, now: Instant, member: &Member, record: &Record) -> Member {
        let mut member = member.clone();
        let is_due = self.next_move.is_some_and(|at| at <= now);
        if is_due && self.moving.contains(&member.id) {
            member.capacity = record.factors.capacity(now, &self.health);
        }
        member
    }

    fn update_capacities(&mut self, now: Instant) {
        let moving = std::mem::take(&mut self.moving);
        self.next_move = None;
        for id in moving {
            if let Some(i) = self.find(id)
                && self.refresh(i, now)
            {
                self.publish(Change::Health);
            }
        }
    }

    /// Sets the capacity to the product of the factors, and schedules its next change. Returns
    /// whether it has changed.
    pub(super) fn refresh(&mut self, i: usize, now: Instant) -> bool {
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

    /// Starts the ramp of an endpoint that joined or recovered, if slow start is on.
    pub(super) fn start_ramp(&mut self, i: usize, now: Instant) {
        self.records[i].factors.start(now, &self.health);
        self.refresh(i, now);
    }

    /// Sets the capacity of each endpoint of this name.
    pub(super) fn set_capacity(&mut self, name: &str, capacity: u32, now: Instant) {
        for i in 0..self.members.len() {
            if &*self.members[i].name != name {
                continue;
            }
            self.effects.applied = true;
            self.records[i].factors.set(capacity);
            if self.refresh(i, now) {
                self.add_weight_changed(i, WeightCause::Capacity);
            }
        }
        self.keep_limit(now);
        if self.effects.applied {
            self.publish(Change::Members);
        }
    }

    /// Lowers the capacity of an endpoint that has pushed back.
    pub(super) fn pushed_back(
        &mut self,
        id: u64,
        epoch: Epoch,
        duration: Option<Duration>,
        now: Instant,
    ) {
        let Some(i) = self.find_in(id, epoch) else {
            return;
        };
        self.effects.applied = true;
        self.records[i]
            .factors
            .push_back(duration, now, &self.health);
        if self.refresh(i, now) {
            self.add_weight_changed(i, WeightCause::Overload);
        }
        self.publish(Change::Health);
    }

    pub(super) fn add_weight_changed(&mut self, i: usize, cause: WeightCause) {
        let member = &self.members[i];
        let (endpoint, weight) = (Arc::clone(&member.name), member.weight);
        let effective_weight = member.effective_weight();
        self.add_event(|| Event::WeightChanged {
            endpoint,
            weight,
            effective_weight,
            cause,
        });
    }
}
