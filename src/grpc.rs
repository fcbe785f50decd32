//! How a gRPC client is told that a request was never sent.

#[cfg(feature = "tonic")]
use crate::error::ErrorKind;
use crate::error::{BoxError, Error};

/// Returns the source of an error whose request was not sent: with the feature `tonic`,
/// one from which `tonic::Status::from_error` reads `Unavailable`; or, where the policy
/// could not choose, `FailedPrecondition`, because trying again would not help.
#[cfg(feature = "tonic")]
pub(crate) fn unsent(error: &Error, cause: Option<BoxError>) -> Option<BoxError> {
    if error.kind() == ErrorKind::Policy {
        return Some(Box::new(tonic::Status::failed_precondition(error.to_string())));
    }
    let cause = cause.unwrap_or_else(|| error.to_string().into());
    Some(Box::new(tonic::ConnectError(cause)))
}

/// Returns the source of an error whose request was not sent.
#[cfg(not(feature = "tonic"))]
pub(crate) fn unsent(_error: &Error, cause: Option<BoxError>) -> Option<BoxError> {
    cause
}
