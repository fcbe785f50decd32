//! Judges: when a call is over, and its outcome.

use super::guard::Guard;
use crate::{
    endpoint::{Direct, Target},
    health::{ErrorsAreFailures, classify::Classify},
};

/// Decides when a call is over, and its outcome.
///
/// A call is in flight until it is over. `T` is the target, `C` the shared client, `Res` the
/// response and `Err` the error of the target's service. A judge is cloned for each call.
///
/// Sealed; there are four judges:
///
/// | judge | the call is over | needs |
/// |---|---|---|
/// | [`Implied`] | as decided by the judge of the target | [`Target::Judge`] |
/// | [`AtHead<K>`](AtHead) | at the head of the response | `K`: [`Classify`] |
/// | `http::AtFirstData<K>` | at the first data of the body | `K`: `http::ClassifyBody` |
/// | `http::AtBodyEnd<K>` | at the end of the body, after the trailers | the same |
///
/// Under each of them an error of the service ends the call at once. Default: [`Implied`];
/// [`Builder::judge`](crate::Builder::judge) sets another.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot judge calls that yield `{Res}` or fail with `{Err}`",
    label = "counterpoise cannot judge calls to this target by this rule",
    note = "`AtBodyEnd` and `AtFirstData` wrap the body of an `http::Response`; `reqwest::Response` cannot be wrapped: judge it by `Builder::classify`",
    note = "a classifier `K` becomes a judge as `AtHead<K>`"
)]
pub trait Judge<T, C, Res, Err>:
    Clone + sealed::EndCall<T, C, Res, Err, Output = <Self as Judge<T, C, Res, Err>>::Response>
{
    /// The response that callers get; where the judge follows the body, the body has another type.
    type Response;
}

pub(crate) mod sealed {
    use crate::call::guard::Guard;

    /// The hidden part of a judge.
    #[allow(unnameable_types, reason = "the seal")]
    pub trait EndCall<T, C, Res, Err> {
        type Output;

        /// Judges the result of a call and closes its guard, or moves the guard to the body of the
        /// response.
        fn end(&self, guard: &mut Guard, result: Result<Res, Err>) -> Result<Self::Output, Err>;
    }
}

/// Ends a call at the head of its response. An error in a streamed body has no effect.
///
/// ```
/// use counterpoise::{call::AtHead, health::ErrorsAreFailures, Builder};
///
/// // As `Builder::new().classify(ErrorsAreFailures)`.
/// let builder = Builder::new().judge(AtHead::new(ErrorsAreFailures));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AtHead<K> {
    classify: K,
}

impl<K> AtHead<K> {
    /// Judges heads by a classifier.
    pub const fn new(classify: K) -> Self {
        Self { classify }
    }
}

impl<K, T, C, Res, Err> Judge<T, C, Res, Err> for AtHead<K>
where
    K: Classify<Res, Err> + Clone,
{
    type Response = Res;
}

impl<K, T, C, Res, Err> sealed::EndCall<T, C, Res, Err> for AtHead<K>
where
    K: Classify<Res, Err>,
{
    type Output = Res;

    #[inline]
    fn end(&self, guard: &mut Guard, result: Result<Res, Err>) -> Result<Res, Err> {
        let outcome = guard.inside(|| self.classify.classify(result.as_ref()));
        guard.close(outcome);
        result
    }
}

/// Uses the judge of the target.
///
/// That is [`Target::Judge`] with its default settings:
///
/// | target | judge |
/// |---|---|
/// | [`Direct`] | [`AtHead`] with [`ErrorsAreFailures`] |
/// | `http::Origin` | [`AtHead`] with `http::Status` |
/// | `http::GrpcChannel` | `http::AtBodyEnd` with `http::Grpc` |
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Implied;

impl<T, C, Res, Err> Judge<T, C, Res, Err> for Implied
where
    T: Target<C>,
    T::Judge: Judge<T, C, Res, Err> + Default,
{
    type Response = <T::Judge as Judge<T, C, Res, Err>>::Response;
}

impl<T, C, Res, Err> sealed::EndCall<T, C, Res, Err> for Implied
where
    T: Target<C>,
    T::Judge: Judge<T, C, Res, Err> + Default,
{
    type Output = <T::Judge as Judge<T, C, Res, Err>>::Response;

    #[inline]
    fn end(&self, guard: &mut Guard, result: Result<Res, Err>) -> Result<Self::Output, Err> {
        T::Judge::default().end(guard, result)
    }
}

#[diagnostic::do_not_recommend]
impl<S: Clone, C> Target<C> for Direct<S> {
    type Service = S;
    type Judge = AtHead<ErrorsAreFailures>;

    fn attach(&self, _client: &C) -> S {
        self.0.clone()
    }
}
