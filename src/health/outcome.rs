//! The outcome of a call.

use std::time::Duration;

/// What the result of a call means for the health of its endpoint.
///
/// A [`Classify`](crate::Classify) makes it from the result. A call that is dropped before it ends
/// has no result and no outcome: it counts as a failure from the age of
/// [`drop_counts_after`](crate::Health::drop_counts_after) on, and otherwise changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The endpoint works, also if it refused the request for a good reason. It resets the count of
    /// failures.
    Success,
    /// The endpoint does not work. It adds to the count of failures.
    Failure,
    /// The endpoint works and pushed back: its capacity is lowered for a while, as
    /// [`Overload`](crate::health::Overload) says. It does not change the count of failures.
    Overload,
    /// The same as [`Overload`](Self::Overload), for the time that the endpoint requested.
    OverloadFor(Duration),
    /// The result does not depend on the endpoint. It does not change the count of failures.
    Neutral,
}
