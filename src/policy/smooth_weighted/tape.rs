//! A part of the sequence, made in blocks when they are needed.

use std::sync::{
    Arc, Mutex, OnceLock,
    atomic::{AtomicU64, Ordering},
};

use super::{
    credits::{self, Credits, Entry, FINE, total},
    queues::Queues,
};
use crate::util::{lock, padded::Padded};

/// The picks from one change of the set to the next, or until it is used up.
///
/// Each pick belongs to the one call that drew its position. A tape that ends as it began
/// repeats for ever.
#[derive(Debug)]
pub(super) struct Tape {
    cursor: Padded<AtomicU64>,
    length: u64,
    blocks: Box<[OnceLock<Box<[u32]>>]>,
    /// Set once the whole tape is made: whether it ends as it began.
    repeats: OnceLock<bool>,
    /// Without credits.
    entries: Vec<Entry>,
    total: i128,
    start: Mutex<Start>,
    /// The credits at the start, computed when they are needed: they include all picks from the
    /// former tape until then, also those during the build of this one.
    credits: OnceLock<Credits>,
    /// Makes the blocks, one after the other.
    maker: Mutex<Maker>,
}

/// Where the credits at the start come from.
#[derive(Debug)]
pub(super) enum Start {
    Nothing,
    Scattered(u64),
    Former(Arc<Tape>),
}

#[derive(Debug, Default)]
struct Maker {
    queues: Option<Queues>,
    made: usize,
}

/// How many picks a block holds: 1 KiB.
const BLOCK: usize = 256;

/// The least number of picks of a tape: of short cycles it holds several.
const SHORTEST: u64 = 1_024;

/// The greatest number of picks of a tape: 256 KiB.
const LONGEST: u64 = 65_536;

impl Tape {
    pub(super) fn new(entries: Vec<Entry>, start: Start) -> Self {
        let total = total(&entries);
        let length = length(total);
        let blocks = (length as usize).div_ceil(BLOCK);
        Self {
            cursor: Padded(AtomicU64::new(0)),
            length,
            blocks: (0..blocks).map(|_| OnceLock::new()).collect(),
            repeats: OnceLock::new(),
            entries,
            total,
            start: Mutex::new(start),
            credits: OnceLock::new(),
            maker: Mutex::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the credits at the start. The first call computes them and releases the former tape.
    pub(super) fn start(&self) -> &Credits {
        self.credits.get_or_init(|| {
            let entries = self.entries.clone();
            match std::mem::replace(&mut *lock(&self.start), Start::Nothing) {
                Start::Nothing => Credits::none(entries),
                Start::Scattered(seed) => credits::scatter(entries, seed),
                Start::Former(tape) => tape.credits().carry(entries),
            }
        })
    }

    /// Returns the next pick: the index of a member; none if the tape is used up.
    pub(super) fn next(&self) -> Option<u32> {
        let position = self.cursor.fetch_add(1, Ordering::Relaxed);
        let position = if position < self.length {
            position
        } else {
            self.wrap(position)?
        };
        self.at(position)
    }

    /// Returns the position of a pick beyond the end; none if the tape does not repeat.
    fn wrap(&self, position: u64) -> Option<u64> {
        let repeats = self.repeats.get().copied();
        let repeats = repeats.unwrap_or_else(|| {
            self.make(self.blocks.len());
            self.repeats.get().copied().unwrap_or_default()
        });
        repeats.then(|| position % self.length)
    }

    fn at(&self, position: u64) -> Option<u32> {
        let (number, offset) = (position as usize / BLOCK, position as usize % BLOCK);
        let block = self.blocks.get(number)?;
        if block.get().is_none() {
            self.make(number + 1);
        }
        block.get()?.get(offset).copied()
    }

    /// Makes the blocks up to this one, if they are not made yet.
    #[cold]
    fn make(&self, blocks: usize) {
        let mut maker = lock(&self.maker);
        while maker.made < blocks {
            let left = self.length as usize - maker.made * BLOCK;
            let queues = maker
                .queues
                .get_or_insert_with(|| Queues::new(&self.start().entries));
            let picks = std::iter::from_fn(|| queues.next()).take(left.min(BLOCK));
            let block = picks
                .map(|place| self.entries[place as usize].index)
                .collect();
            let _ = self.blocks[maker.made].set(block);
            maker.made += 1;
        }
        if maker.made == self.blocks.len() && self.repeats.get().is_none() {
            maker.queues = None;
            drop(maker);
            let _ = self.repeats.set(self.ends_as_it_began());
        }
    }

    /// Returns whether the credits at the end are those at the start: all counts match the weights.
    fn ends_as_it_began(&self) -> bool {
        let counts = self.counts(self.length);
        let fair = |entry: &Entry, count: u64| {
            i128::from(count) * self.total == i128::from(entry.weight) * i128::from(self.length)
        };
        self.entries
            .iter()
            .zip(counts)
            .all(|(entry, count)| fair(entry, count))
    }

    /// Returns how often each entry is picked up to a position.
    fn counts(&self, position: u64) -> Vec<u64> {
        let last = self.entries.last().map_or(0, |entry| entry.index as usize);
        let mut by_index = vec![0_u64; last + 1];
        let made = self.blocks.iter().map_while(OnceLock::get);
        for &index in made.flat_map(|block| block.iter()).take(position as usize) {
            by_index[index as usize] += 1;
        }
        self.entries
            .iter()
            .map(|entry| by_index[entry.index as usize])
            .collect()
    }

    /// Returns the credits after the picks so far.
    fn credits(&self) -> Credits {
        let drawn = self.cursor.load(Ordering::Relaxed);
        let position = match drawn {
            0 => return self.start().clone(),
            drawn if drawn < self.length => drawn,
            drawn => self.wrap(drawn).unwrap_or(self.length),
        };
        self.make((position as usize).div_ceil(BLOCK));
        let mut credits = self.start().clone();
        for (entry, count) in credits.entries.iter_mut().zip(self.counts(position)) {
            let due = i128::from(entry.weight) * i128::from(position);
            entry.credit += (due - self.total * i128::from(count)) * FINE;
        }
        credits
    }
}

/// Returns how many picks a tape holds: whole cycles if they fit.
fn length(total: i128) -> u64 {
    match u64::try_from(total) {
        Ok(0) => 0,
        Ok(total) if total < LONGEST => total * SHORTEST.div_ceil(total),
        _ => LONGEST,
    }
}
