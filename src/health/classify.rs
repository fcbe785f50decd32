//! From the result of a call to what it says about the endpoint.

use crate::health::outcome::Outcome;

/// Decides what the result of a call says about the endpoint that made it.
///
/// Implemented for closures over `Result<&Res, &Err>`. The classifier is cloned into each
/// call, so it should be cheap to clone.
///
/// ```
/// use counterpoise::{Builder, Outcome};
///
/// let builder = Builder::new().classify_fn(|result: Result<&u16, &std::io::Error>| match result {
///     Ok(status) if *status < 500 => Outcome::Success,
///     _ => Outcome::Failure,
/// });
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not classify results of `{Res}` and `{Err}`",
    note = "give a closure to `Builder::classify_fn`, with the types of its argument written out"
)]
pub trait Classify<Res, Err> {
    /// Returns the outcome of one call. Called once per call that ended; a panic counts as
    /// a failure of the endpoint and reaches the caller.
    fn classify(&self, result: Result<&Res, &Err>) -> Outcome;
}

#[diagnostic::do_not_recommend]
impl<F, Res, Err> Classify<Res, Err> for F
where
    F: Fn(Result<&Res, &Err>) -> Outcome,
{
    fn classify(&self, result: Result<&Res, &Err>) -> Outcome {
        self(result)
    }
}

/// The default classifier: a response is a success, whatever it says, and an error is a
/// failure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ErrorsAreFailures;

impl<Res, Err> Classify<Res, Err> for ErrorsAreFailures {
    fn classify(&self, result: Result<&Res, &Err>) -> Outcome {
        match result {
            Ok(_) => Outcome::Success,
            Err(_) => Outcome::Failure,
        }
    }
}
