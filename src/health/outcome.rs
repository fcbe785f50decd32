//! What a finished call says about its endpoint.

use std::time::Duration;

/// What the result of a call says about the endpoint that made it.
///
/// A [`Classify`](crate::Classify) turns results into outcomes. A call that is dropped
/// before it ends has no result and hence no outcome of this kind: it counts as a failure
/// if it was older than [`drop_counts_after`](crate::Health::drop_counts_after), else as
/// nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The endpoint did its work; also when it refused for good reason. Clears the count
    /// of failures.
    Success,
    /// The endpoint did not do its work. Adds to the count of failures.
    Failure,
    /// The endpoint pushed back: it works, but wants less. It gets less for a while, see
    /// [`Overload`](crate::health::Overload). Counted, and changes no other count.
    Overload,
    /// The same, and the endpoint said for how long.
    OverloadFor(Duration),
    /// Says nothing about the endpoint. Counted, and changes no other count.
    Neutral,
}
