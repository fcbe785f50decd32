//! The shortest real use: one `reqwest::Client` over a list of servers.
//!
//! Run it with `cargo run --example reqwest_client`. Of its three servers one is dead, which
//! no caller notices.

mod support;

use std::time::Duration;

use counterpoise::{AttemptsLayer, BalanceLayer, BoxError, Endpoint, discover, policy::RoundRobin};
use reqwest::{Method, Request};
use support::{retries::Retries, server::Server};
use tower::{ServiceBuilder, ServiceExt};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let mut servers = [Server::start("amber")?, Server::start("birch")?, Server::start("cedar")?];
    servers[1].die().await?;

    // Yours are strings from a configuration: `"http://10.0.0.1:8080".parse()?`.
    let endpoints = servers.iter().map(|server| (server.name(), Endpoint::new(server.origin())));
    let balance = BalanceLayer::new(discover::list(endpoints), RoundRobin::new());

    // A request passes through these from top to bottom, and the order matters:
    let client = ServiceBuilder::new()
        // 1. A limit to the whole request, all attempts and the waiting in between included.
        .timeout(Duration::from_secs(5))
        // 2. What a retry needs to know to go to another server.
        .layer(AttemptsLayer::new())
        // 3. Above the balancer, so that each attempt is a choice of its own.
        .retry(Retries(2))
        // 4. A limit to each attempt. Below the retry, or a server that hangs would use up
        //    the time of all attempts. No shorter than `Health::drop_counts_after`, which is
        //    one second unless set, or such a server would never be ejected.
        .timeout(Duration::from_secs(1))
        .layer(balance.clone())
        // `no_proxy` only because these servers are on this very machine.
        .service(reqwest::Client::builder().no_proxy().build()?);

    for number in 1..=9 {
        // The host in the URL is a mere name: the balancer puts a server's address there.
        let request = Request::new(Method::GET, format!("http://forest/tree/{number}").parse()?);
        let response = client.clone().oneshot(request).await?;
        println!("request {number} was answered by {}", response.text().await?);
    }
    println!("\n{}", balance.stats());
    Ok(())
}
