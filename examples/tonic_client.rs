//! A generated gRPC client over several servers.
//!
//! Run it with `cargo run --example tonic_client`. It starts three real servers of the
//! standard gRPC health service, makes a call to each, reads a stream, and makes further calls after
//! one server has stopped.

mod support;

use counterpoise::{
    Attempts, Balance, BoxError, Endpoint, Error, discover, http::GrpcChannel, policy::RoundRobin,
};
use support::grpc::{Running, serve};
use tonic::{
    Code, Status,
    transport::{self, Channel},
};
use tonic_health::{
    ServingStatus,
    pb::{self, HealthCheckRequest, health_client::HealthClient},
};

/// Generated clients run over a `Balance` as they do over a `Channel`.
type Client = HealthClient<Balance<GrpcChannel<Channel>, RoundRobin>>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let [first, second, third] = [serve().await?, serve().await?, serve().await?];

    // Each endpoint has a channel of its own, which connects when it is first used.
    let mut endpoints = Vec::new();
    for address in [first.address, second.address, third.address] {
        let channel = transport::Endpoint::from_shared(format!("http://{address}"))?.connect_lazy();
        endpoints.push((address, Endpoint::new(GrpcChannel(channel))));
    }
    let balance = Balance::new(discover::list(endpoints), RoundRobin::new());
    let client = HealthClient::new(balance.clone());

    for _ in 0..3 {
        println!("a unary call: {:?}", check(&client).await?);
    }
    follow(&client, [&first, &second, &third]).await?;

    println!("the server {} stops", first.address);
    first.stop().await?;
    for _ in 0..6 {
        println!("a unary call: {:?}", check_again(&client).await?);
    }
    println!("\n{}", balance.stats());
    Ok(())
}

/// Makes a call. Clones of a client share the endpoints.
async fn check(client: &Client) -> Result<pb::health_check_response::ServingStatus, Status> {
    let response = client.clone().check(HealthCheckRequest::default()).await?;
    Ok(response.into_inner().status())
}

/// Makes a call, and repeats it once if the server is unavailable. `Attempts` remembers the first
/// server, so the second call goes to another.
async fn check_again(client: &Client) -> Result<pb::health_check_response::ServingStatus, Status> {
    let attempts = Attempts::new();
    match attempts.scope(check(client)).await {
        Err(status) if status.code() == Code::Unavailable => {
            println!(
                "no answer from {}",
                endpoint(&status).unwrap_or("any server")
            );
            attempts.scope(check(client)).await
        }
        result => result,
    }
}

/// Returns the endpoint of a failed call: the balancer's error is among the sources of the status.
fn endpoint(status: &Status) -> Option<&str> {
    Error::find_in(status).and_then(Error::endpoint)
}

/// Reads a stream, which stays with the server that was picked for it.
async fn follow(client: &Client, servers: [&Running; 3]) -> Result<(), Status> {
    let mut stream = client
        .clone()
        .watch(HealthCheckRequest::default())
        .await?
        .into_inner();
    for status in [ServingStatus::NotServing, ServingStatus::Serving] {
        if let Some(update) = stream.message().await? {
            println!("a streamed message: {:?}", update.status());
        }
        for server in servers {
            server.health.set_service_status("", status).await;
        }
    }
    Ok(())
}
