//! When a request is sent again.

use std::future::{Ready, ready};

use counterpoise::BoxError;
use reqwest::{Request, Response};
use tower::retry::Policy;

/// Sends a request again if it failed, up to this many times.
///
/// Right for requests that may safely be repeated, as every GET here. tower clones the
/// policy for each request, so the number is counted per request.
#[derive(Debug, Clone)]
pub(crate) struct Retries(pub(crate) u32);

impl Policy<Request, Response, BoxError> for Retries {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        _request: &mut Request,
        result: &mut Result<Response, BoxError>,
    ) -> Option<Self::Future> {
        if result.is_ok() {
            return None;
        }
        self.0 = self.0.checked_sub(1)?;
        Some(ready(()))
    }

    fn clone_request(&mut self, request: &Request) -> Option<Request> {
        request.try_clone()
    }
}
