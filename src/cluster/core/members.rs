//! Membership: the changes of a batch are applied one by one.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Change, Core, Record, Weighted, WordChange};
use crate::{
    endpoint::Traits,
    event::{Event, WeightCause},
    health::{ejection::Stage, evidence::State},
    policy::Member,
    util::{fraction::FULL, trim},
};

/// One change of discovery.
#[derive(Debug, Clone)]
pub(crate) enum MemberChange {
    /// A new member. Its id is greater than all earlier ones.
    Insert {
        id: u64,
        name: Arc<str>,
        weight: u32,
        traits: Traits,
    },
    /// A member's target, weight and traits are replaced.
    Replace {
        id: u64,
        weight: u32,
        traits: Traits,
    },
    /// A member is removed.
    Remove { id: u64 },
}

impl Core {
    pub(super) fn apply_batch(&mut self, changes: Vec<MemberChange>, now: Instant) {
        // The first endpoints of an empty set have no ramp.
        let ramps = !self.members.is_empty();
        for change in changes {
            match change {
                MemberChange::Insert {
                    id,
                    name,
                    weight,
                    traits,
                } => {
                    self.insert(
                        Member {
                            id,
                            name,
                            weight,
                            traits,
                            healthy: true,
                            capacity: FULL,
                        },
                        now,
                    );
                    if ramps {
                        self.start_ramp(self.members.len() - 1, now);
                    }
                }
                MemberChange::Replace { id, weight, traits } => self.replace(id, weight, traits),
                MemberChange::Remove { id } => self.remove(id),
            }
        }
        if self.records.iter().any(|record| record.left.is_some()) {
            self.drop_removed();
        }
        self.keep_limit(now);
        self.publish(Change::Members);
    }

    fn insert(&mut self, member: Member, now: Instant) {
        self.joined += 1;
        self.effects
            .words
            .push((member.id, WordChange::Drained(member.weight == 0)));
        self.add_event(|| Event::Joined {
            endpoint: Arc::clone(&member.name),
            weight: member.weight,
            tier: member.traits.tier(),
            zone: member.traits.zone().cloned(),
            labels: member.traits.labels().clone(),
        });
        self.members.push(member);
        self.records.push(Record::new(now));
    }

    fn replace(&mut self, id: u64, weight: u32, traits: Traits) {
        let Some(i) = self.find(id) else { return };
        self.members[i].traits = traits;
        let former = std::mem::replace(&mut self.members[i].weight, weight);
        self.open_or_drain(i);
        if former != weight {
            self.add_weight_changed(i, WeightCause::Discovery);
        }
    }

    /// Updates the health word and the queue of trials after a change of the effective weight.
    pub(super) fn open_or_drain(&mut self, i: usize) {
        let (id, open) = (self.members[i].id, self.members[i].has_weight());
        self.effects.words.push((id, WordChange::Drained(!open)));
        if let Some(until) = self.records[i].trial_due() {
            if open {
                self.queue.insert((until, id));
            } else {
                self.queue.remove(&(until, id));
            }
        }
    }

    fn remove(&mut self, id: u64) {
        let Some(i) = self.find(id) else { return };
        self.records[i].left = Some(self.joined);
        // The event comes before that of a later insert of the same key.
        if !self.keep_last {
            self.add_left(i);
        }
    }

    fn add_left(&mut self, i: usize) {
        let endpoint = Arc::clone(&self.members[i].name);
        self.add_event(|| Event::Left { endpoint });
    }

    /// Drops the members that discovery has removed.
    fn drop_removed(&mut self) {
        // The last members are kept unless another has joined after them.
        let keep = self.keep_last && self.records.iter().all(|record| record.left.is_some());
        let joined = self.joined;
        let leaves = |record: &Record| record.left.is_some_and(|at| !keep || at < joined);
        let mut kept = 0;
        for i in 0..self.records.len() {
            if leaves(&self.records[i]) {
                self.leave(i);
            } else {
                self.members.swap(kept, i);
                self.records.swap(kept, i);
                kept += 1;
            }
        }
        self.members.truncate(kept);
        self.records.truncate(kept);
        trim(&mut self.members);
        trim(&mut self.records);
    }

    fn leave(&mut self, i: usize) {
        let id = self.members[i].id;
        self.enter(i, State::Gone);
        self.dequeue(i);
        self.moving.remove(&id);
        // With `keep_last` the event was not added at the removal.
        if self.keep_last {
            self.add_left(i);
        }
        self.effects.left.push(id);
    }

    /// Counts the weighted members, and recovers the ejected ones beyond the limit.
    ///
    /// Cost: O(n), and O(n log n) if the limit is exceeded.
    pub(super) fn keep_limit(&mut self, now: Instant) {
        self.count_weighted();
        let limit = self.health.ejection_limit(self.weighted.all);
        let excess = self.weighted.ejected.saturating_sub(limit);
        if excess == 0 {
            return;
        }
        for i in self.ejected_by_return().into_iter().take(excess) {
            self.recover(i, now);
        }
    }

    fn count_weighted(&mut self) {
        self.weighted = Weighted::default();
        for member in self.members.iter().filter(|member| member.has_weight()) {
            self.weighted.all += 1;
            self.weighted.ejected += usize::from(!member.healthy);
        }
    }

    /// Returns the ejected members in the order in which their trials are due: first those on trial,
    /// last those that checks keep out of service.
    fn ejected_by_return(&self) -> Vec<usize> {
        let mut ejected: Vec<usize> = (0..self.members.len())
            .filter(|&i| self.members[i].has_weight() && !self.members[i].healthy)
            .collect();
        ejected.sort_by_key(|&i| {
            let record = &self.records[i];
            let due = match record.ejections.stage() {
                Stage::Out { until, .. } if !record.checked_out => Some(until),
                _ => None,
            };
            (record.checked_out, due)
        });
        ejected
    }
}
