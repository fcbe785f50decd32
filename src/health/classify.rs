//! Classifiers: from the result of a call to its outcome.

use super::outcome::Outcome;

/// Classifies the result of a call as an [`Outcome`].
///
/// Closures over `Result<&Res, &Err>` implement it. Each call clones the classifier, so a clone
/// should be cheap.
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
    /// Returns the outcome of a call. It runs once for each call that has a result.
    ///
    /// # Panics
    ///
    /// A panic counts as a failure of the endpoint, and continues in the caller.
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

/// The classifier for which each response is a success, and each error is a failure.
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
