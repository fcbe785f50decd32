//! Why a call failed: what, at which endpoint, out of how many.

use std::{error::Error as StdError, fmt, sync::Arc};

/// Any error, as the services of tower box it.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// The error of a balanced call. Clones share one source.
///
/// An error of the endpoint's own service is kept as it was in
/// [`source`](StdError::source) (or [`find`](Self::find)), beside the endpoint's name. When
/// no endpoint could be used, [`counts`](Self::counts) says why.
///
/// A timeout above the balancer makes an error of its own, which knows no endpoint:
/// [`Attempts`](crate::Attempts) list the endpoints that the request was sent to.
///
/// With the feature `tonic`, the errors of calls that were never sent carry a
/// `tonic::ConnectError` in their sources, so that a tonic client sees `Unavailable`; for
/// [`ErrorKind::Policy`] it is a `tonic::Status`, `FailedPrecondition`.
///
/// ```
/// # fn handle(error: &counterpoise::Error) {
/// if error.is_unavailable() {
///     eprintln!("no endpoint: {:?}", error.counts());
/// } else if let Some(name) = error.endpoint() {
///     eprintln!("{name} failed: {:?}", std::error::Error::source(error));
/// }
/// # }
/// ```
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    endpoint: Option<Arc<str>>,
    counts: Counts,
    detail: Option<String>,
    source: Option<BoxError>,
}

/// What went wrong, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The endpoint was called and its service returned an error.
    Call,
    /// No endpoint took the call: the last one tried failed to become ready. The request
    /// was not sent.
    ReadyFailed,
    /// No endpoint became ready within the time for waiting. The request was not sent.
    ReadyTimeout,
    /// The set of endpoints is empty, or discovery has named none within the time for
    /// waiting.
    Empty,
    /// Every endpoint has weight or capacity zero.
    Drained,
    /// Every endpoint that has a weight is ejected, or more of them than the panic
    /// threshold allows.
    Ejected,
    /// Discovery has ended or was stopped, and left no endpoint.
    DiscoveryEnded,
    /// As many calls wait for an endpoint as may wait.
    TooManyWaiting,
    /// The policy refused the request, named an endpoint that does not exist, or panicked
    /// while building its picker.
    Policy,
}

/// How many endpoints there were, and what kept them from being used.
///
/// An endpoint that is ejected and drained counts as drained.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Endpoints in the set.
    pub members: usize,
    /// Of these, out for their failures.
    pub ejected: usize,
    /// Of these, with weight or capacity zero.
    pub drained: usize,
    /// Of these, tried by this call and not ready.
    pub unready: usize,
}

impl Error {
    /// The endpoint's service returned an error.
    pub(crate) fn call(endpoint: Arc<str>, source: BoxError) -> Self {
        let mut inner = Inner::new(ErrorKind::Call);
        inner.endpoint = Some(endpoint);
        inner.source = Some(source);
        Self(Arc::new(inner))
    }

    /// The endpoint's service failed to become ready.
    pub(crate) fn not_ready(endpoint: Arc<str>, source: BoxError) -> Self {
        let mut inner = Inner::new(ErrorKind::ReadyFailed);
        inner.endpoint = Some(endpoint);
        inner.unsent(Some(source))
    }

    /// Nothing could be used, with the cause where one is known.
    pub(crate) fn unavailable(kind: ErrorKind, counts: Counts, cause: Option<BoxError>) -> Self {
        let mut inner = Inner::new(kind);
        inner.counts = counts;
        inner.unsent(cause)
    }

    /// The policy did not name an endpoint.
    pub(crate) fn policy(detail: impl Into<String>) -> Self {
        let mut inner = Inner::new(ErrorKind::Policy);
        inner.detail = Some(detail.into());
        inner.unsent(None)
    }

    /// Returns what went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the name of the endpoint that the error came from, if it came from one.
    #[must_use]
    pub fn endpoint(&self) -> Option<&str> {
        self.0.endpoint.as_deref()
    }

    /// Returns true if the request was not sent to any endpoint, so that sending it again
    /// is safe.
    #[must_use]
    pub fn is_unsent(&self) -> bool {
        !matches!(self.0.kind, ErrorKind::Call)
    }

    /// Returns true if no endpoint could be used, for other reasons than the policy's.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        !matches!(self.0.kind, ErrorKind::Call | ErrorKind::Policy)
    }

    /// Returns how many endpoints there were and what kept them from being used; all zero
    /// for an error that came from an endpoint.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0.counts
    }

    /// Finds an error of this type among an error and its sources: below what layers above
    /// have made of it, such as a boxed error or a `tonic::Status`.
    ///
    /// ```
    /// # fn handle(status: &(dyn std::error::Error + 'static)) {
    /// if let Some(error) = counterpoise::Error::find_in(status) {
    ///     eprintln!("from {:?}", error.endpoint());
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn find_in<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e Self> {
        first(Some(error))
    }

    /// Returns the first error of type `E` among the sources, such as a `reqwest::Error`.
    #[must_use]
    pub fn find<E: StdError + 'static>(&self) -> Option<&E> {
        first(self.source())
    }
}

/// Returns the first error of type `E` in a chain.
fn first<'e, E: StdError + 'static>(
    mut link: Option<&'e (dyn StdError + 'static)>,
) -> Option<&'e E> {
    while let Some(error) = link {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        link = error.source();
    }
    None
}

impl Inner {
    const fn new(kind: ErrorKind) -> Self {
        let counts = Counts { members: 0, ejected: 0, drained: 0, unready: 0 };
        Self { kind, endpoint: None, counts, detail: None, source: None }
    }

    /// Makes the error of a request that was not sent, for protocols that say so.
    fn unsent(mut self, cause: Option<BoxError>) -> Error {
        self.source = unsent_source(&self, cause);
        Error(Arc::new(self))
    }
}

impl fmt::Display for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.counts;
        let name = self.endpoint.as_deref().unwrap_or_default();
        match self.kind {
            ErrorKind::Call => write!(f, "the call to endpoint {name} failed"),
            ErrorKind::ReadyFailed => write!(f, "endpoint {name} failed to become ready"),
            ErrorKind::ReadyTimeout => write!(f, "no endpoint became ready in time: {counts}"),
            ErrorKind::Empty => write!(f, "there are no endpoints"),
            ErrorKind::Drained => write!(f, "all weights are zero, or capacities: {counts}"),
            ErrorKind::Ejected => write!(f, "too many endpoints are ejected: {counts}"),
            ErrorKind::DiscoveryEnded => write!(f, "discovery ended and left no endpoints"),
            ErrorKind::TooManyWaiting => write!(f, "too many calls wait for an endpoint"),
            ErrorKind::Policy => {
                let detail = self.detail.as_deref().unwrap_or("no endpoint named");
                write!(f, "the policy could not choose: {detail}")
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("endpoint", &self.0.endpoint)
            .field("counts", &self.0.counts)
            .field("detail", &self.0.detail)
            .field("source", &self.0.source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} members, {} ejected, {} drained, {} not ready",
            self.members, self.ejected, self.drained, self.unready
        )
    }
}

/// A setting that makes no sense, found when the balancer was built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    field: &'static str,
    problem: &'static str,
}

impl ConfigError {
    pub(crate) const fn new(field: &'static str, problem: &'static str) -> Self {
        Self { field, problem }
    }

    /// Returns the name of the setting, as its setter is called.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        self.field
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.field, self.problem)
    }
}

impl StdError for ConfigError {}

/// Returns the source of an error whose request was not sent: with the feature `tonic`,
/// one from which `tonic::Status::from_error` reads `Unavailable`; or, where the policy
/// could not choose, `FailedPrecondition`, because trying again would not help.
#[cfg(feature = "tonic")]
fn unsent_source(error: &Inner, cause: Option<BoxError>) -> Option<BoxError> {
    if error.kind == ErrorKind::Policy {
        return Some(Box::new(tonic::Status::failed_precondition(error.to_string())));
    }
    let cause = cause.unwrap_or_else(|| error.to_string().into());
    Some(Box::new(tonic::ConnectError(cause)))
}

/// Returns the source of an error whose request was not sent.
#[cfg(not(feature = "tonic"))]
fn unsent_source(_error: &Inner, cause: Option<BoxError>) -> Option<BoxError> {
    cause
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_everything_and_sources_too() {
        let error = Error::call("a".into(), Box::new(ConfigError::new("field", "is wrong")));
        let clone = error.clone();
        drop(error);
        assert_eq!((clone.kind(), clone.endpoint()), (ErrorKind::Call, Some("a")));
        assert_eq!(clone.to_string(), "the call to endpoint a failed");
        assert_eq!(clone.find::<ConfigError>().unwrap().field(), "field");
        let first: *const ConfigError = clone.find().unwrap();
        let second = clone.clone();
        assert!(std::ptr::eq(first, second.find().unwrap()), "one source");
        assert_eq!(format!("{clone:?}"), format!("{second:?}"));
    }

    #[cfg(feature = "tonic")]
    #[test]
    fn clones_have_the_status_of_the_first() {
        let code = |error: &Error| tonic::Status::from_error(Box::new(error.clone())).code();
        let empty = Error::unavailable(ErrorKind::Empty, Counts::default(), None);
        assert_eq!(code(&empty.clone()), tonic::Code::Unavailable);
        assert_eq!(code(&Error::policy("no").clone()), tonic::Code::FailedPrecondition);
        let unready = Error::not_ready("a".into(), "closed".into());
        assert_eq!(code(&unready), tonic::Code::Unavailable);
        assert!(Error::find_in(&tonic::Status::from_error(Box::new(unready))).is_some());
    }
}
