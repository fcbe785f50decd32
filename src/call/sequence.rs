//! The one lazy sequence of further candidates, and the one order of preference among them.

use crate::policy::Candidates;

/// How well an endpoint suits a call: the lower, the better. Endpoints of one rank are taken in
/// the order of the candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank(u8);

impl Rank {
    pub(crate) const BEST: Self = Self(0);

    /// With room before full, untried before tried, ready before not ready.
    pub(crate) const fn new(full: bool, tried: bool, unready: bool) -> Self {
        Self(4 * full as u8 + 2 * tried as u8 + unready as u8)
    }
}

/// A walk through the candidates of one call in one generation, which goes on where it stopped:
/// however many endpoints are found not ready one after the other, each is passed once for each
/// rank.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    /// None until the first walk.
    walk: Option<Walk>,
    /// Seeds the order of the candidates; drawn once for each call that needs it.
    seed: Option<u64>,
}

#[derive(Debug)]
struct Walk {
    generation: u64,
    /// Candidates of up to this rank are taken now.
    rank: Rank,
    /// The lowest rank above that was seen in this pass.
    next_rank: Option<Rank>,
    part: Candidates,
    /// The place in the part.
    place: usize,
    /// How many candidates the parts before held.
    passed: usize,
}

impl Walk {
    const fn new(generation: u64, rank: Rank) -> Self {
        let part = Candidates::after(0);
        Self { generation, rank, next_rank: None, part, place: 0, passed: 0 }
    }

    /// Returns the next candidate of this pass, unless more than `most` were passed: then the
    /// picker repeats itself. `fill` continues the sequence.
    fn next(&mut self, most: usize, fill: &impl Fn(usize, &mut Candidates)) -> Option<usize> {
        if self.place == self.part.len() {
            if self.passed > most {
                return None;
            }
            self.passed += self.part.len();
            (self.part, self.place) = (Candidates::after(self.passed), 0);
            fill(self.passed, &mut self.part);
        }
        let index = self.part.get(self.place)?;
        self.place += 1;
        Some(index)
    }
}

impl Sequence {
    /// Begins the walk of a generation; returns false if it was begun before.
    pub(crate) fn begin(&mut self, generation: u64) -> bool {
        if self.walk.as_ref().is_some_and(|walk| walk.generation == generation) {
            return false;
        }
        self.walk = Some(Walk::new(generation, Rank::BEST));
        true
    }

    /// Returns the seed of the call, drawn when it is needed first.
    pub(crate) fn seed(&mut self, draw: impl FnOnce() -> u64) -> u64 {
        *self.seed.get_or_insert_with(draw)
    }

    /// Returns the next candidate that is best for the call, of `most` members. `rank` returns none
    /// for a member that cannot take it.
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
            // The next pass takes the next rank; without one the walk stays at its end.
            *walk = Walk::new(generation, walk.next_rank?);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(ranks: &[Option<Rank>]) -> Vec<usize> {
        let fill = |skip: usize, out: &mut Candidates| {
            (skip..ranks.len()).take_while(|&index| out.push(index)).count();
        };
        let mut sequence = Sequence::default();
        std::iter::from_fn(|| sequence.next(1, ranks.len(), fill, |index| ranks[index])).collect()
    }

    #[test]
    fn lower_ranks_come_first_and_each_pass_keeps_the_order() {
        let [best, unready, tried] =
            [Rank::BEST, Rank::new(false, false, true), Rank::new(false, true, false)];
        let ranks = [Some(tried), Some(best), None, Some(unready), Some(best)];
        // What was taken is passed again where its rank has not changed.
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
    fn a_sequence_of_many_parts_is_walked_whole() {
        let ranks = vec![Some(Rank::BEST); 1_000];
        assert_eq!(walk(&ranks), (0..1_000).collect::<Vec<_>>());
    }
}
