//! Where a request may go, in order of preference.

/// Where a request may go, in order of preference: a part of the sequence, which goes on in the
/// next part.
///
/// Filled by [`Picker::candidates`](super::Picker::candidates). A part holds at most 16 members,
/// by index; it is owned and costs no allocation, so a call that waits can keep it.
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
    indexes: [u32; PART],
    len: usize,
    most: usize,
    /// How many the parts before held.
    passed: usize,
    bound: bool,
}

/// How many members a part holds.
const PART: usize = 16;

impl Candidates {
    /// Creates an empty part, of 16 members at most: for a picker that reads another's candidates.
    #[must_use]
    pub const fn new() -> Self {
        Self::of(PART)
    }

    /// Creates an empty part of so many members, between 1 and 16.
    pub(crate) const fn of(most: usize) -> Self {
        let most = if most > PART { PART } else { most };
        let most = if most < 1 { 1 } else { most };
        Self { indexes: [0; PART], len: 0, most, passed: 0, bound: false }
    }

    /// Adds the next member; returns whether there is room for more.
    ///
    /// The index is that of the [`Members`](super::Members) from which the picker was built.
    /// Without room nothing is added.
    #[inline]
    pub fn push(&mut self, index: usize) -> bool {
        if self.len < self.most {
            // An index beyond this range is no member's.
            self.indexes[self.len] = u32::try_from(index).unwrap_or(u32::MAX);
            self.len += 1;
        }
        self.len < self.most
    }

    /// Returns whether there is no room for more.
    #[must_use]
    #[inline]
    pub const fn is_full(&self) -> bool {
        self.len == self.most
    }

    /// Binds the request to the first of its candidates that has a weight: it belongs there,
    /// healthy or not.
    ///
    /// An ejected endpoint is then tested by a request that belongs to it, and by no request that
    /// belongs to another. Without a candidate the request tests none. Unbound requests
    /// test any endpoint.
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
        self.indexes[..self.len].iter().map(|&index| index as usize)
    }

    /// Empties the part for the next one; returns how many members all parts so far held: the
    /// `skip` of the next part.
    pub(crate) const fn next_part(&mut self) -> usize {
        self.passed += self.len;
        self.len = 0;
        self.passed
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
        let mut part = Candidates::of(3);
        assert_eq!([7, 8, 9, 10].map(|index| part.push(index)), [true, true, false, false]);
        assert!(part.is_full() && part.iter().eq([7, 8, 9]));
        assert_eq!((part.next_part(), part.iter().count()), (3, 0));
        part.push(10);
        assert_eq!(part.next_part(), 4);
    }

    #[test]
    fn parts_hold_between_one_and_sixteen() {
        for (most, want) in [(0, 1), (1, 1), (16, 16), (99, 16)] {
            let mut part = Candidates::of(most);
            while part.push(0) {}
            assert_eq!(part.iter().count(), want);
        }
    }
}
