//! Outcomes by HTTP status.

use std::{
    ops::RangeInclusive,
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, Response, StatusCode, header::RETRY_AFTER};

use crate::health::{classify::Classify, outcome::Outcome};

/// Classifies HTTP responses by their status.
///
/// | status | outcome |
/// |---|---|
/// | 429 | [overload](Outcome::Overload), for as long as `Retry-After` says |
/// | 503 with `Retry-After` | the same |
/// | other 5xx | failure |
/// | all others | success: a refusal is an answer |
///
/// An error of the client is a failure. For `http::Response` and, with the feature `reqwest`,
/// `reqwest::Response`.
///
/// ```
/// use counterpoise::{http::Status, Builder, Outcome};
///
/// // 502 is a fault of the upstream, not of the gateway; 408 is one of the gateway.
/// let status = Status::new().with(502..=502, Outcome::Neutral).with(408..=408, Outcome::Failure);
/// let builder = Builder::new().classify(status);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Status {
    /// The last rule that contains a status decides.
    rules: Option<Arc<[Rule]>>,
}

type Rule = (RangeInclusive<u16>, Outcome);

impl Status {
    /// Creates the classifier.
    #[must_use]
    pub const fn new() -> Self {
        Self { rules: None }
    }

    /// Sets the outcome of a range of statuses.
    ///
    /// Later calls override earlier ones. An [`Outcome::Overload`] lasts as long as `Retry-After`
    /// says, if the response has it.
    #[must_use]
    pub fn with(self, statuses: RangeInclusive<u16>, outcome: Outcome) -> Self {
        let former = self.rules.iter().flat_map(|rules| rules.iter().cloned());
        Self {
            rules: Some(former.chain([(statuses, outcome)]).collect()),
        }
    }

    /// Returns the outcome of a head.
    pub(super) fn outcome(&self, status: StatusCode, headers: &HeaderMap) -> Outcome {
        let code = status.as_u16();
        let mut rules = self.rules.iter().flat_map(|rules| rules.iter().rev());
        match rules.find(|(statuses, _)| statuses.contains(&code)) {
            Some((_, Outcome::Overload)) => overload(headers),
            Some((_, outcome)) => *outcome,
            None => usual(code, headers),
        }
    }
}

/// Returns the default outcome of a status.
fn usual(code: u16, headers: &HeaderMap) -> Outcome {
    match code {
        429 => overload(headers),
        503 if headers.contains_key(RETRY_AFTER) => overload(headers),
        500..=599 => Outcome::Failure,
        _ => Outcome::Success,
    }
}

/// Returns an overload for as long as `Retry-After` says.
pub(super) fn overload(headers: &HeaderMap) -> Outcome {
    retry_after(headers, SystemTime::now()).map_or(Outcome::Overload, Outcome::OverloadFor)
}

/// Reads `Retry-After`: seconds, or a date. (RFC 9110, section 10.2.3)
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    match digits(text) {
        Some(seconds) => Some(Duration::from_secs(seconds)),
        None => httpdate::parse_http_date(text)
            .ok()?
            .duration_since(now)
            .ok(),
    }
}

/// Reads a number of digits alone; one that does not fit counts as the greatest that does.
pub(super) fn digits(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(text.parse().unwrap_or(u64::MAX))
}

impl<B, Err> Classify<Response<B>, Err> for Status {
    fn classify(&self, result: Result<&Response<B>, &Err>) -> Outcome {
        result.map_or(Outcome::Failure, |head| {
            self.outcome(head.status(), head.headers())
        })
    }
}

#[cfg(feature = "reqwest")]
impl<Err> Classify<reqwest::Response, Err> for Status {
    fn classify(&self, result: Result<&reqwest::Response, &Err>) -> Outcome {
        result.map_or(Outcome::Failure, |head| {
            self.outcome(head.status(), head.headers())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(status: &Status, code: u16, retry_after: Option<&str>) -> Outcome {
        let mut response = Response::builder().status(code);
        if let Some(value) = retry_after {
            response = response.header(RETRY_AFTER, value);
        }
        status.classify(Ok::<_, &()>(&response.body(()).unwrap()))
    }

    #[test]
    fn each_status_has_its_outcome() {
        let status = Status::new();
        for code in [200, 204, 301, 400, 401, 404, 408, 418, 499] {
            assert_eq!(
                outcome(&status, code, Some("5")),
                Outcome::Success,
                "{code}"
            );
        }
        for code in [500, 502, 503, 504, 599] {
            assert_eq!(outcome(&status, code, None), Outcome::Failure, "{code}");
        }
        assert_eq!(outcome(&status, 500, Some("5")), Outcome::Failure);
        let five = Outcome::OverloadFor(Duration::from_secs(5));
        assert_eq!(outcome(&status, 503, Some("5")), five);
        assert_eq!(outcome(&status, 429, Some(" 5 ")), five);
        for nonsense in [None, Some("soon"), Some("-5"), Some("5.5"), Some("")] {
            assert_eq!(
                outcome(&status, 429, nonsense),
                Outcome::Overload,
                "{nonsense:?}"
            );
        }
    }

    #[test]
    fn a_time_that_no_number_holds_is_the_longest() {
        let ages = Some("999999999999999999999999999999");
        let longest = Outcome::OverloadFor(Duration::from_secs(u64::MAX));
        assert_eq!(outcome(&Status::new(), 429, ages), longest);
        assert_eq!(outcome(&Status::new(), 503, ages), longest);
        assert_eq!(outcome(&Status::new(), 429, Some("+5")), Outcome::Overload);
    }

    #[test]
    fn dates_are_read() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_770);
        let after = |date: &str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, date.parse().unwrap())]);
            retry_after(&headers, now)
        };
        assert_eq!(
            after("Sun, 06 Nov 1994 08:49:37 GMT"),
            Some(Duration::from_secs(7))
        );
        assert_eq!(after("Sun, 06 Nov 1994 08:49:00 GMT"), None, "in the past");
    }

    #[test]
    fn later_rules_override_earlier_ones() {
        let status = Status::new()
            .with(400..=499, Outcome::Neutral)
            .with(404..=404, Outcome::Overload);
        assert_eq!(outcome(&status, 400, None), Outcome::Neutral);
        assert_eq!(outcome(&status, 429, None), Outcome::Neutral);
        let wait = Outcome::OverloadFor(Duration::from_secs(1));
        assert_eq!(outcome(&status, 404, Some("1")), wait);
        assert_eq!(outcome(&status, 500, None), Outcome::Failure);
    }
}
