//! How a gRPC client is told that a request was never sent.

use crate::error::{BoxError, Error};

/// Returns the source of an error whose request was not sent: with the feature `tonic`,
/// one from which `tonic::Status::from_error` reads `Unavailable`.
#[cfg(feature = "tonic")]
pub(crate) fn unsent(error: &Error, cause: Option<BoxError>) -> Option<BoxError> {
    let cause = cause.unwrap_or_else(|| error.to_string().into());
    Some(Box::new(tonic::ConnectError(cause)))
}

/// Returns the source of an error whose request was not sent.
#[cfg(not(feature = "tonic"))]
pub(crate) fn unsent(_error: &Error, cause: Option<BoxError>) -> Option<BoxError> {
    cause
}
