//! Affinity under a generated gRPC client: by a metadata header.
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
    // Metadata of a gRPC request are headers of the HTTP request that carries it.
    let policy = RingHash::by_header("x-user");
    let client = HealthClient::new(Balance::new(discover::list(endpoints), policy));

    let before = ask_all(&client).await?;
    println!("the server {} stops", first.address);
    let stopped = first.address.to_string();
    first.stop().await?;
    let after = ask_all(&client).await?;

    let moved = before.iter().filter(|(user, server)| after[user] != **server);
    let strangers = moved.clone().filter(|(_, server)| ***server != *stopped).count();
    println!("{} of {} users moved, {strangers} of other servers", moved.count(), before.len());
    Ok(())
}

/// Makes a call of each user; returns which server answered.
async fn ask_all(client: &Client) -> Result<BTreeMap<usize, Arc<str>>, BoxError> {
    let mut servers = BTreeMap::new();
    for user in 0..50 {
        servers.insert(user, ask(client, user).await?);
    }
    Ok(servers)
}

/// Makes a call, and once more if a server is not there: the attempts are noted, so that it
/// goes on in the user's own order.
async fn ask(client: &Client, user: usize) -> Result<Arc<str>, BoxError> {
    let attempts = Attempts::new();
    for last in [false, true] {
        let mut request = Request::new(HealthCheckRequest::default());
        request.metadata_mut().insert("x-user", format!("user-{user}").parse()?);
        match attempts.scope(client.clone().check(request)).await {
            Ok(_) => break,
            Err(status) if status.code() == Code::Unavailable && !last => {}
            Err(status) => return Err(status.into()),
        }
    }
    attempts.names().pop().ok_or_else(|| "nobody was asked".into())
}
