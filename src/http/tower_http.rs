//! Classifiers of tower-http.

use http::{HeaderMap, Response};
use tower_http::classify::{ClassifiedResponse, ClassifyEos, ClassifyResponse};

use super::{ClassifyBody, ClassifyEnd, Head};
use crate::health::{classify::Classify, outcome::Outcome};

/// Classifies by a [classifier of tower-http 0.7](tower_http::classify): its failures are failures,
/// and all other results successes.
///
/// By default `GrpcErrorsAsFailures` counts every status but `OK` as a failure, refusals of the
/// application included; [`Grpc`](super::Grpc) does not. These classifiers have no push-back.
///
/// ```
/// use counterpoise::{http::ByTowerHttp, Builder};
/// use tower_http::classify::ServerErrorsAsFailures;
///
/// let builder = Builder::new().classify(ByTowerHttp::new(ServerErrorsAsFailures::new()));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByTowerHttp<C>(C);

/// Judges the end of a body by a classifier of tower-http.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TowerHttpEnd<E>(E);

impl<C: ClassifyResponse + Clone> ByTowerHttp<C> {
    /// Creates the classifier from one of tower-http, which is cloned for each call.
    #[must_use]
    pub const fn new(classifier: C) -> Self {
        Self(classifier)
    }
}

/// Returns the outcome of a result of tower-http.
const fn outcome<C>(result: &Result<(), C>) -> Outcome {
    if result.is_ok() {
        Outcome::Success
    } else {
        Outcome::Failure
    }
}

impl<C, B, Err> Classify<Response<B>, Err> for ByTowerHttp<C>
where
    C: ClassifyResponse + Clone,
{
    fn classify(&self, result: Result<&Response<B>, &Err>) -> Outcome {
        let Ok(head) = result else {
            return Outcome::Failure;
        };
        match self.0.clone().classify_response(head) {
            ClassifiedResponse::Ready(result) => outcome(&result),
            ClassifiedResponse::RequiresEos(_) => Outcome::Success,
        }
    }
}

impl<C, B, Err> ClassifyBody<B, Err> for ByTowerHttp<C>
where
    C: ClassifyResponse + Clone,
{
    type End = TowerHttpEnd<Option<C::ClassifyEos>>;

    fn classify_head(&self, head: &Response<B>) -> Head<Self::End> {
        match self.0.clone().classify_response(head) {
            ClassifiedResponse::Ready(Ok(())) => Head::Open(TowerHttpEnd(None)),
            ClassifiedResponse::Ready(result) => Head::Known(outcome(&result)),
            ClassifiedResponse::RequiresEos(end) => Head::Open(TowerHttpEnd(Some(end))),
        }
    }
}

impl<E: ClassifyEos> ClassifyEnd for TowerHttpEnd<Option<E>> {
    fn classify_end(self, trailers: Option<&HeaderMap>) -> Outcome {
        let classified = self.0.map(|end| outcome(&end.classify_eos(trailers)));
        classified.unwrap_or(Outcome::Success)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tower_http::classify::{GrpcErrorsAsFailures, ServerErrorsAsFailures};

    #[test]
    fn heads_and_ends_are_classified() {
        let head = |code: u16| Response::builder().status(code).body(()).unwrap();
        let by = ByTowerHttp::new(ServerErrorsAsFailures::new());
        let outcome = |code| by.classify(Ok::<_, &()>(&head(code)));
        assert_eq!(
            [200, 429, 500].map(outcome),
            [Outcome::Success, Outcome::Success, Outcome::Failure]
        );
        assert_eq!(
            Classify::<Response<()>, _>::classify(&by, Err(&())),
            Outcome::Failure
        );

        let by = ByTowerHttp::new(GrpcErrorsAsFailures::new());
        let open = || match ClassifyBody::<(), ()>::classify_head(&by, &head(200)) {
            Head::Open(end) => end,
            Head::Known(outcome) => panic!("{outcome:?}"),
        };
        let trailers = |code: &str| {
            HeaderMap::from_iter([("grpc-status".parse().unwrap(), code.parse().unwrap())])
        };
        assert_eq!(open().classify_end(Some(&trailers("0"))), Outcome::Success);
        assert_eq!(open().classify_end(Some(&trailers("13"))), Outcome::Failure);
    }
}
