//! A lazy sequence of candidates, in the order of their ranks.

use crate::policy::Candidates;

/// How well an endpoint suits a call: a lower rank is better.
///
/// Endpoints of one rank are taken in the order of the candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank(u8);

impl Rank {
    pub(crate) const BEST: Self = Self(0);

    /// Below the bound before at it, then untried before tried, then ready before unready.
    pub(crate) const fn new(full: bool, tried: bool, unready: bool) -> Self {
        Self(4 * full as u8 + 2 * tried as u8 + unready as u8)
    }
}

/// A walk through the candidates of one call in one generation.
///
/// It continues where it stopped. So each candidate is visited once for each rank, also if the call
/// finds many unready endpoints one after the other.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    walk: Option<Walk>,
    /// Seeds the order of the candidates.
    seed: Option<u64>,
}

#[derive(Debug)]
struct Walk {
    generation: u64,
    /// This pass takes candidates of up to this rank.
    rank: Rank,
    /// The lowest rank above it that this pass has seen.
    next_rank: Option<Rank>,
    chunk: Candidates,
    /// The position in the chunk.
    position: usize,
    /// How many candidates the earlier chunks held.
    passed: usize,
}

impl Walk {
    const fn new(generation: u64, rank: Rank) -> Self {
        let chunk = Candidates::after(0);
        Self {
            generation,
            rank,
            next_rank: None,
            chunk,
            position: 0,
            passed: 0,
        }
    }

    /// Returns the next candidate of this pass; `fill` continues the sequence.
    ///
    /// Ends once more than `most` candidates have passed: the picker then repeats them.
    fn next(&mut self, most: usize, fill: &impl Fn(usize, &mut Candidates)) -> Option<usize> {
        if self.position == self.chunk.len() {
            if self.passed > most {
                return None;
            }
            self.passed += self.chunk.len();
            (self.chunk, self.position) = (Candidates::after(self.passed), 0);
            fill(self.passed, &mut self.chunk);
        }
        let index = self.chunk.get(self.position)?;
        self.position += 1;
        Some(index)
    }
}

impl Sequence {
    /// Begins the walk of a generation; returns false if that has begun already.
    pub(crate) fn begin(&mut self, generation: u64) -> bool {
        if self
            .walk
            .as_ref()
            .is_some_and(|walk| walk.generation == generation)
        {
            return false;
        }
        self.walk = Some(Walk::new(generation, Rank::BEST));
        true
    }

    /// Returns the seed of the call, which the first use draws.
    pub(crate) fn seed(&mut self, draw: impl FnOnce() -> u64) -> u64 {
        *self.seed.get_or_insert_with(draw)
    }

    /// Returns the next candidate of the best rank, of `most` members. `rank` returns none for a
    /// member that cannot take the call.
    pub(crate) fn next(
        &mut self,
        generation: u64,
        most: usize,
        fill: impl Fn(usize, &mut Candidates),
        rank: impl Fn(usize) -> Option<Rank>,
    ) -> Option<usize> {
        self.begin(generation);
        let walk = self.walk.as_mut()?;
        loop {
            while let Some(index) = walk.next(most, &fill) {
                let Some(rank) = rank(index) else { continue };
                if rank <= walk.rank {
                    return Some(index);
                }
                walk.next_rank = Some(walk.next_rank.map_or(rank, |lowest| lowest.min(rank)));
            }
            // Without a next rank the walk stays at its end.
            *walk = Walk::new(generation, walk.next_rank?);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(ranks: &[Option<Rank>]) -> Vec<usize> {
        let fill = |skip: usize, out: &mut Candidates| {
            (skip..ranks.len())
                .take_while(|&index| out.push(index))
                .count();
        };
        let mut sequence = Sequence::default();
        std::iter::from_fn(|| sequence.next(1, ranks.len(), fill, |index| ranks[index])).collect()
    }

    #[test]
    fn lower_ranks_come_first_and_each_pass_keeps_the_order() {
        let [best, unready, tried] = [
            Rank::BEST,
            Rank::new(false, false, true),
            Rank::new(false, true, false),
        ];
        let ranks = [Some(tried), Some(best), None, Some(unready), Some(best)];
        // A candidate that was taken comes again in the next pass if its rank is the same.
        assert_eq!(walk(&ranks), [1, 4, 1, 3, 4, 0, 1, 3, 4]);
        assert_eq!(walk(&[None, None]), [0; 0]);
        assert_eq!(walk(&[]), [0; 0]);
    }

    #[test]
    fn a_picker_that_repeats_itself_ends() {
        let fill = |_: usize, out: &mut Candidates| while out.push(0) {};
        let mut sequence = Sequence::default();
        assert_eq!(sequence.next(1, 3, fill, |_| None), None);
    }

    #[test]
    fn a_sequence_of_many_chunks_is_walked_to_its_end() {
        let ranks = vec![Some(Rank::BEST); 1_000];
        assert_eq!(walk(&ranks), (0..1_000).collect::<Vec<_>>());
    }
}
