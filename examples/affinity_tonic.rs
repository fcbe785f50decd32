//! Affinity by a metadata header, under a generated gRPC client.
//!
//! Run it with `cargo run --example affinity_tonic`. The calls of fifty users go to three real
//! servers; one stops, and only its users move.

mod support;

use std::{collections::BTreeMap, sync::Arc};

use counterpoise::{
    Attempts, Balance, BoxError, Endpoint, discover,
    http::{GrpcChannel, key::Header},
    policy::affinity::RingHash,
};
use support::grpc::serve;
use tonic::{
    Code, Request,
    transport::{self, Channel},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

type Client = HealthClient<Balance<GrpcChannel<Channel>, RingHash<Header>>>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let [first, second, third] = [serve().await?, serve().await?, serve().await?];
    let mut endpoints = Vec::new();
    for address in [first.address, second.address, third.address] {
        let channel = transport::Endpoint::from_shared(format!("http://{address}"))?.connect_lazy();
        endpoints.push((address, Endpoint::new(GrpcChannel(channel))));
    }
    // The metadata of a gRPC request are headers of its HTTP request.
    let policy = RingHash::by_header("x-user");
    let client = HealthClient::new(Balance::new(discover::list(endpoints), policy));

    let before = send_all(&client).await?;
    println!("the server {} stops", first.address);
    let stopped = first.address.to_string();
    first.stop().await?;
    let after = send_all(&client).await?;

    let moved = before
        .iter()
        .filter(|(user, server)| after[user] != **server);
    let of_others = moved
        .clone()
        .filter(|(_, server)| ***server != *stopped)
        .count();
    println!(
        "{} of {} users moved, {of_others} of other servers",
        moved.count(),
        before.len()
    );
    Ok(())
}

/// Makes a call of each user; returns the server that answered it.
async fn send_all(client: &Client) -> Result<BTreeMap<usize, Arc<str>>, BoxError> {
    let mut servers = BTreeMap::new();
    for user in 0..50 {
        servers.insert(user, send(client, user).await?);
    }
    Ok(servers)
}

/// Makes a call, and repeats it once if the server is unavailable. `Attempts` remembers the first
/// server, so the second call goes to the next one of the user's order.
async fn send(client: &Client, user: usize) -> Result<Arc<str>, BoxError> {
    let attempts = Attempts::new();
    for last in [false, true] {
        let mut request = Request::new(HealthCheckRequest::default());
        request
            .metadata_mut()
            .insert("x-user", format!("user-{user}").parse()?);
        match attempts.scope(client.clone().check(request)).await {
            Ok(_) => break,
            Err(status) if status.code() == Code::Unavailable && !last => {}
            Err(status) => return Err(status.into()),
        }
    }
    attempts
        .names()
        .pop()
        .ok_or_else(|| "no server was called".into())
}
