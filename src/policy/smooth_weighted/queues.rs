//! Makes the sequence: equal weights form a queue, and a pick compares the heads.

use std::{cmp::Ordering, collections::VecDeque};

use super::credits::{Entry, FINE, total};

/// The state of the rule between two picks.
///
/// An endpoint's credit before pick t is `key + weight × t`. Among equal weights the order is
/// that of the keys, so the greatest is always at the head; picking it takes one pick off
/// its key, which mostly puts it at the back.
#[derive(Debug)]
pub(super) struct Queues {
    classes: Vec<Class>,
    /// One pick.
    unit: i128,
    picks: i128,
}

#[derive(Debug)]
struct Class {
    weight: i128,
    queue: VecDeque<Waiting>,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    key: i128,
    /// The position among the entries, which breaks ties.
    place: u32,
}

impl Waiting {
    /// Whoever is greater goes first.
    fn goes_before(self, other: Self) -> bool {
        match self.key.cmp(&other.key) {
            Ordering::Greater => true,
            Ordering::Equal => self.place < other.place,
            Ordering::Less => false,
        }
    }
}

impl Queues {
    /// Cost: O(n log n).
    pub(super) fn new(entries: &[Entry]) -> Self {
        let mut order: Vec<_> = (0_u32..).zip(entries).collect();
        order.sort_unstable_by_key(|&(place, entry)| {
            (entry.weight, std::cmp::Reverse(entry.credit), place)
        });
        let mut classes: Vec<Class> = Vec::new();
        for (place, entry) in order {
            let weight = i128::from(entry.weight) * FINE;
            if classes.last().is_none_or(|class| class.weight != weight) {
                classes.push(Class { weight, queue: VecDeque::new() });
            }
            if let Some(class) = classes.last_mut() {
                class.queue.push_back(Waiting { key: entry.credit, place });
            }
        }
        Self { classes, unit: total(entries) * FINE, picks: 0 }
    }

    /// Makes one pick; returns its place among the entries. Cost: O(different weights).
    pub(super) fn next(&mut self) -> Option<u32> {
        self.picks += 1;
        let picks = self.picks;
        let head = |class: &Class| {
            class
                .queue
                .front()
                .map(|head| Waiting { key: head.key + class.weight * picks, ..*head })
        };
        let mut best: Option<(Waiting, usize)> = None;
        for (i, class) in self.classes.iter().enumerate() {
            if let Some(head) = head(class)
                && best.is_none_or(|(best, _)| head.goes_before(best))
            {
                best = Some((head, i));
            }
        }
        let (_, i) = best?;
        let picked = self.classes[i].queue.pop_front()?;
        self.classes[i].requeue(Waiting { key: picked.key - self.unit, ..picked });
        Some(picked.place)
    }
}

impl Class {
    /// Puts an endpoint back where its key belongs: mostly at the very back.
    fn requeue(&mut self, waiting: Waiting) {
        let mut at = self.queue.len();
        while at > 0 && waiting.goes_before(self.queue[at - 1]) {
            at -= 1;
        }
        if at == self.queue.len() {
            self.queue.push_back(waiting);
        } else {
            self.queue.insert(at, waiting);
        }
    }
}
