//! Finds the greatest of many credits that grow linearly, each at its own growth.
//!
//! A kinetic tournament: a tree of matches, each with the pick from which on its result may change;
//! until then it is not computed again (Basch, Guibas and Hershberger, "Data structures for mobile
//! data", 1999).

/// A credit that grows by `growth` with each pick.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    /// The credit at pick 0.
    pub(super) key: i128,
    pub(super) growth: i128,
    /// Breaks ties: the lower goes first.
    pub(super) place: u32,
}

/// The greater of two lines, until the pick at which this match or one below it may change.
#[derive(Debug, Clone, Copy)]
struct Match {
    winner: u32,
    valid_until: u32,
}

#[derive(Debug)]
pub(super) struct Tournament {
    lines: Vec<Line>,
    /// A heap-ordered tree: match `m` is between the winners of `2m` and `2m + 1`; its
    /// second half are the lines themselves.
    matches: Vec<Match>,
}

/// A pick that no tape reaches.
const FOREVER: u32 = u32::MAX;

impl Line {
    /// Returns the credit at a pick.
    const fn at(self, pick: u32) -> i128 {
        self.key + self.growth * pick as i128
    }

    /// Returns whether this line is the greater one at a pick.
    fn beats(self, other: Self, pick: u32) -> bool {
        let (own, others) = (self.at(pick), other.at(pick));
        own > others || (own == others && self.place < other.place)
    }

    /// Returns the first pick at which this line, which loses now, beats the winner.
    fn overtakes(self, winner: Self) -> u32 {
        let faster = self.growth - winner.growth;
        if faster <= 0 {
            return FOREVER;
        }
        let behind = winner.key - self.key;
        let level = behind.div_euclid(faster);
        let wins_ties = self.place < winner.place && behind.rem_euclid(faster) == 0;
        u32::try_from(level + i128::from(!wins_ties)).unwrap_or(FOREVER)
    }
}

impl Tournament {
    pub(super) fn new(lines: Vec<Line>) -> Self {
        let n = lines.len();
        let leaf = |i| Match {
            winner: i as u32,
            valid_until: FOREVER,
        };
        let matches = (0..2 * n).map(|m| leaf(m.saturating_sub(n))).collect();
        let mut tournament = Self { lines, matches };
        (1..n).rev().for_each(|m| tournament.play(m, 0));
        tournament
    }

    /// Returns which line is greatest at a pick; from call to call the picks rise.
    pub(super) fn winner(&mut self, pick: u32) -> Option<usize> {
        self.refresh(1, pick);
        self.matches.get(1).map(|root| root.winner as usize)
    }

    /// Replaces a line.
    pub(super) fn replace(&mut self, i: usize, line: Line, pick: u32) {
        self.lines[i] = line;
        let mut m = (self.lines.len() + i) / 2;
        while m > 0 {
            self.play(m, pick);
            m /= 2;
        }
    }

    /// Computes the matches of a subtree whose results may have changed.
    fn refresh(&mut self, m: usize, pick: u32) {
        if m < self.lines.len() && self.matches[m].valid_until <= pick {
            self.refresh(2 * m, pick);
            self.refresh(2 * m + 1, pick);
            self.play(m, pick);
        }
    }

    /// Computes the result of a match from those below it.
    fn play(&mut self, m: usize, pick: u32) {
        let (left, right) = (self.matches[2 * m], self.matches[2 * m + 1]);
        let (a, b) = (
            self.lines[left.winner as usize],
            self.lines[right.winner as usize],
        );
        let (winner, overtaken) = if a.beats(b, pick) {
            (left.winner, b.overtakes(a))
        } else {
            (right.winner, a.overtakes(b))
        };
        let valid_until = overtaken.min(left.valid_until).min(right.valid_until);
        self.matches[m] = Match {
            winner,
            valid_until,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::util::random::splitmix64;

    #[test]
    fn the_winner_is_the_greatest_at_every_pick() {
        for n in 1..40_u64 {
            let random = |i: u64, below: u64| i128::from(splitmix64(n * 1_000 + i) % below);
            let line = |i: u64| Line {
                key: random(i, 50) - 25,
                growth: random(i + 500, 9),
                place: i as u32,
            };
            let mut lines: Vec<_> = (0..n).map(line).collect();
            let mut tournament = Tournament::new(lines.clone());
            for pick in 1..200 {
                let greatest = (0..lines.len()).max_by_key(|&i| (lines[i].at(pick), n - i as u64));
                let winner = tournament.winner(pick).unwrap();
                assert_eq!(Some(winner), greatest, "pick {pick} of {n}");
                lines[winner].key -= 1 + random(pick.into(), 60);
                tournament.replace(winner, lines[winner], pick);
            }
        }
    }
}
