//! A fixed set of endpoints.

use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    task::{Context, Poll},
    vec,
};

use futures_core::Stream;
use tower::discover::Change;

use crate::endpoint::Endpoint;

/// Discovers a fixed set of endpoints.
///
/// If keys are equal, the last endpoint replaces the earlier ones.
///
/// ```
/// use counterpoise::{discover, Direct, Endpoint};
///
/// let endpoints = discover::list([
///     ("a", Endpoint::new(Direct("service a")).weight(4)),
///     ("b", Endpoint::new(Direct("service b"))),
/// ]);
/// ```
pub fn list<K, T>(endpoints: impl IntoIterator<Item = (K, Endpoint<T>)>) -> List<K, T> {
    List(endpoints.into_iter().collect::<Vec<_>>().into_iter())
}

/// The stream of [`list`]: inserts each endpoint once, then ends.
pub struct List<K, T>(vec::IntoIter<(K, Endpoint<T>)>);

impl<K, T> Unpin for List<K, T> {}

impl<K, T> Stream for List<K, T> {
    type Item = Result<Change<K, Endpoint<T>>, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(
            self.0
                .next()
                .map(|(key, endpoint)| Ok(Change::Insert(key, endpoint))),
        )
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<K, T> fmt::Debug for List<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("List").field("left", &self.0.len()).finish()
    }
}
