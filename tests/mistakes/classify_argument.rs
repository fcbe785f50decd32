//! expects: does not classify results of
//! A function or closure that classifies takes the whole result, not the response.

use counterpoise::{Builder, Endpoint, Outcome, discover, http::Origin, policy::RoundRobin};
use reqwest::{Client, Error, Response};
use tower::{Layer, Service};

#[cfg(mistake)]
fn outcome(response: &Response) -> Outcome {
    if response.status().is_server_error() { Outcome::Failure } else { Outcome::Success }
}

#[cfg(not(mistake))]
fn outcome(result: Result<&Response, &Error>) -> Outcome {
    let bad = result.map_or(true, |response| response.status().is_server_error());
    if bad { Outcome::Failure } else { Outcome::Success }
}

fn send<S: Service<reqwest::Request>>(_client: S) {}

pub fn client(origin: Origin) {
    let endpoints = discover::list([("a", Endpoint::new(origin))]);
    let layer = Builder::new().classify(outcome).layer(endpoints, RoundRobin::new());
    send(layer.expect("good settings").layer(Client::new()));
}
