//! Where a request may go, in order of preference.

/// Where a request may go, in order of preference: one part of the sequence.
///
/// Filled by [`Picker::candidates`](super::Picker::candidates), part after part. The first part
/// holds 16 members, by index, and later ones as many as all before them: so a picker that finds
/// its place again from the start of its order does little work twice. A part is owned, so a call
/// that waits can keep it.
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

/// How many members the first part holds: more than most sets have.
const FIRST: usize = 16;

impl Candidates {
    /// Creates an empty first part: for a picker that reads another's candidates.
    #[must_use]
    pub const fn new() -> Self {
        Self::after(0)
    }

    /// Creates the part that follows so many candidates.
    pub(crate) const fn after(passed: usize) -> Self {
        let most = if passed > FIRST { passed } else { FIRST };
        Self { indexes: Vec::new(), most, bound: false }
    }

    /// Creates an empty part of so many members.
    #[cfg(test)]
    pub(crate) const fn of(most: usize) -> Self {
        Self { indexes: Vec::new(), most, bound: false }
    }

    /// Adds the next member; returns whether there is room for more.
    ///
    /// The index is that of the [`Members`](super::Members) from which the picker was built.
    /// Without room nothing is added.
    #[inline]
    pub fn push(&mut self, index: usize) -> bool {
        if !self.is_full() {
            // An index beyond this range is no member's.
            self.indexes.push(u32::try_from(index).unwrap_or(u32::MAX));
        }
        !self.is_full()
    }

    /// Returns whether there is no room for more.
    #[must_use]
    #[inline]
    pub const fn is_full(&self) -> bool {
        self.indexes.len() >= self.most
    }

    /// Binds the request to the first of its candidates that has a weight: it belongs there,
    /// healthy or not.
    ///
    /// An ejected endpoint is then tried by a request that belongs to it, and by no request that
    /// belongs to another. Without a candidate the request tries none. Unbound requests try any
    /// endpoint.
    pub const fn bind(&mut self) {
        self.bound = true;
    }

    /// Returns whether the request belongs to one of its candidates.
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
    fn a_part_takes_what_it_has_room_for() {
        for (passed, most) in [(0, 16), (5, 16), (40, 40)] {
            let mut part = Candidates::after(passed);
            let pushed: Vec<_> = (0..most + 1).map(|index| part.push(index)).collect();
            assert_eq!(pushed.iter().filter(|&&room| room).count(), most - 1);
            assert!(part.is_full() && part.iter().eq(0..most));
        }
    }
}
