//! The streams that balancers accept as discovery.

use std::{fmt, hash::Hash};

use tower::discover::Discover;

use crate::{endpoint::Endpoint, error::BoxError};

/// A stream of changes of the set of endpoints.
///
/// Implemented for each `Stream` of `Result<Change<K, Endpoint<T>>, E>`, and so for each tower
/// [`Discover`](https://docs.rs/tower/0.5/tower/discover/trait.Discover.html) of `Endpoint<T>`:
///
/// - `K`, the key, identifies an endpoint in the set. Its `Display` is the name of the endpoint in
///   errors, events and statistics.
/// - [`Endpoint<T>`] holds the [`Target`](crate::Target) and its weight.
/// - `E` is an error of discovery. It leaves the set unchanged, and does not end the stream.
///
/// [`list`](super::list()) and [`channel`](super::channel()) create such streams.
///
/// ```
/// use counterpoise::{discover::{self, Source}, policy::RoundRobin, BalanceLayer, Direct, Endpoint};
///
/// fn balance<D>(source: D) -> BalanceLayer<D::Target, RoundRobin>
/// where
///     D: Source<Target: Send + Sync> + Send + 'static,
/// {
///     BalanceLayer::new(source, RoundRobin::new())
/// }
///
/// let layer = balance(discover::list([("a", Endpoint::new(Direct("a service")))]));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a source of endpoints",
    label = "expected a stream of `Result<Change<K, Endpoint<T>>, E>`",
    note = "counterpoise follows a stream of `Result<tower::discover::Change<K, Endpoint<T>>, E>`; `discover::list` and `discover::channel` make one",
    note = "its items are endpoints: wrap each target as `Endpoint::new(target)`",
    note = "the key `K` must be `Display + Hash + Eq + Clone + Send`, and the error `E` must be `Into<BoxError>`"
)]
pub trait Source:
    Discover<
        Key: Hash + Clone + fmt::Display + Send,
        Service = Endpoint<<Self as Source>::Target>,
        Error: Into<BoxError>,
    >
{
    /// The target of the endpoints.
    type Target;
}

#[diagnostic::do_not_recommend]
impl<D, T> Source for D
where
    D: Discover<Service = Endpoint<T>>,
    D::Key: Hash + Clone + fmt::Display + Send,
    D::Error: Into<BoxError>,
{
    type Target = T;
}
