//! The errors of calls and of settings.

mod config;

use std::{error::Error as StdError, fmt, sync::Arc};

pub use config::ConfigError;

/// Any error, boxed as in tower's services.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// The error of a balanced call.
///
/// For an error of the endpoint's service, [`endpoint`](Self::endpoint) returns the name, and
/// [`source`](StdError::source) and [`find`](Self::find) return the unchanged error. If no endpoint
/// could be used, [`counts`](Self::counts) shows why. Clones are cheap and share one source.
///
/// A timeout above the balancer makes an error of its own, without an endpoint.
/// [`Attempts`](crate::Attempts) list the endpoints to which the request was sent.
///
/// With the feature `tonic`, the source of an unsent call's error is a `tonic::ConnectError`, which
/// a tonic client reads as `Unavailable`. For [`ErrorKind::Policy`] it is a `tonic::Status` with the
/// code `FailedPrecondition`.
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

/// What went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The service of the endpoint returned an error. The only kind whose request was sent.
    Call,
    /// The service of the last candidate failed to become ready. The request was not sent.
    ReadyFailed,
    /// No endpoint became ready within [`wait_for_ready`](crate::Builder::wait_for_ready), or no
    /// endpoint in service could take the call within
    /// [`wait_for_endpoints`](crate::Builder::wait_for_endpoints). The request was not sent.
    ReadyTimeout,
    /// The set is empty, or discovery has yielded no endpoint within
    /// [`wait_for_endpoints`](crate::Builder::wait_for_endpoints).
    ///
    /// [`Balance::ready_when`](crate::Balance::ready_when) fails with it if discovery yields an error,
    /// also if the set is not empty.
    Empty,
    /// Every endpoint has a weight or a capacity of zero.
    Drained,
    /// Every endpoint with a weight is ejected, or more of them than
    /// [`panic_below`](crate::Health::panic_below) allows.
    Ejected,
    /// Discovery has ended or was stopped, and the set is empty.
    ///
    /// [`Balance::ready_when`](crate::Balance::ready_when) fails with it also if the set is smaller than
    /// requested.
    DiscoveryEnded,
    /// The number of waiting calls is at its limit.
    TooManyWaiting,
    /// The picker refused the request or named a member that does not exist, or the policy
    /// panicked while it built the picker.
    Policy,
}

/// The number of endpoints, and how many of them could not be used.
///
/// An endpoint that is both ejected and drained counts as drained.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Endpoints in the set.
    pub members: usize,
    /// Ejected endpoints among the members.
    pub ejected: usize,
    /// Members with a weight or a capacity of zero.
    pub drained: usize,
    /// Members that this call has tried and that were not ready.
    pub unready: usize,
}

impl Error {
    /// Makes the error of a service that failed a call.
    pub(crate) fn call(endpoint: Arc<str>, source: BoxError) -> Self {
        let mut inner = Inner::new(ErrorKind::Call);
        inner.endpoint = Some(endpoint);
        inner.source = Some(source);
        Self(Arc::new(inner))
    }

    /// Makes the error of a service that failed to become ready.
    pub(crate) fn not_ready(endpoint: Arc<str>, source: BoxError) -> Self {
        let mut inner = Inner::new(ErrorKind::ReadyFailed);
        inner.endpoint = Some(endpoint);
        inner.unsent(Some(source))
    }

    /// Makes the error of a call for which there was no endpoint.
    pub(crate) fn unavailable(kind: ErrorKind, counts: Counts, cause: Option<BoxError>) -> Self {
        let mut inner = Inner::new(kind);
        inner.counts = counts;
        inner.unsent(cause)
    }

    /// Makes the error of a policy that named no endpoint.
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

    /// Returns the name of the endpoint that failed; none if the error has another origin.
    #[must_use]
    pub fn endpoint(&self) -> Option<&str> {
        self.0.endpoint.as_deref()
    }

    /// Returns whether the request was sent to no endpoint, so that sending it again is safe.
    #[must_use]
    pub fn is_unsent(&self) -> bool {
        !matches!(self.0.kind, ErrorKind::Call)
    }

    /// Returns whether no endpoint could be used, for another reason than [`ErrorKind::Policy`].
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        !matches!(self.0.kind, ErrorKind::Call | ErrorKind::Policy)
    }

    /// Returns how many endpoints there were, and how many could not be used.
    ///
    /// All are zero for an error of an endpoint.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0.counts
    }

    /// Returns the first error of this type in a chain: the error itself or one of its sources.
    ///
    /// Layers above the balancer may wrap the error, for example in a `tonic::Status`.
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
        let counts = Counts {
            members: 0,
            ejected: 0,
            drained: 0,
            unready: 0,
        };
        Self {
            kind,
            endpoint: None,
            counts,
            detail: None,
            source: None,
        }
    }

    /// Makes the error of a request that was not sent, with a source that shows this.
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

/// Returns the source of an error whose request was not sent.
///
/// `tonic::Status::from_error` reads it as `Unavailable`, or as `FailedPrecondition` for an error of
/// the policy, because another attempt does not help there.
#[cfg(feature = "tonic")]
fn unsent_source(error: &Inner, cause: Option<BoxError>) -> Option<BoxError> {
    if error.kind == ErrorKind::Policy {
        return Some(Box::new(tonic::Status::failed_precondition(
            error.to_string(),
        )));
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
        assert_eq!(
            (clone.kind(), clone.endpoint()),
            (ErrorKind::Call, Some("a"))
        );
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
        assert_eq!(
            code(&Error::policy("no").clone()),
            tonic::Code::FailedPrecondition
        );
        let unready = Error::not_ready("a".into(), "closed".into());
        assert_eq!(code(&unready), tonic::Code::Unavailable);
        assert!(Error::find_in(&tonic::Status::from_error(Box::new(unready))).is_some());
    }
}
