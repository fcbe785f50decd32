//! Real HTTP servers that are slow, fail, hang or push back, under classifiers of statuses.

use std::{
    collections::HashMap,
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use counterpoise::{
    AttemptsLayer, BalanceLayer, BoxError, Builder, Health, discover,
    health::{Overload, PanicMode},
    http::{AtBodyEnd, GoodHead, Origin, Status, Tracked},
    observe::{EndpointState, EndpointStats},
    policy::{LeastRequest, PeakEwma, Picker, Policy, RoundRobin, SmoothWeighted},
};
use http_body_util::{BodyExt, Empty, Full};
use hyper::{
    Request, Response,
    body::{Body, Incoming},
};
use hyper_util::{
    client::legacy::{Client as HyperClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, retry};

use crate::{
    body_bed::assert_sums,
    servers::{Server, soon, until},
};

pub(crate) type Client = HyperClient<HttpConnector, Empty<Bytes>>;
pub(crate) type Ask = Request<Empty<Bytes>>;
pub(crate) type Followed = Tracked<Incoming, GoodHead>;
pub(crate) type Http<P> = BalanceLayer<Origin, P, AtBodyEnd<Status>>;

pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];

/// So long that it never ends within a test.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// Sends a request once more if it was answered badly, or not at all.
#[derive(Debug, Clone)]
struct Again(bool);

impl<B> retry::Policy<Ask, Response<B>, BoxError> for Again {
    type Future = std::future::Ready<()>;

    fn retry(
        &mut self,
        _request: &mut Ask,
        result: &mut Result<Response<B>, BoxError>,
    ) -> Option<Self::Future> {
        let good = result
            .as_ref()
            .is_ok_and(|response| response.status() == 200);
        (!good && std::mem::take(&mut self.0)).then(|| std::future::ready(()))
    }

    fn clone_request(&mut self, _request: &Ask) -> Option<Ask> {
        Some(ask())
    }
}

pub(crate) fn ask() -> Ask {
    Request::get("http://service.test/")
        .body(Empty::new())
        .unwrap()
}

pub(crate) fn client() -> Client {
    HyperClient::builder(TokioExecutor::new()).build_http()
}

/// Returns a layer whose members are there.
pub(crate) async fn layer<P: Policy>(health: Health, policy: P, servers: &[Server]) -> Http<P> {
    let endpoints = discover::list(servers.iter().map(Server::entry));
    let builder = Builder::new()
        .health(health)
        .judge(AtBodyEnd::new(Status::new()));
    let layer = builder
        .starting_at(0)
        .seed(1)
        .layer(endpoints, policy)
        .unwrap();
    until(|| layer.stats().counts.members == servers.len()).await;
    layer
}

/// One failure ejects, for good, and what is ejected is not used.
pub(crate) fn strict() -> Health {
    let health = Health::new()
        .consecutive_failures(1)
        .panic_mode(PanicMode::Fail);
    health.base_ejection(LONG).max_ejection(LONG)
}

pub(crate) fn stats<P: Policy>(layer: &Http<P>, name: &str) -> EndpointStats {
    let stats = layer.stats();
    stats.endpoints.iter().for_each(assert_sums);
    stats.endpoint(name).unwrap().clone()
}

/// What callers have: one retry, with a time limit for each attempt.
pub(crate) fn stack<P: Policy<Picker: Picker<Ask>>>(
    layer: &Http<P>,
    limit: Duration,
) -> impl Service<Ask, Response = Response<Followed>, Error = BoxError, Future: Send> + Clone + use<P>
{
    ServiceBuilder::new()
        .layer(AttemptsLayer::new())
        .retry(Again(true))
        .timeout(limit)
        .layer(layer.clone())
        .service(client())
}

/// Sends a request and reads the answer, which must be a good one; returns who it came from.
pub(crate) async fn get<S, B>(service: S) -> String
where
    S: Service<Ask, Response = Response<B>, Error: Debug>,
    B: Body<Data = Bytes, Error: Debug>,
{
    let response = soon(service.oneshot(ask())).await.unwrap();
    assert_eq!(response.status(), 200);
    let body = soon(response.into_body().collect()).await.unwrap();
    String::from_utf8(body.to_bytes().into()).unwrap()
}

/// Sends so many requests, one after the other, never in vain.
pub(crate) async fn shares<S, B>(service: &S, requests: usize) -> HashMap<String, usize>
where
    S: Service<Ask, Response = Response<B>, Error: Debug> + Clone,
    B: Body<Data = Bytes, Error: Debug>,
{
    let mut shares = HashMap::new();
    for _ in 0..requests {
        *shares.entry(get(service.clone()).await).or_default() += 1;
    }
    shares
}

fn shared(shares: [usize; 3]) -> HashMap<String, usize> {
    NAMES
        .iter()
        .zip(shares)
        .map(|(&name, share)| (name.to_owned(), share))
        .collect()
}

/// A server whose status can be changed.
fn moody(name: &'static str, retry_after: Option<&'static str>) -> (Server, Arc<AtomicU16>) {
    let status = Arc::new(AtomicU16::new(200));
    let answer = {
        let status = Arc::clone(&status);
        move || {
            let mut response = Response::builder().status(status.load(Ordering::SeqCst));
            if let Some(retry_after) = retry_after {
                response = response.header("retry-after", retry_after);
            }
            response.body(Full::<Bytes>::from(name)).unwrap()
        }
    };
    (Server::answering(name, answer), status)
}

fn with_moody_b(retry_after: Option<&'static str>) -> ([Server; 3], Arc<AtomicU16>) {
    let (b, status) = moody("b", retry_after);
    ([Server::http("a"), b, Server::http("c")], status)
}

#[tokio::test]
async fn a_server_that_answers_500_is_ejected_and_comes_back() {
    let (servers, status) = with_moody_b(None);
    let health = Health::new()
        .consecutive_failures(2)
        .growth(1.0)
        .jitter(0.0);
    let layer = layer(
        health.base_ejection(Duration::from_millis(20)),
        RoundRobin::new(),
        &servers,
    )
    .await;
    let stack = stack(&layer, LONG);
    assert_eq!(shares(&stack, 9).await, shared([3, 3, 3]));
    status.store(500, Ordering::SeqCst);
    let without = shares(&stack, 12).await;
    assert_eq!((without.get("b"), without["a"] + without["c"]), (None, 12));
    let b = stats(&layer, "b");
    assert!(
        b.ejections >= 1 && b.state != EndpointState::Serving,
        "{b:?}"
    );
    assert_eq!(
        (b.failures, b.drops + b.neutrals + b.overloads),
        (b.picks - 3, 0)
    );
    status.store(200, Ordering::SeqCst);
    let back = async {
        while stats(&layer, "b").state != EndpointState::Serving {
            shares(&stack, 1).await;
        }
    };
    soon(back).await;
    assert_eq!(shares(&stack, 9).await, shared([3, 3, 3]));
    let in_flight = NAMES.map(|name| stats(&layer, name).in_flight);
    assert_eq!(in_flight, [0, 0, 0]);
}

#[tokio::test]
async fn a_server_that_fails_fast_attracts_no_traffic() {
    let (servers, status) = with_moody_b(None);
    status.store(500, Ordering::SeqCst);
    // More than any hiccup of the machine.
    let policy = PeakEwma::new().penalty(LONG);
    let layer = layer(Health::off(), policy, &servers).await;
    let shares = shares(&stack(&layer, LONG), 300).await;
    assert_eq!(shares.get("b"), None);
    let b = stats(&layer, "b");
    assert!((1..30).contains(&b.picks), "{b:?}");
    assert_eq!((b.failures, b.ejections), (b.picks, 0));
}

#[tokio::test]
async fn a_server_that_refuses_connections_is_ejected_and_comes_back() {
    let mut servers = NAMES.map(Server::http);
    let health = Health::new()
        .consecutive_failures(1)
        .growth(1.0)
        .jitter(0.0);
    let health = health.base_ejection(Duration::from_millis(20));
    let layer = layer(health, LeastRequest::new(), &servers).await;
    let stack = stack(&layer, LONG);
    servers[0].kill().await;
    let mut without = shares(&stack, 60).await;
    assert_eq!(
        (without.remove("a"), without.values().sum::<usize>()),
        (None, 60)
    );
    let a = stats(&layer, "a");
    assert!(a.ejections >= 1 && a.failures == a.picks, "{a:?}");
    servers[0].restart();
    let back = async {
        while stats(&layer, "a").state != EndpointState::Serving {
            shares(&stack, 1).await;
        }
    };
    soon(back).await;
    assert!(shares(&stack, 60).await["a"] > 5);
}

#[tokio::test]
async fn a_server_that_hangs_before_its_head_is_ejected_by_the_timeout_above() {
    let servers = NAMES.map(Server::http);
    let layer = layer(strict(), RoundRobin::new(), &servers).await;
    // Callers' patience is the age from which a dropped call counts, and more.
    let stack = stack(&layer, Duration::from_millis(1500));
    assert_eq!(shares(&stack, 3).await, shared([1, 1, 1]));
    servers[1].hang(true);
    let without = shares(&stack, 12).await;
    assert_eq!((without.get("b"), without["a"] + without["c"]), (None, 12));
    let b = stats(&layer, "b");
    assert_eq!((b.state, b.drops, b.picks), (EndpointState::Ejected, 1, 2));
}

#[tokio::test]
async fn push_back_lowers_the_share_for_as_long_as_it_says() {
    for code in [429, 503] {
        let (servers, status) = with_moody_b(Some("3600"));
        let overload = Overload::new()
            .hold(Duration::from_millis(1))
            .max_hold(LONG);
        let layer = layer(strict().overload(overload), SmoothWeighted::new(), &servers).await;
        let stack = stack(&layer, LONG);
        status.store(code, Ordering::SeqCst);
        while stats(&layer, "b").picks == 0 {
            shares(&stack, 1).await;
        }
        status.store(200, Ordering::SeqCst);
        let b = stats(&layer, "b");
        assert_eq!(
            (b.effective_weight, b.overloads, b.ejections),
            (0.5, 1, 0),
            "{code}"
        );
        let shares = shares(&stack, 50).await;
        assert!((9..=11).contains(&shares["b"]), "{code}: {shares:?}");
    }
}

#[tokio::test]
async fn a_server_that_always_pushes_back_is_never_ejected_and_its_share_comes_back() {
    let (servers, status) = with_moody_b(Some("0"));
    let overload = Overload::new().hold(Duration::from_millis(5));
    let layer = layer(strict().overload(overload), SmoothWeighted::new(), &servers).await;
    let stack = stack(&layer, LONG);
    status.store(429, Ordering::SeqCst);
    assert_eq!(shares(&stack, 100).await.get("b"), None);
    let b = stats(&layer, "b");
    assert_eq!(
        (b.state, b.ejections, b.failures),
        (EndpointState::Serving, 0, 0)
    );
    assert!(b.overloads >= 3 && b.overloads == b.picks, "{b:?}");
    status.store(200, Ordering::SeqCst);
    until(|| stats(&layer, "b").effective_weight == 1.0).await;
    let shares = shares(&stack, 30).await;
    assert!((9..=11).contains(&shares["b"]), "{shares:?}");
}

#[tokio::test]
async fn reqwest_is_judged_by_the_head() {
    let (servers, status) = with_moody_b(None);
    status.store(500, Ordering::SeqCst);
    let endpoints = discover::list(servers.iter().map(Server::entry));
    let builder = Builder::new()
        .health(strict())
        .classify(Status::new())
        .starting_at(0);
    let layer = builder.layer(endpoints, RoundRobin::new()).unwrap();
    let service = layer.layer(reqwest::Client::builder().no_proxy().build().unwrap());
    let mut held = Vec::new();
    for want in [200, 500, 200] {
        let url = "http://service.test/".parse().unwrap();
        let request = reqwest::Request::new(reqwest::Method::GET, url);
        let response = soon(service.clone().oneshot(request)).await.unwrap();
        assert_eq!(response.status(), want);
        held.push(response);
    }
    let stats = layer.stats();
    let b = stats.endpoint("b").unwrap();
    assert_eq!((b.state, b.failures), (EndpointState::Ejected, 1));
    assert!(
        stats
            .endpoints
            .iter()
            .all(|endpoint| endpoint.in_flight == 0),
        "{stats}"
    );
}
