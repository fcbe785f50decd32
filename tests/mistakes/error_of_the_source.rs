//! expects: the error `E` must be `Into<BoxError>`
//! The error of a source converts into a `BoxError`.

use counterpoise::{Balance, Direct, Endpoint, policy::RoundRobin};
use tower::discover::Change;

#[cfg(mistake)]
type SourceError = u32;
#[cfg(not(mistake))]
type SourceError = String;

pub fn balance<S: Clone + Send + Sync + 'static>(service: S) {
    let endpoint = Endpoint::new(Direct(service));
    let changes = [Ok::<_, SourceError>(Change::Insert("a", endpoint))];
    let _ = Balance::new(futures::stream::iter(changes), RoundRobin::new());
}
