//! How the set follows discovery.

use counterpoise::{Balance, Direct, policy::Policy};

use crate::support::Site;

mod bad_input;
mod batches;
mod channel;
mod empty;
mod ready_when;
mod replacements;
mod stream;
mod traits;

/// The names of the members, in order.
fn members<P: Policy>(balance: &Balance<Direct<Site>, P>) -> Vec<String> {
    balance
        .stats()
        .endpoints
        .iter()
        .map(|endpoint| endpoint.name.to_string())
        .collect()
}
