//! A retry policy for failed requests.

use std::future::{Ready, ready};

use reqwest::{Request, Response, StatusCode};
use tower::retry::Policy;

/// Sends a request again if it failed, up to this many times.
///
/// For requests that are safe to repeat, such as the GETs here. tower clones the policy for each
/// request, so each has a count of its own.
#[derive(Debug, Clone)]
pub(crate) struct Retries(pub(crate) u32);

impl<E> Policy<Request, Response, E> for Retries {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        _request: &mut Request,
        result: &mut Result<Response, E>,
    ) -> Option<Self::Future> {
        // 429 and 5xx count as failures, too.
        let refused = |status: StatusCode| status.is_server_error() || status.as_u16() == 429;
        if result
            .as_ref()
            .is_ok_and(|response| !refused(response.status()))
        {
            return None;
        }
        self.0 = self.0.checked_sub(1)?;
        Some(ready(()))
    }

    fn clone_request(&mut self, request: &Request) -> Option<Request> {
        request.try_clone()
    }
}
