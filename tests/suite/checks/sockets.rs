//! Active checks of real servers.

use std::time::Duration;

use bytes::Bytes;
use counterpoise::{
    Balance, BalanceLayer, Builder, Direct, Endpoint, Health,
    checks::{self, Checks, Probe},
    discover,
    http::Origin,
    observe::EndpointState,
    policy::{Policy, RoundRobin},
};
use http_body_util::Empty;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tonic::transport::{self, Channel};

use crate::servers::{Server, until};

const NAMES: [&str; 2] = ["a", "b"];

/// Quick, and with patience enough for a busy machine.
fn quick<R>(probe: R) -> Checks<R> {
    let interval = Duration::from_millis(10);
    Checks::new(probe)
        .interval(interval)
        .timeout(Duration::from_secs(2))
        .rise(2)
        .fall(2)
}

fn state<T, P: Policy, C>(balance: &Balance<T, P, C>, name: &str) -> Option<EndpointState> {
    balance
        .stats()
        .endpoint(name)
        .map(|endpoint| endpoint.state)
}

/// Has the second server die and come back, and waits until checks have noticed.
async fn die_and_come_back<T, R>(
    balance: Balance<T, RoundRobin>,
    mut servers: [Server; 2],
    probe: R,
) where
    T: Send + Sync + 'static,
    R: Probe<T>,
{
    tokio::spawn(balance.check(quick(probe)).unwrap());
    servers[1].kill().await;
    until(|| state(&balance, "b") == Some(EndpointState::Ejected)).await;
    assert_eq!(state(&balance, "a"), Some(EndpointState::Serving));
    servers[1].restart();
    until(|| state(&balance, "b") == Some(EndpointState::Serving)).await;
    assert_eq!(
        balance.stats().endpoint("b").unwrap().picks,
        0,
        "no call was needed"
    );
}

fn origins(servers: &[Server]) -> Balance<Origin, RoundRobin> {
    Balance::new(
        discover::list(servers.iter().map(Server::entry)),
        RoundRobin::new(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_tcp() {
    let servers = NAMES.map(Server::http);
    let probe = checks::tcp(|_: &str, origin: &Origin| origin.address());
    die_and_come_back(origins(&servers), servers, probe).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_http_with_hyper() {
    let servers = NAMES.map(Server::http);
    let client: Client<HttpConnector, Empty<Bytes>> =
        Client::builder(TokioExecutor::new()).build_http();
    let probe = checks::http_get::<_, Empty<Bytes>>(client, "/health");
    die_and_come_back(origins(&servers), servers, probe).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_http_with_reqwest() {
    let servers = NAMES.map(Server::http);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let probe = checks::reqwest_get(client, "/health");
    die_and_come_back(origins(&servers), servers, probe).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_grpc_health() {
    let servers = NAMES.map(Server::grpc);
    let channel = |server: &Server| {
        transport::Endpoint::from_shared(server.url())
            .unwrap()
            .connect_lazy()
    };
    let entry = |server: &Server| (server.name(), Endpoint::new(Direct(channel(server))));
    let list = discover::list(servers.iter().map(entry));
    let balance: Balance<Direct<Channel>, _> = Balance::new(list, RoundRobin::new());
    die_and_come_back(balance, servers, checks::grpc_health("")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_grpc_service_is_not_well() {
    let servers = NAMES.map(Server::grpc);
    let entry = |server: &Server| {
        let channel = transport::Endpoint::from_shared(server.url())
            .unwrap()
            .connect_lazy();
        (server.name(), Endpoint::new(Direct(channel)))
    };
    let list = discover::list(servers.iter().map(entry));
    let balance = Balance::new(list, RoundRobin::new());
    tokio::spawn(balance.check(quick(checks::grpc_health("nobody"))).unwrap());
    until(|| balance.stats().counts.ejected == 2).await;
    assert!(balance.stats().panic, "all are ill, so health is ignored");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_fails_its_checks() {
    let servers = NAMES.map(Server::http);
    let list = discover::list(servers.iter().map(Server::entry));
    let layer: BalanceLayer<Origin, _> = Builder::new()
        .health(Health::new())
        .layer(list, RoundRobin::new())
        .unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let probe = checks::reqwest_get(client, "health?deep=1");
    // Long enough for whoever answers.
    let patient = quick(probe).timeout(Duration::from_millis(500));
    tokio::spawn(layer.check(patient).unwrap());
    until(|| layer.stats().counts.members == 2 && servers[0].requests() > 2).await;
    servers[1].hang(true);
    until(|| layer.stats().endpoint("b").unwrap().checked_out).await;
    servers[1].hang(false);
    until(|| !layer.stats().endpoint("b").unwrap().checked_out).await;
}
