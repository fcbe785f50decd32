//! Real gRPC servers that tell their status behind the body, and a generated client over a
//! balancer that follows bodies.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use counterpoise::{
    Attempts, Balance, Builder, Endpoint, Health,
    call::{AtHead, Implied},
    discover,
    health::{Overload, PanicMode},
    http::{Grpc, GrpcChannel},
    observe::{EndpointState, EndpointStats},
    policy::{RoundRobin, SmoothWeighted},
};
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::{HeaderMap, Request, Response, body::Frame};
use tonic::{
    Code, Status, Streaming,
    body::Body,
    codegen::Service,
    transport::{self, Channel},
};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    health_client::HealthClient,
};

use crate::servers::{Server, soon, until};

type Followed<J = Implied> = Balance<GrpcChannel<Channel>, SmoothWeighted, (), J>;

const NAMES: [&str; 3] = ["a", "b", "c"];

/// So long that it never ends within a test.
const LONG: Duration = Duration::from_secs(3600);

/// What a server answers with.
#[derive(Debug, Clone, Copy)]
struct Deed {
    messages: usize,
    /// Where the answer stops for good, instead of an end.
    stays_open: bool,
    code: Code,
    /// Whether the status comes in the head, with no body behind it.
    in_head: bool,
    pushback: Option<&'static str>,
}

const WELL: Deed = Deed {
    messages: 1,
    stays_open: false,
    code: Code::Ok,
    in_head: false,
    pushback: None,
};

/// A server whose answers can be changed.
struct Site {
    server: Server,
    deed: Arc<Mutex<Deed>>,
}

impl Site {
    fn new(name: &'static str) -> Self {
        let deed = Arc::new(Mutex::new(WELL));
        let answer = {
            let deed = Arc::clone(&deed);
            move || answer(name, *deed.lock().unwrap())
        };
        Self {
            server: Server::answering(name, answer),
            deed,
        }
    }

    fn act(&self, deed: Deed) {
        *self.deed.lock().unwrap() = deed;
    }

    fn entry(&self) -> (&'static str, Endpoint<GrpcChannel<Channel>>) {
        let channel = transport::Endpoint::from_shared(self.server.url()).unwrap();
        (
            self.server.name(),
            Endpoint::new(GrpcChannel(channel.connect_lazy())),
        )
    }
}

fn answer(name: &str, deed: Deed) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
    let mut status = HeaderMap::new();
    status.insert("grpc-status", i32::from(deed.code).into());
    if let Some(pushback) = deed.pushback {
        status.insert("grpc-retry-pushback-ms", pushback.parse().unwrap());
    }
    let mut response = Response::builder().header("content-type", "application/grpc");
    response = response.header("x-name", name);
    if deed.in_head {
        response.headers_mut().unwrap().extend(status);
        return response
            .body(http_body_util::Empty::new().boxed_unsync())
            .unwrap();
    }
    // Not compressed, two bytes long: field 1 is 1, serving.
    let message = Bytes::from_static(&[0, 0, 0, 0, 2, 8, 1]);
    let messages: Vec<_> = (0..deed.messages)
        .map(|_| Ok(Frame::data(message.clone())))
        .collect();
    let end = match deed.stays_open {
        true => stream::pending().boxed(),
        false => stream::iter([Ok(Frame::trailers(status))]).boxed(),
    };
    response
        .body(StreamBody::new(stream::iter(messages).chain(end)).boxed_unsync())
        .unwrap()
}

fn builder(health: Health) -> Builder {
    Builder::new().health(health).starting_at(0)
}

fn balance<J: Clone>(builder: Builder<J>, sites: &[Site]) -> Followed<J> {
    let endpoints = discover::list(sites.iter().map(Site::entry));
    builder.balance(endpoints, SmoothWeighted::new()).unwrap()
}

/// One failure ejects, for good, and what is ejected is not used.
fn strict() -> Health {
    let health = Health::new()
        .consecutive_failures(1)
        .panic_mode(PanicMode::Fail);
    health.base_ejection(LONG).max_ejection(LONG)
}

fn stats<J>(service: &Followed<J>, name: &str) -> EndpointStats {
    let stats = service.stats();
    stats
        .endpoints
        .iter()
        .for_each(crate::body_bed::assert_sums);
    stats.endpoint(name).unwrap().clone()
}

fn mark(mut request: tonic::Request<()>) -> Result<tonic::Request<()>, Status> {
    request
        .metadata_mut()
        .insert("x-caller", "a test".parse().unwrap());
    Ok(request)
}

/// Asks for health by the generated client with an interceptor; returns who answered.
async fn check<S, B>(service: S) -> Result<String, Status>
where
    S: Service<
            Request<Body>,
            Response = Response<B>,
            Error: Into<counterpoise::BoxError> + Send + Sync,
        >,
    B: hyper::body::Body<Data = Bytes, Error: Into<counterpoise::BoxError> + Send>
        + Default
        + Send
        + 'static,
{
    let mut client = HealthClient::with_interceptor(service, mark);
    let response = soon(client.check(HealthCheckRequest::default())).await?;
    assert_eq!(response.get_ref().status(), ServingStatus::Serving);
    Ok(response
        .metadata()
        .get("x-name")
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned())
}

async fn watch(service: Followed) -> Result<(String, Streaming<HealthCheckResponse>), Status> {
    let mut client = HealthClient::with_interceptor(service, mark);
    let response = soon(client.watch(HealthCheckRequest::default())).await?;
    let name = response
        .metadata()
        .get("x-name")
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    Ok((name, response.into_inner()))
}

/// Reads a stream to its end.
async fn watch_all(service: Followed) -> Result<String, Status> {
    let (name, mut stream) = watch(service).await?;
    while soon(stream.message()).await?.is_some() {}
    Ok(name)
}

/// Calls as a caller does who tries once more, elsewhere if possible.
async fn twice<F>(call: impl Fn() -> F) -> Result<String, Status>
where
    F: Future<Output = Result<String, Status>>,
{
    let attempts = Attempts::new();
    match attempts.scope(call()).await {
        Err(_) => attempts.scope(call()).await,
        first => first,
    }
}

/// Calls so many times, one after the other, never in vain.
async fn shares<F>(calls: usize, call: impl Fn() -> F) -> HashMap<String, usize>
where
    F: Future<Output = Result<String, Status>>,
{
    let mut shares = HashMap::new();
    for _ in 0..calls {
        *shares.entry(twice(&call).await.unwrap()).or_default() += 1;
    }
    shares
}

fn shared(shares: &[(&str, usize)]) -> HashMap<String, usize> {
    shares
        .iter()
        .map(|&(name, share)| (name.to_owned(), share))
        .collect()
}

#[tokio::test]
async fn a_server_that_fails_in_its_trailers_only_is_ejected() {
    for (code, messages) in [
        (Code::Internal, 0),
        (Code::Internal, 1),
        (Code::Unavailable, 1),
    ] {
        let sites = NAMES.map(Site::new);
        sites[1].act(Deed {
            code,
            messages,
            ..WELL
        });
        let service = balance(builder(strict().consecutive_failures(2)), &sites);
        let shares = shares(30, || check(service.clone())).await;
        assert_eq!(shares.get("b"), None, "{code:?}");
        let b = stats(&service, "b");
        assert_eq!(
            (b.state, b.failures, b.picks),
            (EndpointState::Ejected, 2, 2),
            "{code:?}"
        );
        assert_eq!(sites[1].server.requests(), 2);
        for name in ["a", "c"] {
            let stats = stats(&service, name);
            assert_eq!((stats.successes, stats.in_flight), (shares[name] as u64, 0));
        }
    }
}

#[tokio::test]
async fn at_the_head_what_the_trailers_say_is_not_seen() {
    let sites = ["a"].map(Site::new);
    sites[0].act(Deed {
        code: Code::Internal,
        ..WELL
    });
    let at_head = builder(strict()).judge(AtHead::new(Grpc::new()));
    let service = balance(at_head, &sites);
    assert_eq!(
        check(service.clone()).await.unwrap_err().code(),
        Code::Internal
    );
    assert_eq!(
        (
            stats(&service, "a").successes,
            stats(&service, "a").failures
        ),
        (1, 0)
    );
}

#[tokio::test]
async fn a_stream_that_fails_at_its_end_ejects() {
    let sites = NAMES.map(Site::new);
    sites.iter().for_each(|site| {
        site.act(Deed {
            messages: 3,
            ..WELL
        });
    });
    sites[1].act(Deed {
        messages: 3,
        code: Code::DataLoss,
        ..WELL
    });
    let service = balance(builder(strict()), &sites);
    let shares = shares(21, || watch_all(service.clone())).await;
    assert_eq!((shares.get("b"), shares["a"] + shares["c"]), (None, 21));
    let b = stats(&service, "b");
    assert_eq!(
        (b.state, b.failures, b.picks),
        (EndpointState::Ejected, 1, 1)
    );
}

#[tokio::test]
async fn an_ejected_server_comes_back_by_a_call_whose_trailers_are_good() {
    let sites = ["a", "b"].map(Site::new);
    let health = Health::new()
        .consecutive_failures(1)
        .growth(1.0)
        .jitter(0.0);
    let service = balance(
        builder(health.base_ejection(Duration::from_millis(20))),
        &sites,
    );
    sites[0].act(Deed {
        code: Code::Unknown,
        ..WELL
    });
    check(service.clone()).await.unwrap_err();
    assert_eq!(stats(&service, "a").state, EndpointState::Ejected);
    until(|| stats(&service, "a").returns_in == Some(Duration::ZERO)).await;
    check(service.clone()).await.unwrap_err();
    assert_eq!(
        stats(&service, "a").ejections,
        2,
        "the trial failed in its trailers"
    );
    sites[0].act(WELL);
    let back = async {
        while stats(&service, "a").state != EndpointState::Serving {
            check(service.clone()).await.unwrap();
        }
    };
    soon(back).await;
}

#[tokio::test]
async fn what_the_application_refuses_ejects_nobody() {
    let refusals = [
        Code::NotFound,
        Code::PermissionDenied,
        Code::InvalidArgument,
        Code::Unauthenticated,
        Code::FailedPrecondition,
    ];
    for (code, in_head) in refusals
        .into_iter()
        .flat_map(|code| [(code, true), (code, false)])
    {
        let sites = ["a", "b"].map(Site::new);
        sites.iter().for_each(|site| {
            site.act(Deed {
                code,
                in_head,
                messages: 0,
                ..WELL
            });
        });
        let service = balance(builder(strict()), &sites);
        for _ in 0..4 {
            assert_eq!(check(service.clone()).await.unwrap_err().code(), code);
        }
        for name in ["a", "b"] {
            let stats = stats(&service, name);
            assert_eq!(
                (stats.successes, stats.ejections),
                (2, 0),
                "{code:?} {in_head}"
            );
        }
    }
}

#[tokio::test]
async fn push_back_lowers_the_share_for_as_long_as_it_says_and_ejects_nobody() {
    let overload = Overload::new()
        .hold(Duration::from_millis(1))
        .max_hold(LONG);
    for (code, in_head) in [
        (Code::ResourceExhausted, true),
        (Code::ResourceExhausted, false),
        (Code::Unavailable, true),
        (Code::Unavailable, false),
    ] {
        let sites = NAMES.map(Site::new);
        let service = balance(builder(strict().overload(overload)), &sites);
        sites[0].act(Deed {
            code,
            in_head,
            messages: 0,
            pushback: Some("3600000"),
            ..WELL
        });
        check(service.clone()).await.unwrap_err();
        sites[0].act(WELL);
        let a = stats(&service, "a");
        assert_eq!(
            (a.effective_weight, a.overloads, a.ejections),
            (0.5, 1, 0),
            "{code:?}"
        );
        let shares = shares(50, || check(service.clone())).await;
        assert_eq!(
            shares,
            shared(&[("a", 10), ("b", 20), ("c", 20)]),
            "{code:?} {in_head}"
        );
    }
}

#[tokio::test]
async fn a_share_comes_back_and_callers_who_try_twice_see_no_push_back() {
    let sites = NAMES.map(Site::new);
    let overload = Overload::new().hold(Duration::from_millis(5));
    let service = balance(builder(strict().overload(overload)), &sites);
    sites[1].act(Deed {
        code: Code::ResourceExhausted,
        pushback: Some("1"),
        ..WELL
    });
    shares(60, || check(service.clone())).await;
    let b = stats(&service, "b");
    assert_eq!((b.state, b.failures), (EndpointState::Serving, 0));
    assert!(b.overloads >= 2, "{b:?}");
    sites[1].act(WELL);
    until(|| stats(&service, "b").effective_weight == 1.0).await;
    let shares = shares(30, || check(service.clone())).await;
    assert!((9..=11).contains(&shares["b"]), "{shares:?}");
}

#[tokio::test]
async fn a_stream_is_in_flight_until_it_is_dropped() {
    let sites = ["a"].map(Site::new);
    sites[0].act(Deed {
        messages: 2,
        stays_open: true,
        ..WELL
    });
    let service = balance(builder(strict()), &sites);
    let (_, mut stream) = watch(service.clone()).await.unwrap();
    for _ in 0..2 {
        assert!(soon(stream.message()).await.unwrap().is_some());
        assert_eq!(
            (stats(&service, "a").in_flight, stats(&service, "a").picks),
            (1, 1)
        );
    }
    assert!(futures::poll!(std::pin::pin!(stream.message())).is_pending());
    drop(stream);
    let a = stats(&service, "a");
    assert_eq!(
        (a.in_flight, a.drops, a.failures, a.successes),
        (0, 1, 0, 0)
    );
    assert_eq!(a.consecutive_failures, 0);
}

#[tokio::test]
async fn a_stream_that_breaks_off_is_a_failure_of_its_server() {
    let mut sites = ["a", "b"].map(Site::new);
    sites[0].act(Deed {
        stays_open: true,
        ..WELL
    });
    let service = balance(builder(strict()), &sites);
    let (name, mut stream) = watch(service.clone()).await.unwrap();
    assert!(soon(stream.message()).await.unwrap().is_some());
    assert_eq!(
        (name.as_str(), stats(&service, "a").state),
        ("a", EndpointState::Serving)
    );
    sites[0].server.kill().await;
    soon(stream.message()).await.unwrap_err();
    let a = stats(&service, "a");
    assert_eq!(
        (a.state, a.failures, a.in_flight),
        (EndpointState::Ejected, 1, 0)
    );
}

#[tokio::test]
async fn an_interceptor_that_refuses_makes_no_call() {
    let sites = ["a"].map(Site::new);
    let service = balance(builder(strict()), &sites);
    let refuse = |_: tonic::Request<()>| Err(Status::aborted("no"));
    let mut client = HealthClient::with_interceptor(service.clone(), refuse);
    let status = soon(client.check(HealthCheckRequest::default()))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Aborted);
    assert_eq!(sites[0].server.requests(), 0);
    assert_eq!(check(service.clone()).await.unwrap(), "a");
    assert_eq!(
        (stats(&service, "a").picks, stats(&service, "a").successes),
        (1, 1)
    );
}

/// A field as a program has it, with nothing said of judges.
struct Program {
    client: HealthClient<Balance<GrpcChannel<Channel>, RoundRobin>>,
}

#[tokio::test]
async fn by_default_a_server_that_answers_unavailable_is_ejected() {
    for (in_head, messages) in [(true, 0), (false, 0), (false, 1)] {
        let sites = ["a", "b"].map(Site::new);
        sites[1].act(Deed {
            code: Code::Unavailable,
            in_head,
            messages,
            ..WELL
        });
        let endpoints = discover::list(sites.iter().map(Site::entry));
        let balance = Balance::new(endpoints, RoundRobin::new());
        soon(balance.ready_when(2)).await.unwrap();
        let mut program = Program {
            client: HealthClient::new(balance.clone()),
        };
        let mut codes = HashMap::new();
        for _ in 0..20 {
            let result = soon(program.client.check(HealthCheckRequest::default())).await;
            let code = result.map_or_else(|status| status.code(), |_| Code::Ok);
            *codes.entry(code as i32).or_default() += 1;
        }
        let want = HashMap::from([(Code::Ok as i32, 15), (Code::Unavailable as i32, 5)]);
        assert_eq!(codes, want, "{in_head} {messages}");
        let stats = balance.stats();
        let b = stats.endpoint("b").unwrap();
        assert_eq!(
            (b.state, b.failures, b.picks),
            (EndpointState::Ejected, 5, 5),
            "{stats}"
        );
    }
}
