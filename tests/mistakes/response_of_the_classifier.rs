//! expects: does not classify results of
//! A classifier judges the responses that it names. (A closure or function with the wrong
//! argument gets the compiler's own error, E0631, which cannot be replaced.)

use counterpoise::{
    Builder, Classify, Endpoint, Outcome, discover, http::Origin, policy::RoundRobin,
};
use tower::{Layer, Service};

#[cfg(mistake)]
type Response = http::Response<String>;
#[cfg(not(mistake))]
type Response = reqwest::Response;

#[derive(Clone)]
struct ServerErrors;

impl<E> Classify<Response, E> for ServerErrors {
    fn classify(&self, result: Result<&Response, &E>) -> Outcome {
        let bad = result.map_or(true, |response| response.status().is_server_error());
        if bad {
            Outcome::Failure
        } else {
            Outcome::Success
        }
    }
}

fn send<S: Service<reqwest::Request>>(_client: S) {}

pub fn client(origin: Origin) {
    let endpoints = discover::list([("a", Endpoint::new(origin))]);
    let layer = Builder::new()
        .classify(ServerErrors)
        .layer(endpoints, RoundRobin::new());
    send(layer.expect("good settings").layer(reqwest::Client::new()));
}
