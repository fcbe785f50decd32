//! Makes the sequence: equal weights form a queue, and a pick compares the heads.

use std::collections::VecDeque;

use super::{
    credits::{Entry, FINE, total},
    tournament::{Line, Tournament},
};

/// The state of the rule between two picks.
///
/// Among equal weights the order is that of the credits, so the greatest is always at the head. A
/// pick subtracts one pick from it, which mostly moves it to the back.
#[derive(Debug)]
pub(super) struct Queues {
    queues: Vec<VecDeque<Line>>,
    heads: Tournament,
    /// One pick.
    unit: i128,
    picks: u32,
}

impl Queues {
    /// Makes the queues of these endpoints. Cost: O(n log n).
    pub(super) fn new(entries: &[Entry]) -> Self {
        let mut order: Vec<_> = (0_u32..).zip(entries).collect();
        order.sort_unstable_by_key(|&(place, entry)| {
            (entry.weight, std::cmp::Reverse(entry.credit), place)
        });
        let line = |&(place, entry): &(u32, &Entry)| {
            let growth = i128::from(entry.weight) * FINE;
            Line {
                key: entry.credit,
                growth,
                place,
            }
        };
        let queues: Vec<VecDeque<Line>> = order
            .chunk_by(|(_, a), (_, b)| a.weight == b.weight)
            .map(|class| class.iter().map(line).collect())
            .collect();
        let heads = queues
            .iter()
            .filter_map(|queue| queue.front().copied())
            .collect();
        let unit = total(entries) * FINE;
        Self {
            queues,
            heads: Tournament::new(heads),
            unit,
            picks: 0,
        }
    }

    /// Makes one pick; returns its place among the entries. Cost: with d different weights
    /// about log d matches, each a comparison and a division.
    pub(super) fn next(&mut self) -> Option<u32> {
        self.picks += 1;
        let class = self.heads.winner(self.picks)?;
        let queue = self.queues.get_mut(class)?;
        let picked = queue.pop_front()?;
        requeue(
            queue,
            Line {
                key: picked.key - self.unit,
                ..picked
            },
        );
        let head = queue.front().copied()?;
        self.heads.replace(class, head, self.picks);
        Some(picked.place)
    }
}

/// Inserts an endpoint by its credit: mostly at the back.
fn requeue(queue: &mut VecDeque<Line>, line: Line) {
    let goes_before =
        |other: &Line| line.key > other.key || (line.key == other.key && line.place < other.place);
    let behind = queue
        .iter()
        .rev()
        .take_while(|other| goes_before(other))
        .count();
    match behind {
        0 => queue.push_back(line),
        _ => queue.insert(queue.len() - behind, line),
    }
}
