//! When a call is over.

use crate::{call::guard::Guard, health::classify::Classify};

/// Decides when a call is over: until then it is in flight, and then its outcome is told.
///
/// Sealed: [`AtHead`], the default, for every response; for `http::Response` also
/// `http::AtFirstData` and `http::AtBodyEnd`. See [`Builder::ends`](crate::Builder::ends).
pub trait Ends<K, Res, Err>: Clone + sealed::Ends {
    /// What callers get: the response, with a body that is followed if need be.
    type Response;

    /// Hands the call over to whatever ends it.
    #[doc(hidden)]
    fn follow(&self, call: Call<'_, K>, response: Res) -> Self::Response;
}

/// A call whose response has begun.
#[doc(hidden)]
#[derive(Debug)]
#[allow(unnameable_types, reason = "only passed through a sealed trait")]
pub struct Call<'a, K> {
    pub(crate) guard: &'a mut Guard,
    pub(crate) classify: &'a K,
}

pub(crate) mod sealed {
    #[allow(unnameable_types, reason = "the seal")]
    pub trait Ends {}
}

/// A call is over when its response begins. What comes later, in a streamed body, is not seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AtHead;

impl AtHead {
    /// Creates the rule.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

impl sealed::Ends for AtHead {}

impl<K: Classify<Res, Err>, Res, Err> Ends<K, Res, Err> for AtHead {
    type Response = Res;

    #[inline]
    fn follow(&self, call: Call<'_, K>, response: Res) -> Res {
        let outcome = call.guard.inside(|| call.classify.classify(Ok(&response)));
        call.guard.close(outcome);
        response
    }
}
