//! What a policy may see of the set: names and numbers, no services.

use std::sync::Arc;

/// The members of the set, in the order in which they joined.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    members: &'a [Member],
    eligible: &'a [u32],
}

/// One endpoint, as a policy sees it.
#[derive(Debug, Clone)]
pub struct Member {
    pub(crate) id: u64,
    pub(crate) name: Arc<str>,
    pub(crate) weight: u32,
    /// In service, as far as its health goes.
    pub(crate) healthy: bool,
}

impl<'a> View<'a> {
    pub(crate) const fn new(members: &'a [Member], eligible: &'a [u32]) -> Self {
        Self { members, eligible }
    }

    /// Returns all members: also those that are drained or ejected.
    ///
    /// An index into this slice is what a pick returns.
    #[must_use]
    pub const fn members(&self) -> &'a [Member] {
        self.members
    }

    /// Returns the indexes of the members that may be picked, in rising order: those with
    /// a weight that are in service, or all with a weight while health is ignored.
    #[must_use]
    pub const fn eligible(&self) -> &'a [u32] {
        self.eligible
    }
}

impl Member {
    /// Returns a number that stays with the endpoint while its key stays in the set, and
    /// is never used again.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Returns the name: the `Display` form of the key.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the weight that was set.
    #[must_use]
    pub const fn weight(&self) -> u32 {
        self.weight
    }
}
