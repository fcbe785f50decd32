//! expects: the key `K` must be `Display + Hash + Eq + Clone + Send`
//! The key of an endpoint is its name, too, so it implements `Display`.

use counterpoise::{Balance, Direct, Endpoint, policy::RoundRobin};
use std::{convert::Infallible, fmt};
use tower::discover::Change;

#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Shard(u32);

#[cfg(not(mistake))]
impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard {}", self.0)
    }
}

pub fn balance<S: Clone + Send + Sync + 'static>(service: S) {
    let endpoint = Endpoint::new(Direct(service));
    let changes = [Ok::<_, Infallible>(Change::Insert(Shard(1), endpoint))];
    let _ = Balance::new(futures::stream::iter(changes), RoundRobin::new());
}
