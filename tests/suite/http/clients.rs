//! Real HTTP servers, and the clients that people use.

use std::{collections::HashMap, error::Error as _, time::Duration};

use bytes::Bytes;
use counterpoise::{
    Attempts, AttemptsLayer, Balance, BalanceLayer, BoxError, Builder, Direct, Endpoint, Error,
    Health, Stats, discover,
    error::ErrorKind,
    health::{ErrorsAreFailures, PanicMode},
    http::Origin,
    observe::EndpointState,
    policy::{Members, PickContext, PickResult, Picker, Policy, RoundRobin},
};
use futures::future::join_all;
use http_body_util::Empty;
use hyper_util::{
    client::legacy::{Client as HyperClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use reqwest::{Client, Method, Request, Response};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, timeout::error::Elapsed};

use crate::servers::{Seen, Server, soon, until};
use crate::support::retries::Retries;

type Http = Balance<Origin, RoundRobin, Client>;

const NAMES: [&str; 3] = ["a", "b", "c"];

/// So long that it never ends within a test.
const LONG: Duration = Duration::from_secs(3600);

/// A client that heeds no proxy settings of the machine.
fn client() -> Client {
    Client::builder().no_proxy().build().unwrap()
}

fn request(url: &str) -> Request {
    Request::new(Method::GET, url.parse().unwrap())
}

fn layer(health: Health, servers: &[Server]) -> BalanceLayer<Origin, RoundRobin> {
    let endpoints = discover::list(servers.iter().map(Server::entry));
    Builder::new()
        .health(health)
        .starting_at(0)
        .layer(endpoints, RoundRobin::new())
        .unwrap()
}

/// Sends a request and returns what the server saw of it.
async fn get<S>(service: S, url: &str) -> Result<Seen, S::Error>
where
    S: Service<Request, Response = Response>,
{
    let response = soon(service.oneshot(request(url))).await?;
    let seen = Seen::of(response.headers());
    // Read to the end, so that the connection is free for the next request.
    assert_eq!(soon(response.text()).await.unwrap(), seen.name);
    Ok(seen)
}

/// Sends so many requests, one after the other, all of which must succeed.
async fn shares<S>(service: &S, requests: usize) -> HashMap<String, usize>
where
    S: Service<Request, Response = Response> + Clone,
    S::Error: std::fmt::Debug,
{
    let mut shares = HashMap::new();
    for _ in 0..requests {
        let seen = get(service.clone(), "http://service.test/").await.unwrap();
        *shares.entry(seen.name).or_default() += 1;
    }
    shares
}

fn even(share: usize) -> HashMap<String, usize> {
    NAMES.iter().map(|&name| (name.to_owned(), share)).collect()
}

fn state(stats: &Stats, name: &str) -> EndpointState {
    stats.endpoint(name).unwrap().state
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_callers_share_the_servers_exactly() {
    let servers = NAMES.map(Server::http);
    let layer = layer(Health::new(), &servers);
    let service: Http = layer.layer(client());
    until(|| layer.stats().counts.members == 3).await;
    let callers = (0..6).map(|_| {
        let service = service.clone();
        tokio::spawn(async move { shares(&service, 50).await })
    });
    for caller in join_all(callers).await {
        assert_eq!(caller.unwrap().values().sum::<usize>(), 50);
    }
    let stats = layer.stats();
    for server in &servers {
        assert_eq!(server.requests(), 100, "{}", server.name());
        let endpoint = stats.endpoint(server.name()).unwrap();
        assert_eq!(
            (endpoint.picks, endpoint.successes, endpoint.in_flight),
            (100, 100, 0)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_is_ejected_and_comes_back() {
    let mut servers = NAMES.map(Server::http);
    let health = Health::new()
        .consecutive_failures(2)
        .base_ejection(Duration::from_millis(20))
        .growth(1.0)
        .jitter(0.0);
    let layer = layer(health, &servers);
    until(|| layer.stats().counts.members == 3).await;
    let stack = ServiceBuilder::new()
        .layer(AttemptsLayer::new())
        .retry(Retries::by(1, Request::try_clone))
        .map_err(BoxError::from)
        .layer(layer.clone())
        .service(client());
    assert_eq!(shares(&stack, 30).await, even(10));

    // It dies while calls are on their way.
    let callers = join_all((0..4).map(|_| shares(&stack, 20)));
    tokio::join!(callers, servers[1].kill());
    let without = shares(&stack, 12).await;
    assert_eq!(without.get("b"), None, "{without:?}");
    let stats = layer.stats();
    assert!(stats.endpoint("b").unwrap().ejections >= 1, "{stats}");
    assert_ne!(state(&stats, "b"), EndpointState::Serving, "{stats}");

    servers[1].restart();
    let back = async {
        while state(&layer.stats(), "b") != EndpointState::Serving {
            shares(&stack, 1).await;
        }
    };
    soon(back).await;
    assert_eq!(shares(&stack, 30).await, even(10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_is_ejected_by_the_timeouts_above() {
    let servers = NAMES.map(Server::http);
    let health = Health::new()
        .consecutive_failures(2)
        .base_ejection(LONG)
        .max_ejection(LONG)
        .drop_counts_after(Duration::from_millis(500));
    let layer = layer(health, &servers);
    until(|| layer.stats().counts.members == 3).await;
    let stack = ServiceBuilder::new()
        .timeout(Duration::from_secs(2))
        .layer(layer.clone())
        .service(client());
    servers[2].hang(true);

    // Two calls for each server, at once: none can tell yet that one of them hangs.
    let results = join_all((0..6).map(|_| get(stack.clone(), "http://service.test/"))).await;
    let errors: Vec<BoxError> = results.into_iter().filter_map(Result::err).collect();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(
        errors.iter().all(|error| error.is::<Elapsed>()),
        "{errors:?}"
    );
    let stats = layer.stats();
    assert_eq!(state(&stats, "c"), EndpointState::Ejected, "{stats}");
    assert_eq!(stats.endpoint("c").unwrap().drops, 2);

    assert_eq!(shares(&stack, 20).await["a"], 10);
    assert_eq!(servers[2].requests(), 2);
}

#[tokio::test]
async fn path_and_query_reach_the_server_behind_the_base_path() {
    let server = Server::http("a");
    for (base, url, want) in [
        ("", "http://service.test", "/"),
        ("", "http://service.test/x/y%20z?q=1&r", "/x/y%20z?q=1&r"),
        ("/", "http://service.test/x", "/x"),
        ("/base", "http://service.test/x?q=1", "/base/x?q=1"),
        ("/base/", "http://service.test/?q", "/base/?q"),
    ] {
        let origin: Origin = format!("{}{base}", server.url()).parse().unwrap();
        let endpoints = || discover::list([("a", Endpoint::new(origin.clone()))]);
        let layer = BalanceLayer::new(endpoints(), RoundRobin::new());
        let seen = get(layer.layer(client()), url).await.unwrap();
        assert_eq!(seen.path, want, "{base} {url} by reqwest");
        let layer = BalanceLayer::new(endpoints(), RoundRobin::new());
        let seen = get_by_hyper(layer.layer(hyper_client()), url).await;
        assert_eq!(seen.path, want, "{base} {url} by hyper");
    }
}

#[tokio::test]
async fn the_host_is_the_servers_unless_it_is_preserved() {
    let server = Server::http("a");
    let address = server.address().to_string();
    for (preserve, url, want) in [
        (false, "http://service.test/", address.as_str()),
        (true, "http://service.test/", "service.test"),
        (true, "http://service.test:81/", "service.test:81"),
    ] {
        let origin = server.origin().preserve_host(preserve);
        let endpoints = || discover::list([("a", Endpoint::new(origin.clone()))]);
        let layer = BalanceLayer::new(endpoints(), RoundRobin::new());
        let seen = get(layer.layer(client()), url).await.unwrap();
        assert_eq!(seen.host, want, "{preserve} {url} by reqwest");
        let layer = BalanceLayer::new(endpoints(), RoundRobin::new());
        let seen = get_by_hyper(layer.layer(hyper_client()), url).await;
        assert_eq!(seen.host, want, "{preserve} {url} by hyper");
    }
}

#[tokio::test]
async fn a_host_of_the_requests_own_is_kept() {
    let server = Server::http("a");
    for preserve in [false, true] {
        let endpoint = Endpoint::new(server.origin().preserve_host(preserve));
        let layer = BalanceLayer::new(discover::list([("a", endpoint)]), RoundRobin::new());
        let mut request = request("http://service.test/");
        request
            .headers_mut()
            .insert("host", "own.test".parse().unwrap());
        let response = soon(layer.layer(client()).oneshot(request)).await.unwrap();
        assert_eq!(Seen::of(response.headers()).host, "own.test");
    }
}

fn hyper_client() -> HyperClient<HttpConnector, Empty<Bytes>> {
    HyperClient::builder(TokioExecutor::new()).build_http()
}

async fn get_by_hyper(
    service: Balance<Origin, RoundRobin, HyperClient<HttpConnector, Empty<Bytes>>>,
    url: &str,
) -> Seen {
    let request = hyper::Request::builder()
        .uri(url)
        .body(Empty::new())
        .unwrap();
    let response = soon(service.oneshot(request)).await.unwrap();
    Seen::of(response.headers())
}

#[tokio::test]
async fn a_client_of_hyper_goes_round() {
    let servers = NAMES.map(Server::http);
    let service = layer(Health::new(), &servers).layer(hyper_client());
    for name in NAMES.iter().cycle().take(9) {
        assert_eq!(
            get_by_hyper(service.clone(), "http://service.test/")
                .await
                .name,
            *name
        );
    }
}

#[tokio::test]
async fn each_endpoint_may_bring_a_client_that_resolves_the_name() {
    let servers = NAMES.map(Server::http);
    let endpoints = servers.each_ref().map(|server| {
        let client = Client::builder()
            .no_proxy()
            .resolve("service.test", server.address());
        (
            server.name(),
            Endpoint::new(Direct(client.build().unwrap())),
        )
    });
    let service = Balance::new(discover::list(endpoints), RoundRobin::new());
    assert_eq!(shares(&service, 9).await, even(3));
    let seen = get(service, "http://service.test/x?q").await.unwrap();
    assert_eq!(
        (seen.path.as_str(), seen.host.as_str()),
        ("/x?q", "service.test")
    );
}

#[tokio::test]
async fn an_error_names_the_endpoint_and_keeps_the_clients_error() {
    let mut server = Server::http("a");
    server.kill().await;
    let service = layer(Health::new(), std::slice::from_ref(&server)).layer(client());
    let error: Error = get(service, "http://service.test/").await.unwrap_err();
    assert_eq!(
        (error.kind(), error.endpoint()),
        (ErrorKind::Call, Some("a"))
    );
    assert_eq!(error.to_string(), "the call to endpoint a failed");
    let cause: &reqwest::Error = error.find().unwrap();
    assert!(cause.is_connect(), "{cause:?}");
    assert!(error.source().unwrap().is::<reqwest::Error>());
}

#[tokio::test]
async fn a_stack_of_timeout_and_retry_yields_our_error_in_a_box() {
    let mut servers = ["a", "b"].map(Server::http);
    for server in &mut servers {
        server.kill().await;
    }
    let health = Health::new()
        .consecutive_failures(1)
        .base_ejection(LONG)
        .max_ejection(LONG)
        .panic_mode(PanicMode::Fail);
    let stack = ServiceBuilder::new()
        .layer(AttemptsLayer::new())
        .retry(Retries::by(1, Request::try_clone))
        .timeout(LONG)
        .layer(layer(health, &servers))
        .service(client());

    let error = get(stack.clone(), "http://service.test/")
        .await
        .unwrap_err();
    let error: &Error = error.downcast_ref().unwrap();
    assert_eq!(
        (error.kind(), error.endpoint()),
        (ErrorKind::Call, Some("b"))
    );

    let error = get(stack, "http://service.test/").await.unwrap_err();
    let error: &Error = error.downcast_ref().unwrap();
    assert_eq!(error.kind(), ErrorKind::Ejected);
    assert_eq!((error.counts().members, error.counts().ejected), (2, 2));
    assert!(error.is_unsent() && error.is_unavailable());
}

/// Names the first endpoint for every request, tried or not.
#[derive(Debug)]
struct First;

impl Policy for First {
    type Picker = Self;

    fn build(&self, _members: &Members<'_>, _previous: Option<&Self>) -> Self {
        Self
    }
}

impl Picker<Request> for First {
    fn pick(&self, _request: &Request, _cx: &PickContext<'_>) -> PickResult {
        PickResult::Member(0)
    }
}

#[tokio::test]
async fn a_retry_goes_to_another_server_whatever_the_policy_names() {
    let mut servers = NAMES.map(Server::http);
    servers[0].kill().await;
    let endpoints = discover::list(servers.iter().map(Server::entry));
    let stack = ServiceBuilder::new()
        .retry(Retries::by(1, Request::try_clone))
        .map_err(BoxError::from)
        .layer(
            Builder::new()
                .health(Health::off())
                .layer(endpoints, First)
                .unwrap(),
        )
        .service(client());
    for _ in 0..9 {
        let attempts = Attempts::new();
        let seen = attempts
            .scope(get(stack.clone(), "http://service.test/"))
            .await
            .unwrap();
        assert_ne!(seen.name, "a");
        assert_eq!(*attempts.names(), ["a".into(), seen.name.into()]);
    }
}

/// A server that answers every request with this status.
fn answering(name: &'static str, status: u16) -> Server {
    Server::answering(name, move || {
        hyper::Response::builder()
            .status(status)
            .body(Empty::<Bytes>::new())
            .unwrap()
    })
}

/// Sends requests to two servers, one of which fails; returns how many of each status came.
async fn statuses<R>(requests: usize, send: impl AsyncFn() -> R) -> HashMap<R, usize>
where
    R: std::hash::Hash + Eq,
{
    let mut statuses = HashMap::new();
    for _ in 0..requests {
        *statuses.entry(send().await).or_default() += 1;
    }
    statuses
}

#[tokio::test]
async fn by_default_a_server_that_answers_500_is_ejected() {
    let servers = [answering("good", 200), answering("bad", 500)];
    let layer = || {
        let endpoints = discover::list(servers.iter().map(Server::entry));
        BalanceLayer::new(endpoints, RoundRobin::new())
    };
    let (by_reqwest, by_hyper) = (layer(), layer());
    soon(by_reqwest.ready_when(2)).await.unwrap();
    soon(by_hyper.ready_when(2)).await.unwrap();
    let service = by_reqwest.layer(client());
    let reqwests = statuses(20, async || {
        let request = request("http://service.test/");
        soon(service.clone().oneshot(request))
            .await
            .unwrap()
            .status()
            .as_u16()
    });
    let service = by_hyper.layer(hyper_client());
    let hypers = statuses(20, async || {
        let request = hyper::Request::get("http://service.test/")
            .body(Empty::new())
            .unwrap();
        soon(service.clone().oneshot(request))
            .await
            .unwrap()
            .status()
            .as_u16()
    });
    let want = HashMap::from([(200, 15), (500, 5)]);
    assert_eq!((reqwests.await, hypers.await), (want.clone(), want));
    for stats in [by_reqwest.stats(), by_hyper.stats()] {
        assert_eq!(state(&stats, "bad"), EndpointState::Ejected, "{stats}");
        assert_eq!(stats.endpoint("bad").unwrap().failures, 5);
        assert_eq!(stats.endpoint("good").unwrap().successes, 15);
    }
}

#[tokio::test]
async fn where_only_errors_are_failures_500_ejects_nobody() {
    let server = answering("bad", 500);
    let endpoints = discover::list([server.entry()]);
    let builder = Builder::new().classify(ErrorsAreFailures);
    let layer = builder.layer(endpoints, RoundRobin::new()).unwrap();
    for _ in 0..10 {
        let request = request("http://service.test/");
        assert_eq!(
            soon(layer.layer(client()).oneshot(request))
                .await
                .unwrap()
                .status(),
            500
        );
    }
    let stats = layer.stats();
    let bad = stats.endpoint("bad").unwrap();
    assert_eq!(
        (bad.state, bad.successes, bad.failures),
        (EndpointState::Serving, 10, 0)
    );
}
