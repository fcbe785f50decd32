//! Classifiers of responses with their bodies.

use http::{HeaderMap, Response};

use crate::health::{
    classify::{Classify, ErrorsAreFailures},
    outcome::Outcome,
};

/// Classifies responses with their bodies, for [`AtBodyEnd`](super::AtBodyEnd) and
/// [`AtFirstData`](super::AtFirstData).
///
/// Closures and most classifiers judge the head alone: a good head is a success once the body has
/// ended, and a body that breaks off is a failure. [`Grpc`](super::Grpc) reads the trailers.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not classify responses with bodies of type `{B}` or the error `{Err}`",
    note = "give `AtBodyEnd` and `AtFirstData` an `http::Status`, an `http::Grpc`, or a closure over `Result<&http::Response<{B}>, &{Err}>` with its types written out"
)]
pub trait ClassifyBody<B, Err>: Classify<Response<B>, Err> {
    /// The data of the head that the judgement at the end needs.
    type End: ClassifyEnd;

    /// Judges the head, or defers the judgement to the end.
    fn classify_head(&self, head: &Response<B>) -> Head<Self::End>;
}

/// The judgement of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Head<E> {
    /// The outcome of the call, whatever follows.
    Known(Outcome),
    /// None yet: the end of the body decides.
    Open(E),
}

/// Judges the end of a body that has not broken off.
pub trait ClassifyEnd {
    /// Returns the outcome of the call; `trailers` is none if the body has none.
    fn classify_end(self, trailers: Option<&HeaderMap>) -> Outcome;
}

/// After a good head, a body that ends is a success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GoodHead;

impl GoodHead {
    /// Defers a success to the end of the body; any other outcome is known.
    fn of(outcome: Outcome) -> Head<Self> {
        match outcome {
            Outcome::Success => Head::Open(Self),
            other => Head::Known(other),
        }
    }
}

impl ClassifyEnd for GoodHead {
    fn classify_end(self, _trailers: Option<&HeaderMap>) -> Outcome {
        Outcome::Success
    }
}

#[diagnostic::do_not_recommend]
impl<F, B, Err> ClassifyBody<B, Err> for F
where
    F: Fn(Result<&Response<B>, &Err>) -> Outcome,
{
    type End = GoodHead;

    fn classify_head(&self, head: &Response<B>) -> Head<GoodHead> {
        GoodHead::of(self(Ok(head)))
    }
}

impl<B, Err> ClassifyBody<B, Err> for ErrorsAreFailures {
    type End = GoodHead;

    fn classify_head(&self, _head: &Response<B>) -> Head<GoodHead> {
        Head::Open(GoodHead)
    }
}

impl<B, Err> ClassifyBody<B, Err> for super::Status {
    type End = GoodHead;

    fn classify_head(&self, head: &Response<B>) -> Head<GoodHead> {
        GoodHead::of(self.outcome(head.status(), head.headers()))
    }
}
