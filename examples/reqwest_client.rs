//! One `reqwest::Client` over a list of servers, with retries and timeouts.
//!
//! Run it with `cargo run --example reqwest_client`. One of its three servers does not serve, and no
//! request fails.

mod support;

use std::time::Duration;

use counterpoise::{AttemptsLayer, BalanceLayer, BoxError, Endpoint, discover, policy::RoundRobin};
use reqwest::{Method, Request};
use support::{retries::Retries, server::Server};
use tower::{ServiceBuilder, ServiceExt};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let mut servers = [
        Server::start("amber")?,
        Server::start("birch")?,
        Server::start("cedar")?,
    ];
    servers[1].die().await?;

    // In a program the origins are strings of its configuration: `"http://10.0.0.1:8080".parse()?`.
    let endpoints = servers
        .iter()
        .map(|server| (server.name(), Endpoint::new(server.origin())));
    let balance = BalanceLayer::new(discover::list(endpoints), RoundRobin::new());

    // A request passes these layers from top to bottom:
    let client = ServiceBuilder::new()
        // 1. A limit of the whole request, with all attempts and the waiting between them.
        .timeout(Duration::from_secs(5))
        // 2. Remembers the servers of a request, so that a retry goes to another.
        .layer(AttemptsLayer::new())
        // 3. Above the balancer, so that each attempt is a pick of its own.
        .retry(Retries(2))
        // 4. A limit of each attempt: below the retry, so that a server that hangs does not use up
        //    the time of all attempts. No shorter than `Health::drop_counts_after` (default: one
        //    second): otherwise such a server is never ejected.
        .timeout(Duration::from_secs(1))
        .layer(balance.clone())
        // `no_proxy`, because these servers are on this machine.
        .service(reqwest::Client::builder().no_proxy().build()?);

    for number in 1..=9 {
        // The balancer replaces the host in the URL with a server's address.
        let request = Request::new(Method::GET, format!("http://forest/tree/{number}").parse()?);
        let response = client.clone().oneshot(request).await?;
        println!(
            "request {number} was answered by {}",
            response.text().await?
        );
    }
    println!("\n{}", balance.stats());
    Ok(())
}
