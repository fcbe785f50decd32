//! expects: an `http::Origin` is reached through the client that `BalanceLayer` wraps
//! An origin is an address without a client, and `Balance::new` has none for it.

use counterpoise::{Balance, BalanceLayer, Endpoint, discover, http::Origin, policy::RoundRobin};
use tower::{Layer, Service};

fn send<S: Service<reqwest::Request>>(_client: S) {}

pub fn client(origin: Origin) {
    let endpoints = discover::list([("a", Endpoint::new(origin))]);
    #[cfg(mistake)]
    let client = Balance::new(endpoints, RoundRobin::new());
    #[cfg(not(mistake))]
    let client = BalanceLayer::new(endpoints, RoundRobin::new()).layer(reqwest::Client::new());
    send(client);
}
