//! The members that a request may go to, in order of preference.

/// One part of the sequence of members that a request may go to, in order of preference.
///
/// [`Picker::candidates`](super::Picker::candidates) fills it, part after part. The first part holds
/// up to 16 members, by index, and each later part as many as all parts before it: so a picker that
/// computes its order from the start for each part does so only O(log n) times.
///
/// ```
/// use counterpoise::policy::{Candidates, PickContext, PickResult, Picker};
///
/// /// Prefers the members in a fixed order.
/// struct Ranked(Vec<usize>);
///
/// impl<Req: ?Sized> Picker<Req> for Ranked {
///     fn pick(&self, _request: &Req, cx: &PickContext<'_>) -> PickResult {
///         let first = self.0.iter().find(|&&index| cx.accepts(index));
///         first.map_or(PickResult::Any, |&index| PickResult::Member(index))
///     }
///
///     fn candidates(&self, _: &Req, _: &PickContext<'_>, skip: usize, out: &mut Candidates) {
///         for &index in self.0.iter().skip(skip) {
///             if !out.push(index) {
///                 break;
///             }
///         }
///     }
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Candidates {
    indexes: Vec<u32>,
    most: usize,
    bound: bool,
}

/// How many members the first part holds: few calls need more.
const FIRST: usize = 16;

impl Candidates {
    /// Creates an empty first part, for a picker that reads the candidates of another.
    #[must_use]
    pub const fn new() -> Self {
        Self::after(0)
    }

    /// Creates the part after `passed` candidates.
    pub(crate) const fn after(passed: usize) -> Self {
        let most = if passed > FIRST { passed } else { FIRST };
        Self {
            indexes: Vec::new(),
            most,
            bound: false,
        }
    }

    /// Creates an empty part of up to `most` members.
    #[cfg(test)]
    pub(crate) const fn of(most: usize) -> Self {
        Self {
            indexes: Vec::new(),
            most,
            bound: false,
        }
    }

    /// Adds the next member; returns whether the part takes more.
    ///
    /// The index is that of the [`Members`](super::Members) from which the picker was built.
    /// A full part stays as it is.
    #[inline]
    pub fn push(&mut self, index: usize) -> bool {
        if !self.is_full() {
            // No member has an index beyond 32 bits.
            self.indexes.push(u32::try_from(index).unwrap_or(u32::MAX));
        }
        !self.is_full()
    }

    /// Returns whether the part takes no more members.
    #[must_use]
    #[inline]
    pub const fn is_full(&self) -> bool {
        self.indexes.len() >= self.most
    }

    /// Binds the request to its first candidate that has a weight and a capacity above zero and, under a
    /// bound, room for the call, healthy or not.
    ///
    /// A bound request can be the trial of that endpoint alone; without a candidate, of none. A
    /// request that is not bound can be the trial of any ejected endpoint.
    pub const fn bind(&mut self) {
        self.bound = true;
    }

    /// Returns whether the request is bound to its first candidate.
    #[must_use]
    pub const fn is_bound(&self) -> bool {
        self.bound
    }

    /// Returns the indexes of this part, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.indexes.iter().map(|&index| index as usize)
    }

    /// Returns how many members this part holds.
    pub(crate) const fn len(&self) -> usize {
        self.indexes.len()
    }

    /// Returns the index at a place of this part.
    pub(crate) fn get(&self, place: usize) -> Option<usize> {
        self.indexes.get(place).map(|&index| index as usize)
    }
}

impl Default for Candidates {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_takes_members_until_it_is_full() {
        for (passed, most) in [(0, 16), (5, 16), (40, 40)] {
            let mut part = Candidates::after(passed);
            let pushed: Vec<_> = (0..most + 1).map(|index| part.push(index)).collect();
            assert_eq!(
                pushed.iter().filter(|&&takes_more| takes_more).count(),
                most - 1
            );
            assert!(part.is_full() && part.iter().eq(0..most));
        }
    }
}
