//! expects: finds no affinity keys in requests of type
//! An affinity finds keys in the requests that it names. (A closure with the wrong argument gets
//! the compiler's own error, E0631, which cannot be replaced.)

use counterpoise::{
    BalanceLayer, Endpoint, discover,
    http::Origin,
    policy::affinity::{Affinity, Key, RingHash},
};
use tower::{Layer, Service};

#[cfg(mistake)]
type Request = http::Request<String>;
#[cfg(not(mistake))]
type Request = reqwest::Request;

struct ByMethod;

impl Affinity<Request> for ByMethod {
    fn key<'r>(&self, request: &'r Request) -> Option<Key<'r>> {
        Some(Key::from(request.method().as_str()))
    }
}

fn send<S: Service<reqwest::Request>>(_client: S) {}

pub fn client(origin: Origin) {
    let endpoints = discover::list([("a", Endpoint::new(origin))]);
    send(BalanceLayer::new(endpoints, RingHash::on(ByMethod)).layer(reqwest::Client::new()));
}
