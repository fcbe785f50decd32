//! Outcomes by gRPC status.

use std::time::Duration;

use http::{HeaderMap, Response, StatusCode};

use super::{
    ClassifyBody, ClassifyEnd, Head,
    status::{digits, overload},
};
use crate::health::{classify::Classify, outcome::Outcome};

/// Classifies gRPC responses by `grpc-status`, in the head or in the trailers.
///
/// | status | outcome |
/// |---|---|
/// | `UNKNOWN`, `DEADLINE_EXCEEDED`, `INTERNAL`, `UNAVAILABLE`, `DATA_LOSS` | failure |
/// | `RESOURCE_EXHAUSTED`; `UNAVAILABLE` with `grpc-retry-pushback-ms` | [overload](Outcome::Overload), for as long as `grpc-retry-pushback-ms` says |
/// | `CANCELLED` | neutral: the caller ended the call |
/// | `OK`, and refusals of the application: `NOT_FOUND`, `PERMISSION_DENIED`, … | success |
/// | no status, in neither place | neutral |
///
/// A response with another HTTP status than 200 is not gRPC: 429 is overload, 401 and 403 are
/// successes, and all others are failures.
///
/// With a message the status comes in the trailers, after the body: only
/// [`AtBodyEnd`](super::AtBodyEnd) reads it, the default for [`GrpcChannel`](super::GrpcChannel).
/// Judged at the head, a head without a status is a success.
///
/// ```
/// use counterpoise::{http::{AtBodyEnd, Grpc}, Builder, Outcome};
///
/// let unimplemented = 12;
/// let grpc = Grpc::new().with(unimplemented, Outcome::Failure);
/// let builder = Builder::new().judge(AtBodyEnd::new(grpc));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grpc {
    outcomes: [Outcome; CODES],
}

/// The codes from `OK` to `UNAUTHENTICATED`.
const CODES: usize = 17;

const UNKNOWN: usize = 2;
const UNAVAILABLE: usize = 14;

impl Default for Grpc {
    fn default() -> Self {
        Self::new()
    }
}

impl Grpc {
    /// Creates the classifier.
    #[must_use]
    pub const fn new() -> Self {
        let mut outcomes = [Outcome::Success; CODES];
        outcomes[1] = Outcome::Neutral;
        outcomes[UNKNOWN] = Outcome::Failure;
        outcomes[4] = Outcome::Failure;
        outcomes[8] = Outcome::Overload;
        outcomes[13] = Outcome::Failure;
        outcomes[UNAVAILABLE] = Outcome::Failure;
        outcomes[15] = Outcome::Failure;
        Self { outcomes }
    }

    /// Sets the outcome of a status, by its number from 0 (`OK`) to 16 (`UNAUTHENTICATED`).
    ///
    /// Other numbers are ignored here; in a response they count as 2 (`UNKNOWN`).
    #[must_use]
    pub const fn with(mut self, code: usize, outcome: Outcome) -> Self {
        if code < CODES {
            self.outcomes[code] = outcome;
        }
        self
    }

    /// Returns the outcome of a status; none without a status.
    fn outcome(&self, headers: &HeaderMap) -> Option<Outcome> {
        let status = headers
            .get("grpc-status")?
            .to_str()
            .ok()
            .and_then(|text| text.parse().ok());
        let code = status
            .filter(|&code: &usize| code < CODES)
            .unwrap_or(UNKNOWN);
        let overload_for = || pushback(headers).map(Outcome::OverloadFor);
        Some(match self.outcomes[code] {
            Outcome::Overload => overload_for().unwrap_or(Outcome::Overload),
            Outcome::Failure if code == UNAVAILABLE => overload_for().unwrap_or(Outcome::Failure),
            outcome => outcome,
        })
    }

    /// Returns the outcome of a head; none if it does not decide.
    fn head(&self, status: StatusCode, headers: &HeaderMap) -> Option<Outcome> {
        match status.as_u16() {
            200 => self.outcome(headers),
            429 => Some(overload(headers)),
            401 | 403 => Some(Outcome::Success),
            _ => Some(Outcome::Failure),
        }
    }
}

/// Reads the duration of push-back (gRFC A6); a negative number forbids retries and has no duration.
fn pushback(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-retry-pushback-ms")?.to_str().ok()?;
    Some(Duration::from_millis(digits(text)?))
}

impl<B, Err> Classify<Response<B>, Err> for Grpc {
    fn classify(&self, result: Result<&Response<B>, &Err>) -> Outcome {
        let Ok(head) = result else {
            return Outcome::Failure;
        };
        self.head(head.status(), head.headers())
            .unwrap_or(Outcome::Success)
    }
}

impl<B, Err> ClassifyBody<B, Err> for Grpc {
    type End = Self;

    fn classify_head(&self, head: &Response<B>) -> Head<Self> {
        self.head(head.status(), head.headers())
            .map_or(Head::Open(*self), Head::Known)
    }
}

impl ClassifyEnd for Grpc {
    fn classify_end(self, trailers: Option<&HeaderMap>) -> Outcome {
        trailers
            .and_then(|trailers| self.outcome(trailers))
            .unwrap_or(Outcome::Neutral)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(fields: &[(&'static str, &str)]) -> Response<()> {
        let mut response = Response::builder();
        for (name, value) in fields {
            response = response.header(*name, *value);
        }
        response.body(()).unwrap()
    }

    fn at_head(fields: &[(&'static str, &str)]) -> Outcome {
        Grpc::new().classify(Ok::<_, &()>(&head(fields)))
    }

    #[test]
    fn each_code_has_its_outcome() {
        for code in [0, 3, 5, 6, 7, 9, 10, 11, 12, 16] {
            assert_eq!(
                at_head(&[("grpc-status", &code.to_string())]),
                Outcome::Success,
                "{code}"
            );
        }
        for code in ["2", "4", "13", "14", "15", "17", "99", "-1", "x", ""] {
            assert_eq!(
                at_head(&[("grpc-status", code)]),
                Outcome::Failure,
                "{code}"
            );
        }
        assert_eq!(at_head(&[("grpc-status", "8")]), Outcome::Overload);
        assert_eq!(at_head(&[("grpc-status", "1")]), Outcome::Neutral);
    }

    #[test]
    fn pushback_sets_the_duration_of_overload() {
        let outcome = |code, ms| at_head(&[("grpc-status", code), ("grpc-retry-pushback-ms", ms)]);
        let wait = Outcome::OverloadFor(Duration::from_millis(1500));
        assert_eq!([outcome("8", "1500"), outcome("14", "1500")], [wait; 2]);
        assert_eq!(outcome("13", "1500"), Outcome::Failure);
        let longest = Outcome::OverloadFor(Duration::from_millis(u64::MAX));
        assert_eq!(outcome("8", "999999999999999999999999999999"), longest);
        assert_eq!(
            [outcome("8", "-1"), outcome("8", "x")],
            [Outcome::Overload; 2]
        );
        assert_eq!(outcome("14", "-1"), Outcome::Failure);
    }

    #[test]
    fn the_end_decides_where_the_head_does_not() {
        let grpc = Grpc::new();
        let open = ClassifyBody::<(), ()>::classify_head(&grpc, &head(&[]));
        assert_eq!(open, Head::Open(grpc));
        let known = ClassifyBody::<(), ()>::classify_head(&grpc, &head(&[("grpc-status", "14")]));
        assert_eq!(known, Head::Known(Outcome::Failure));
        let end = |fields: &[_]| grpc.classify_end(Some(head(fields).headers()));
        assert_eq!(end(&[("grpc-status", "13")]), Outcome::Failure);
        assert_eq!(end(&[("grpc-status", "0")]), Outcome::Success);
        assert_eq!(end(&[]), Outcome::Neutral);
        assert_eq!(grpc.classify_end(None), Outcome::Neutral);
    }

    #[test]
    fn responses_that_are_not_grpc_count_by_their_http_status() {
        let outcome = |code| {
            let response = Response::builder().status(code).body(()).unwrap();
            Grpc::new().classify(Ok::<_, &()>(&response))
        };
        assert_eq!([404, 500, 502, 503].map(outcome), [Outcome::Failure; 4]);
        assert_eq!([401, 403].map(outcome), [Outcome::Success; 2]);
        assert_eq!(outcome(429), Outcome::Overload);
    }
}
