//! Real gRPC servers, and a generated client over the balancer.

use std::{collections::HashMap, time::Duration};

use counterpoise::{
    Attempts, Balance, BoxError, Builder, Direct, Endpoint, Error, Health, discover,
    error::ErrorKind, health::PanicMode, observe::EndpointState, policy::RoundRobin,
};
use futures::future::join_all;
use hyper::{Request, Response};
use tokio::task::JoinSet;
use tonic::{
    Code, Status, Streaming,
    body::Body,
    transport::{self, Channel},
};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    health_client::HealthClient,
};
use tower::{Service, ServiceBuilder, timeout::error::Elapsed};

use crate::servers::{Server, chain, soon, until};

type Grpc = Balance<Direct<Channel>, RoundRobin>;

const NAMES: [&str; 3] = ["a", "b", "c"];

/// So long that it never ends within a test.
const LONG: Duration = Duration::from_secs(3600);

fn channel(server: &Server) -> Channel {
    transport::Endpoint::from_shared(server.url())
        .unwrap()
        .connect_lazy()
}

fn entry(server: &Server) -> (&'static str, Endpoint<Direct<Channel>>) {
    (server.name(), Endpoint::new(Direct(channel(server))))
}

fn balance(health: Health, servers: &[Server]) -> Grpc {
    let endpoints = discover::list(servers.iter().map(entry));
    Builder::new()
        .health(health)
        .starting_at(0)
        .balance(endpoints, RoundRobin::new())
        .unwrap()
}

/// One failure ejects, for good, and what is ejected is not used.
fn strict() -> Health {
    let health = Health::new()
        .consecutive_failures(1)
        .panic_mode(PanicMode::Fail);
    health.base_ejection(LONG).max_ejection(LONG)
}

fn name<T>(response: &tonic::Response<T>) -> String {
    response
        .metadata()
        .get("x-name")
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned()
}

/// Asks a server for its health, once; returns which server it was.
async fn check<S>(service: S) -> Result<String, Status>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Error: Into<BoxError>,
{
    let request = HealthCheckRequest::default();
    let response = soon(HealthClient::new(service).check(request)).await?;
    assert_eq!(response.get_ref().status(), ServingStatus::Serving);
    Ok(name(&response))
}

/// Asks for health as a caller does who tries once more, elsewhere if possible.
async fn check_twice<S>(service: S) -> Result<String, Status>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone,
    S::Error: Into<BoxError>,
{
    let attempts = Attempts::new();
    match attempts.scope(check(service.clone())).await {
        Err(_) => attempts.scope(check(service)).await,
        first => first,
    }
}

/// Asks so many times, one after the other, never in vain.
async fn shares(service: &Grpc, calls: usize) -> HashMap<String, usize> {
    let mut shares = HashMap::new();
    for _ in 0..calls {
        *shares
            .entry(check_twice(service.clone()).await.unwrap())
            .or_default() += 1;
    }
    shares
}

fn even(share: usize) -> HashMap<String, usize> {
    NAMES.iter().map(|&name| (name.to_owned(), share)).collect()
}

/// Returns our error from the sources of a status.
fn cause(status: &Status) -> &Error {
    chain(status)
        .find_map(|error| error.downcast_ref())
        .expect("a status with our error")
}

/// Asserts that the client sees `Unavailable`, and for the right reason.
async fn assert_unavailable(service: Grpc, kind: ErrorKind) {
    let status = check(service).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert_eq!(cause(&status).kind(), kind, "{status:?}");
}

fn state(service: &Grpc, name: &str) -> EndpointState {
    service.stats().endpoint(name).unwrap().state
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_callers_share_the_servers_exactly() {
    let servers = NAMES.map(Server::grpc);
    let service = balance(Health::new(), &servers);
    until(|| service.stats().counts.members == 3).await;
    let mut callers = JoinSet::new();
    for _ in 0..6 {
        let service = service.clone();
        callers.spawn(async move { shares(&service, 50).await });
    }
    callers.join_all().await;
    for server in &servers {
        assert_eq!(server.requests(), 100, "{}", server.name());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_is_ejected_and_comes_back() {
    let mut servers = NAMES.map(Server::grpc);
    let health = Health::new()
        .consecutive_failures(2)
        .growth(1.0)
        .jitter(0.0);
    let service = balance(health.base_ejection(Duration::from_millis(20)), &servers);
    until(|| service.stats().counts.members == 3).await;
    assert_eq!(shares(&service, 30).await, even(10));

    // It dies while calls are on their way.
    let callers = join_all((0..4).map(|_| shares(&service, 20)));
    tokio::join!(callers, servers[1].kill());
    let without = shares(&service, 12).await;
    assert_eq!(without.get("b"), None, "{without:?}");
    let stats = service.stats();
    assert!(stats.endpoint("b").unwrap().ejections >= 1, "{stats}");

    servers[1].restart();
    let back = async {
        while state(&service, "b") != EndpointState::Serving {
            shares(&service, 1).await;
        }
    };
    soon(back).await;
    assert_eq!(shares(&service, 30).await, even(10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_is_ejected_and_comes_back() {
    let servers = NAMES.map(Server::grpc);
    let health = Health::new()
        .consecutive_failures(1)
        .base_ejection(Duration::from_millis(20))
        .growth(1.0)
        .drop_counts_after(Duration::from_millis(500));
    let service = balance(health, &servers);
    until(|| service.stats().counts.members == 3).await;
    let timed = ServiceBuilder::new()
        .timeout(Duration::from_secs(2))
        .service(service.clone());

    servers[2].hang(true);
    let results = join_all((0..3).map(|_| check(timed.clone()))).await;
    let failures: Vec<_> = results
        .iter()
        .filter_map(|result| result.as_ref().err())
        .collect();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(
        chain(failures[0]).any(|error| error.is::<Elapsed>()),
        "{failures:?}"
    );
    assert_eq!(service.stats().endpoint("c").unwrap().ejections, 1);

    servers[2].hang(false);
    let back = async {
        while state(&service, "c") != EndpointState::Serving {
            shares(&service, 1).await;
        }
    };
    soon(back).await;
    assert_eq!(shares(&service, 30).await, even(10));
}

/// Opens a stream and reads the messages that every server sends.
async fn watch(service: Grpc) -> Result<(String, Streaming<HealthCheckResponse>), Status> {
    let request = HealthCheckRequest::default();
    let response = soon(HealthClient::new(service).watch(request)).await?;
    let name = name(&response);
    let mut stream = response.into_inner();
    for want in [
        ServingStatus::Serving,
        ServingStatus::NotServing,
        ServingStatus::Serving,
    ] {
        assert_eq!(soon(stream.message()).await?.unwrap().status(), want);
    }
    Ok((name, stream))
}

#[tokio::test]
async fn a_stream_stays_with_its_server_and_ends_with_it() {
    let mut servers = NAMES.map(Server::grpc);
    let service = balance(strict(), &servers);
    let mut streams = Vec::new();
    for want in NAMES {
        let (name, stream) = watch(service.clone()).await.unwrap();
        assert_eq!(name, want);
        streams.push(stream);
    }
    servers[0].kill().await;
    soon(streams[0].message()).await.unwrap_err();
    // What the caller does then: watch anew. The dead server's turn may come first.
    let attempts = Attempts::new();
    let again = match attempts.scope(watch(service.clone())).await {
        Err(_) => attempts.scope(watch(service.clone())).await,
        first => first,
    };
    assert_ne!(again.unwrap().0, "a");
    // The others' streams go on.
    for stream in &mut streams[1..] {
        assert!(futures::poll!(std::pin::pin!(stream.message())).is_pending());
    }
}

#[tokio::test]
async fn an_answer_that_is_an_error_is_the_callers_and_ejects_nobody() {
    let servers = NAMES.map(Server::grpc);
    let service = balance(strict(), &servers);
    for _ in 0..9 {
        let request = HealthCheckRequest {
            service: "no such".to_owned(),
        };
        let status = soon(HealthClient::new(service.clone()).check(request))
            .await
            .unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (Code::NotFound, "no such")
        );
    }
    assert_eq!(service.stats().counts.ejected, 0);
    assert!(servers.iter().all(|server| server.requests() == 3));
}

#[tokio::test]
async fn a_refused_connection_is_unavailable_and_names_the_endpoint() {
    let mut servers = ["a", "b"].map(Server::grpc);
    for server in &mut servers {
        server.kill().await;
    }
    let service = balance(strict(), &servers);
    for name in ["a", "b"] {
        let status = check(service.clone()).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        let error = cause(&status);
        assert_eq!(
            (error.kind(), error.endpoint()),
            (ErrorKind::Call, Some(name))
        );
        assert!(error.find::<transport::Error>().is_some(), "{error:?}");
    }
    let status = check(service).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    let error = cause(&status);
    assert_eq!((error.kind(), error.endpoint()), (ErrorKind::Ejected, None));
    assert_eq!((error.counts().members, error.counts().ejected), (2, 2));
    // What a log shows without looking at the sources.
    assert!(status.message().contains("2 ejected"), "{status:?}");
}

#[tokio::test]
async fn a_server_that_died_under_a_connection_still_names_its_endpoint() {
    let mut server = Server::grpc("a");
    let service = balance(Health::off(), std::slice::from_ref(&server));
    check(service.clone()).await.unwrap();
    server.hang(true);
    let (result, ()) = tokio::join!(check(service), async {
        until(|| server.requests() == 2).await;
        server.kill().await;
    });
    let status = result.unwrap_err();
    assert_eq!(cause(&status).endpoint(), Some("a"), "{status:?}");
}

#[tokio::test]
async fn no_endpoint_is_unavailable_whatever_the_reason() {
    let server = Server::grpc("a");
    let target = Direct(channel(&server));
    let round_robin = RoundRobin::new;

    let ended = discover::list::<&str, Direct<Channel>>([]);
    assert_unavailable(
        Balance::new(ended, round_robin()),
        ErrorKind::DiscoveryEnded,
    )
    .await;

    let drained = discover::list([("a", Endpoint::new(target.clone()).weight(0))]);
    assert_unavailable(Balance::new(drained, round_robin()), ErrorKind::Drained).await;

    let (handle, changes) = discover::channel();
    let emptied = Balance::new(changes, round_robin());
    handle.insert("a", Endpoint::new(target.clone()));
    soon(emptied.ready_when(1)).await.unwrap();
    handle.remove(&"a");
    until(|| emptied.stats().endpoints.is_empty()).await;
    assert_unavailable(emptied, ErrorKind::Empty).await;

    let (_handle, changes) = discover::channel::<&str, Direct<Channel>>();
    let unknown = Builder::new().wait_for_endpoints(Duration::ZERO);
    assert_unavailable(
        unknown.balance(changes, round_robin()).unwrap(),
        ErrorKind::Empty,
    )
    .await;

    let (_handle, changes) = discover::channel::<&str, Direct<Channel>>();
    let crowded = Builder::new()
        .max_waiting(0)
        .balance(changes, round_robin())
        .unwrap();
    assert_unavailable(crowded, ErrorKind::TooManyWaiting).await;
}

/// tonic's own timeout, of one request or of a channel, ends inside the endpoint: so it is a
/// failure of the endpoint like any other, and names it.
#[tokio::test]
async fn a_deadline_of_the_request_ejects_a_server_that_hangs() {
    let servers = ["a", "b"].map(Server::grpc);
    let service = balance(strict(), &servers);
    servers[0].hang(true);
    let mut request = tonic::Request::new(HealthCheckRequest::default());
    request.set_timeout(Duration::from_millis(200));
    let status = soon(HealthClient::new(service.clone()).check(request))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Cancelled, "{status:?}");
    assert_eq!(cause(&status).endpoint(), Some("a"), "{status:?}");
    assert_eq!(state(&service, "a"), EndpointState::Ejected);
    assert_eq!(check(service).await.unwrap(), "b");
}
