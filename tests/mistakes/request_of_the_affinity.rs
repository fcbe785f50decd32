//! expects: cannot pick for requests of type
//! The closure that finds an affinity key takes the request that is sent.

use counterpoise::{
    BalanceLayer, Endpoint, discover,
    http::Origin,
    policy::affinity::{Key, RingHash},
};
use tower::{Layer, Service};

#[cfg(mistake)]
type Request = http::Request<String>;
#[cfg(not(mistake))]
type Request = reqwest::Request;

fn send<S: Service<reqwest::Request>>(_client: S) {}

pub fn client(origin: Origin) {
    let endpoints = discover::list([("a", Endpoint::new(origin))]);
    let policy = RingHash::by(|request: &Request| Some(Key::from(request.method().as_str())));
    send(BalanceLayer::new(endpoints, policy).layer(reqwest::Client::new()));
}
