//! What the body of a response says, beyond its head.

use http::{HeaderMap, Response};

use crate::health::{
    classify::{Classify, ErrorsAreFailures},
    outcome::Outcome,
};

/// Classifies responses whose bodies are followed, by [`AtBodyEnd`](super::AtBodyEnd).
///
/// Closures and most classifiers judge the head alone; their responses count as what the head
/// says, and a body that breaks off is a failure. [`Grpc`](super::Grpc) looks into the
/// trailers.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not classify responses with bodies of type `{B}` or the error `{Err}`",
    note = "give `AtBodyEnd` and `AtFirstData` an `http::Status`, an `http::Grpc`, or a closure over `Result<&http::Response<{B}>, &{Err}>` with its types written out"
)]
pub trait ClassifyBody<B, Err>: Classify<Response<B>, Err> {
    /// What is kept of the head until the body ends.
    type End: ClassifyEnd;

    /// Judges the head, or leaves the judgement to the end.
    fn classify_head(&self, head: &Response<B>) -> Head<Self::End>;
}

/// What the head of a response says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Head<E> {
    /// This, and what follows says no more.
    Known(Outcome),
    /// Nothing yet: the end decides.
    Open(E),
}

/// Judges the end of a body that did not break off.
pub trait ClassifyEnd {
    /// Returns the outcome of the call; `trailers` are those that came, if any.
    fn classify_end(self, trailers: Option<&HeaderMap>) -> Outcome;
}

/// The head was good, and a body that ends is good, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GoodHead;

impl GoodHead {
    /// Leaves a success open until the body has come whole; anything else is known.
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
