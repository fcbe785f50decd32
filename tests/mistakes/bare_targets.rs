//! expects: its items are endpoints: wrap each target as `Endpoint::new(target)`
//! A source yields endpoints, not bare targets.

use counterpoise::{Balance, Direct, Endpoint, policy::RoundRobin};
use std::convert::Infallible;
use tower::discover::Change;

pub fn balance<S: Clone + Send + Sync + 'static>(service: S) {
    #[cfg(mistake)]
    let target = Direct(service);
    #[cfg(not(mistake))]
    let target = Endpoint::new(Direct(service));
    let changes = [Ok::<_, Infallible>(Change::Insert("a", target))];
    let _ = Balance::new(futures::stream::iter(changes), RoundRobin::new());
}
