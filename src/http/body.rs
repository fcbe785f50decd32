//! Judges that end a call within or after the body of its response.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::{
    call::{
        guard::Guard,
        judge::{Judge, sealed},
    },
    health::outcome::Outcome,
    http::{ClassifyBody, ClassifyEnd, Head},
};

/// Ends a call at the first data of its body.
///
/// For streams whose first data shows that the endpoint works, and which then stay open. A body that
/// ends or breaks off before its first data counts as by [`AtBodyEnd`]; the rest is not judged.
///
/// For `http::Response`. The body of the response becomes [`Tracked`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AtFirstData<K> {
    classify: K,
}

/// Ends a call at the end of its body, after the trailers.
///
/// If the [classifier](ClassifyBody) knows the outcome from the head, it counts at once; the call
/// stays in flight until the body ends. A body that breaks off is a failure. If the caller drops the
/// body after a good head, the call ends without a failure: the count of failures stays as it is,
/// and a trial has succeeded. While the body of a trial is open, no other call is a trial of the
/// endpoint, for at most [`base_ejection`](crate::Health::base_ejection).
///
/// For streams that stay open, use [`AtFirstData`] beside [`PeakEwma`](crate::policy::PeakEwma):
/// otherwise their whole time counts as latency.
///
/// For `http::Response`. The body of the response becomes [`Tracked`].
///
/// ```
/// use counterpoise::{http::{AtBodyEnd, Grpc}, Builder};
///
/// let builder = Builder::new().judge(AtBodyEnd::new(Grpc::new()));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AtBodyEnd<K> {
    classify: K,
}

impl<K> AtFirstData<K> {
    /// Judges heads, and bodies up to their first data, by a classifier.
    pub const fn new(classify: K) -> Self {
        Self { classify }
    }
}

impl<K> AtBodyEnd<K> {
    /// Judges heads and the ends of bodies by a classifier.
    pub const fn new(classify: K) -> Self {
        Self { classify }
    }
}

impl<K, T, C, B, Err> Judge<T, C, Response<B>, Err> for AtFirstData<K>
where
    K: ClassifyBody<B, Err> + Clone,
    B: Body,
{
    type Response = Response<Tracked<B, K::End>>;
}

impl<K, T, C, B, Err> sealed::EndCall<T, C, Response<B>, Err> for AtFirstData<K>
where
    K: ClassifyBody<B, Err>,
    B: Body,
{
    type Output = Response<Tracked<B, K::End>>;

    fn end(
        &self,
        guard: &mut Guard,
        result: Result<Response<B>, Err>,
    ) -> Result<Self::Output, Err> {
        follow(&self.classify, guard, result, Until::FirstData)
    }
}

impl<K, T, C, B, Err> Judge<T, C, Response<B>, Err> for AtBodyEnd<K>
where
    K: ClassifyBody<B, Err> + Clone,
    B: Body,
{
    type Response = Response<Tracked<B, K::End>>;
}

impl<K, T, C, B, Err> sealed::EndCall<T, C, Response<B>, Err> for AtBodyEnd<K>
where
    K: ClassifyBody<B, Err>,
    B: Body,
{
    type Output = Response<Tracked<B, K::End>>;

    fn end(
        &self,
        guard: &mut Guard,
        result: Result<Response<B>, Err>,
    ) -> Result<Self::Output, Err> {
        follow(&self.classify, guard, result, Until::BodyEnd)
    }
}

/// The part of a body that belongs to the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    FirstData,
    BodyEnd,
}

/// Ends a call that failed; otherwise judges the head and wraps the body.
fn follow<K: ClassifyBody<B, Err>, B: Body, Err>(
    classify: &K,
    guard: &mut Guard,
    result: Result<Response<B>, Err>,
    until: Until,
) -> Result<Response<Tracked<B, K::End>>, Err> {
    match result {
        Ok(response) => Ok(track(classify, guard, response, until)),
        Err(error) => {
            let outcome = guard.inside(|| classify.classify(Err(&error)));
            guard.close(outcome);
            Err(error)
        }
    }
}

/// Judges the head and wraps the body, unless it has ended.
fn track<K: ClassifyBody<B, Err>, B: Body, Err>(
    classify: &K,
    guard: &mut Guard,
    response: Response<B>,
    until: Until,
) -> Response<Tracked<B, K::End>> {
    let (head, ended) = guard.inside(|| {
        (
            classify.classify_head(&response),
            response.body().is_end_stream(),
        )
    });
    let mut guard = guard.hand_over();
    let end = match head {
        Head::Open(end) => {
            if !ended {
                guard.answer();
            }
            Some(end)
        }
        Head::Known(outcome) => {
            guard.report_outcome(outcome);
            None
        }
    };
    let mut follower = Follower { guard, end, until };
    response.map(|inner| {
        if ended {
            follower.end(None);
        }
        Tracked {
            inner,
            follower: (!ended).then_some(follower),
        }
    })
}

pin_project! {
    /// A response body that ends its call.
    ///
    /// Data, trailers, size hint and errors are those of the body inside. Dropping it ends the call. A
    /// body from `Default` belongs to no call.
    pub struct Tracked<B, E: ClassifyEnd> {
        #[pin]
        inner: B,
        follower: Option<Follower<E>>,
    }
}

/// The part of a call after the head of its response.
struct Follower<E: ClassifyEnd> {
    guard: Guard,
    /// Judges the end; none if the outcome is known from the head.
    end: Option<E>,
    until: Until,
}

impl<E: ClassifyEnd> Follower<E> {
    /// Ends the call if this frame ends it; returns whether it does.
    fn judge<D, X>(
        &mut self,
        frame: Option<&Result<Frame<D>, X>>,
        is_last: impl FnOnce() -> bool,
    ) -> bool {
        match frame {
            None => self.end(None),
            Some(Err(_)) => self.close(Outcome::Failure),
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.end(Some(trailers));
                } else if self.until == Until::FirstData {
                    self.close(Outcome::Success);
                } else if is_last() {
                    self.end(None);
                } else {
                    return false;
                }
            }
        }
        true
    }

    /// Runs the body's code. A panic in it is a failure, unless the outcome is known from the head.
    fn inside<R>(&mut self, work: impl FnOnce() -> R) -> R {
        match self.end {
            Some(_) => self.guard.inside(work),
            None => work(),
        }
    }

    /// Ends the call at the end of the body.
    fn end(&mut self, trailers: Option<&HeaderMap>) {
        match self.end.take() {
            Some(end) => {
                let outcome = self.guard.inside(|| end.classify_end(trailers));
                self.guard.close(outcome);
            }
            None => self.guard.finish(),
        }
    }

    /// Ends the call before the end of the body.
    fn close(&mut self, outcome: Outcome) {
        match self.end.take() {
            Some(_) => self.guard.close(outcome),
            None => self.guard.finish(),
        }
    }
}

impl<E: ClassifyEnd> Drop for Follower<E> {
    fn drop(&mut self) {
        match self.end {
            Some(_) => self.guard.end_body_dropped(),
            None => self.guard.finish(),
        }
    }
}

impl<B: Body, E: ClassifyEnd> Body for Tracked<B, E> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let Some(follower) = this.follower else {
            return this.inner.poll_frame(cx);
        };
        let frame = ready!(follower.inside(|| this.inner.as_mut().poll_frame(cx)));
        if follower.judge(frame.as_ref(), || this.inner.is_end_stream()) {
            *this.follower = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B: Default, E: ClassifyEnd> Default for Tracked<B, E> {
    fn default() -> Self {
        Self {
            inner: B::default(),
            follower: None,
        }
    }
}

impl<B: fmt::Debug, E: ClassifyEnd> fmt::Debug for Tracked<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracked")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}
