//! A retry policy for every kind of request.

use std::future::{Ready, ready};

use tower::retry::Policy;

/// Sends a request that failed again, at once, so many times.
pub(crate) struct Retries<R> {
    left: usize,
    copy: fn(&R) -> Option<R>,
}

impl<R: Clone> Retries<R> {
    pub(crate) fn new(times: usize) -> Self {
        Self::by(times, |request| Some(request.clone()))
    }
}

impl<R> Retries<R> {
    /// Copies requests with this function.
    pub(crate) fn by(times: usize, copy: fn(&R) -> Option<R>) -> Self {
        Self { left: times, copy }
    }
}

impl<R> Clone for Retries<R> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

impl<R, Res, E> Policy<R, Res, E> for Retries<R> {
    type Future = Ready<()>;

    fn retry(&mut self, _request: &mut R, result: &mut Result<Res, E>) -> Option<Ready<()>> {
        if result.is_ok() {
            return None;
        }
        self.left = self.left.checked_sub(1)?;
        Some(ready(()))
    }

    fn clone_request(&mut self, request: &R) -> Option<R> {
        (self.copy)(request)
    }
}
