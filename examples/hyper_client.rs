//! hyper-util's client over a list of servers, with requests of the `http` crate.
//!
//! Run it with `cargo run --example hyper_client`.

mod support;

use bytes::Bytes;
use counterpoise::{BalanceLayer, BoxError, Endpoint, discover, policy::RoundRobin};
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use support::server::Server;
use tower::{Layer, ServiceExt};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let servers = [
        Server::start("amber")?,
        Server::start("birch")?,
        Server::start("cedar")?,
    ];
    let endpoints = servers
        .iter()
        .map(|server| (server.name(), Endpoint::new(server.origin())));
    let balance = BalanceLayer::new(discover::list(endpoints), RoundRobin::new());
    let client = balance.layer(Client::builder(TokioExecutor::new()).build_http());

    for number in 1..=6 {
        // A path is enough: the balancer adds scheme and authority of the server.
        let request = Request::get(format!("/tree/{number}")).body(Empty::<Bytes>::new())?;
        let response = client.clone().oneshot(request).await?;
        let body = response.into_body().collect().await?.to_bytes();
        println!(
            "request {number} was answered by {}",
            String::from_utf8_lossy(&body)
        );
    }
    Ok(())
}
