//! expects: `reqwest::Response` cannot be wrapped
//! The body of a reqwest response cannot be followed to its end.

use counterpoise::{Builder, Endpoint, discover, http::Origin, policy::RoundRobin};
use tower::{Layer, Service};

fn send<S: Service<reqwest::Request>>(_client: S) {}

pub fn client(origin: Origin) {
    let endpoints = discover::list([("a", Endpoint::new(origin))]);
    let builder = Builder::new();
    #[cfg(mistake)]
    let builder = builder.judge(counterpoise::http::AtBodyEnd::new(
        counterpoise::http::Status::new(),
    ));
    let layer = builder
        .layer(endpoints, RoundRobin::new())
        .expect("good settings");
    send(layer.layer(reqwest::Client::new()));
}
