//! Keys in headers, real servers and the clients that people use: a server that dies loses
//! its keys to others, and gets them back.

use std::{collections::BTreeMap, time::Duration};

use counterpoise::{
    Attempts, AttemptsLayer, BalanceLayer, BoxError, Builder, Direct, Endpoint, Health, discover,
    policy::affinity::{Key, RingHash},
};
use reqwest::{Client, Method, Request, Response};
use tonic::{
    Status,
    transport::{self, Channel},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tower::{Service, ServiceBuilder, ServiceExt};

use crate::servers::{Seen, Server, soon, until};
use crate::support::retries::Retries;

const NAMES: [&str; 3] = ["a", "b", "c"];

const USERS: usize = 40;

/// Who answered, by user.
type Homes = BTreeMap<usize, String>;

fn health() -> Health {
    let health = Health::new()
        .consecutive_failures(1)
        .growth(1.0)
        .jitter(0.0);
    health.base_ejection(Duration::from_millis(20))
}

/// Asserts that only the users of `b` have moved, and to both of the others.
fn assert_only_b_lost(before: &Homes, without: &Homes) {
    let mut heirs: Vec<&str> = Vec::new();
    for (user, home) in before {
        match home.as_str() {
            "b" => heirs.push(&without[user]),
            _ => assert_eq!(&without[user], home, "user {user}"),
        }
    }
    heirs.sort_unstable();
    heirs.dedup();
    assert_eq!(heirs, ["a", "c"]);
}

/// What the map says before anything is deployed.
fn foreseen() -> Homes {
    let map = RingHash::on(()).map(NAMES.map(|name| (name, 1)));
    let home = |user| (user, map.owners(user_name(user).as_bytes())[0].to_owned());
    (0..USERS).map(home).collect()
}

fn user_name(user: usize) -> String {
    format!("user-{user}")
}

fn by_user(request: &Request) -> Option<Key<'_>> {
    request
        .headers()
        .get("x-user")
        .map(|user| Key::from(user.as_bytes()))
}

/// Asks as a user; returns who answered.
async fn get<S>(service: &S, user: usize) -> String
where
    S: Service<Request, Response = Response, Error = BoxError> + Clone,
{
    let mut request = Request::new(Method::GET, "http://service.test/".parse().unwrap());
    request
        .headers_mut()
        .insert("x-user", user_name(user).parse().unwrap());
    let response = soon(service.clone().oneshot(request)).await.unwrap();
    let seen = Seen::of(response.headers());
    assert_eq!(soon(response.text()).await.unwrap(), seen.name);
    seen.name
}

async fn homes<S>(service: &S) -> Homes
where
    S: Service<Request, Response = Response, Error = BoxError> + Clone,
{
    let mut homes = Homes::new();
    for user in 0..USERS {
        homes.insert(user, get(service, user).await);
    }
    homes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reqwest_client_keeps_users_with_servers() {
    let mut servers = NAMES.map(Server::http);
    let endpoints = discover::list(servers.iter().map(Server::entry));
    let layer: BalanceLayer<_, _> = Builder::new()
        .health(health())
        .layer(endpoints, RingHash::by(by_user))
        .unwrap();
    until(|| layer.stats().counts.members == 3).await;
    let stack = ServiceBuilder::new()
        .layer(AttemptsLayer::new())
        .retry(Retries::by(1, Request::try_clone))
        .map_err(BoxError::from)
        .layer(layer.clone())
        .service(Client::builder().no_proxy().build().unwrap());
    let before = homes(&stack).await;
    assert_eq!(before, foreseen());

    servers[1].kill().await;
    // The first to notice is a user of b, whose second attempt goes to the next in its order.
    let without = homes(&stack).await;
    assert_only_b_lost(&before, &without);
    assert!(layer.stats().endpoint("b").unwrap().ejections >= 1);
    // So it stays, however often b is tried meanwhile.
    assert_eq!(homes(&stack).await, without);

    servers[1].restart();
    let home = async { while homes(&stack).await != before {} };
    soon(home).await;
}

type ByUser = fn(&hyper::Request<tonic::body::Body>) -> Option<Key<'_>>;

type Grpc = counterpoise::Balance<Direct<Channel>, RingHash<ByUser>>;

/// Asks a server for its health as a user; returns which one answered.
async fn check(service: &Grpc, user: usize) -> Result<String, Status> {
    let mut request = tonic::Request::new(HealthCheckRequest::default());
    request
        .metadata_mut()
        .insert("x-user", user_name(user).parse().unwrap());
    let response = soon(HealthClient::new(service.clone()).check(request)).await?;
    Ok(response
        .metadata()
        .get("x-name")
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned())
}

/// Asks as all users, each of whom tries once more, elsewhere, if the first attempt fails.
async fn grpc_homes(service: &Grpc) -> Homes {
    let mut homes = Homes::new();
    for user in 0..USERS {
        let attempts = Attempts::new();
        let name = match attempts.scope(check(service, user)).await {
            Err(_) => attempts.scope(check(service, user)).await.unwrap(),
            Ok(name) => name,
        };
        homes.insert(user, name);
    }
    homes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tonic_client_keeps_users_with_servers() {
    let mut servers = NAMES.map(Server::grpc);
    let by_user: ByUser = |request| {
        request
            .headers()
            .get("x-user")
            .map(|user| Key::from(user.as_bytes()))
    };
    let entry = |server: &Server| {
        let channel = transport::Endpoint::from_shared(server.url())
            .unwrap()
            .connect_lazy();
        (server.name(), Endpoint::new(Direct(channel)))
    };
    let endpoints = discover::list(servers.iter().map(entry).collect::<Vec<_>>());
    let service = Builder::new()
        .health(health())
        .balance(endpoints, RingHash::by(by_user))
        .unwrap();
    until(|| service.stats().counts.members == 3).await;
    let before = grpc_homes(&service).await;
    assert_eq!(before, foreseen());

    servers[1].kill().await;
    let without = grpc_homes(&service).await;
    assert_only_b_lost(&before, &without);
    assert!(service.stats().endpoint("b").unwrap().ejections >= 1);
    assert_eq!(grpc_homes(&service).await, without);

    servers[1].restart();
    let home = async { while grpc_homes(&service).await != before {} };
    soon(home).await;
}
