//! Real HTTP servers whose bodies are slow, hang or break off, and a client of hyper over a
//! balancer that follows them.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use counterpoise::{
    BoxError, Health,
    observe::EndpointState,
    policy::{LeastRequest, PeakEwma, Picker, Policy, RoundRobin},
};
use futures::{FutureExt, StreamExt, future::join_all, stream};
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response,
    body::{Body, Frame},
};
use hyper_util::rt::TokioExecutor;
use tokio::sync::watch;
use tower::{Layer, ServiceExt};

use crate::{
    http::statuses::{
        Ask, Client, LONG, NAMES, ask, client, get, layer, shares, stack, stats, strict,
    },
    servers::{Server, soon},
};

type Reply = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// How much others have done: a slow server answers when they have done enough.
type Clock = watch::Sender<usize>;

const CALLERS: usize = 8;
const CALLS: usize = 2_400;

/// A server that ends an answer when others have given so many, or when nearly all callers wait
/// for it: somebody must go on.
fn slow(name: &'static str, clock: &Clock, others: usize) -> Server {
    let (clock, held) = (clock.clone(), Arc::new(AtomicUsize::new(0)));
    Server::answering(name, move || -> Reply {
        let (mut seen, held) = (clock.subscribe(), Arc::clone(&held));
        let due = seen.borrow().saturating_add(others);
        if held.fetch_add(1, Ordering::SeqCst) + 2 >= CALLERS {
            clock.send_modify(|done| *done = done.saturating_add(others));
        }
        let rest = async move {
            let result = seen.wait_for(|&done| done >= due).await.map(drop);
            held.fetch_sub(1, Ordering::SeqCst);
            result?;
            Ok(Frame::data(Bytes::from(name)))
        };
        let body = StreamBody::new(rest.into_stream().boxed());
        Response::new(BodyExt::boxed_unsync(body))
    })
}

fn fast(name: &'static str, clock: &Clock) -> Server {
    let clock = clock.clone();
    Server::answering(name, move || {
        clock.send_modify(|done| *done = done.saturating_add(1));
        Response::new(Full::<Bytes>::from(name))
    })
}

/// Has callers share three servers, of which the last sends its head at once, and the rest when the
/// others have given many answers. Returns its share of the calls.
async fn share_of_slow<P>(policy: P) -> usize
where
    P: Policy<Picker: Picker<Ask>> + 'static,
{
    let clock = Clock::new(0);
    let servers = [fast("a", &clock), fast("b", &clock), slow("c", &clock, 300)];
    let layer = layer(Health::new(), policy, &servers).await;
    let stack = stack(&layer, LONG);
    let left = AtomicUsize::new(CALLS);
    let take = || {
        left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        })
    };
    let callers = (0..CALLERS).map(|_| async {
        while take().is_ok() {
            get(stack.clone()).await;
        }
        // Nobody is left to wait for.
        clock.send_replace(usize::MAX);
    });
    join_all(callers).await;
    assert_eq!(NAMES.map(|name| stats(&layer, name).in_flight), [0, 0, 0]);
    assert_eq!(
        NAMES
            .map(|name| stats(&layer, name).successes)
            .iter()
            .sum::<u64>(),
        CALLS as u64
    );
    servers[2].requests()
}

#[tokio::test]
async fn a_server_with_slow_bodies_gets_little() {
    let share = share_of_slow(LeastRequest::new()).await;
    assert!(share < CALLS / 10, "least request: {share} of {CALLS}");
    let share = share_of_slow(PeakEwma::new()).await;
    assert!(share < CALLS / 10, "peak EWMA: {share} of {CALLS}");
}

/// A server that sends the first of two parts, and the rest when it is told to.
fn halting(rest: Result<Option<&'static str>, &'static str>) -> (Server, watch::Sender<bool>) {
    let (go_on, wait) = watch::channel(false);
    let server = Server::answering("a", move || -> Reply {
        let mut wait = wait.clone();
        let first = stream::iter([Ok(Frame::data(Bytes::from_static(b"first")))]);
        let rest = async move {
            if wait.wait_for(|&told| told).await.is_err() {
                std::future::pending::<()>().await;
            }
            let part = |text| Frame::data(Bytes::from_static(str::as_bytes(text)));
            rest.map(|rest| rest.map(part))
                .map_err(BoxError::from)
                .transpose()
        };
        let rest = stream::once(rest).filter_map(std::future::ready).boxed();
        Response::new(BodyExt::boxed_unsync(StreamBody::new(first.chain(rest))))
    });
    (server, go_on)
}

/// The head was good, and nobody waits for the body: so its caller's doing, by the documentation.
#[tokio::test]
async fn a_server_that_hangs_in_its_body_holds_the_call_until_it_is_dropped() {
    let (server, _never) = halting(Ok(None));
    let servers = [server];
    let layer = layer(strict(), RoundRobin::new(), &servers).await;
    let response = soon(stack(&layer, LONG).oneshot(ask())).await.unwrap();
    let mut body = response.into_body();
    assert_eq!(
        soon(body.frame())
            .await
            .unwrap()
            .unwrap()
            .into_data()
            .unwrap(),
        "first"
    );
    assert!(body.frame().now_or_never().is_none());
    assert_eq!(stats(&layer, "a").in_flight, 1);
    drop(body);
    let a = stats(&layer, "a");
    assert_eq!((a.in_flight, a.drops, a.consecutive_failures), (0, 1, 0));
}

#[tokio::test]
async fn a_server_that_breaks_off_its_body_is_ejected() {
    let (server, go_on) = halting(Err("broken"));
    let servers = [server, Server::http("b")];
    let layer = layer(strict(), RoundRobin::new(), &servers).await;
    let response = soon(stack(&layer, LONG).oneshot(ask())).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), stats(&layer, "a").in_flight),
        (200, 1)
    );
    go_on.send(true).unwrap();
    soon(response.into_body().collect()).await.unwrap_err();
    let a = stats(&layer, "a");
    assert_eq!(
        (a.state, a.failures, a.in_flight),
        (EndpointState::Ejected, 1, 0)
    );
    assert_eq!(shares(&stack(&layer, LONG), 9).await["b"], 9);
}

#[tokio::test]
async fn a_body_without_a_length_ends_with_its_stream() {
    let (server, go_on) = halting(Ok(Some("second")));
    let servers = [server];
    let layer = layer(strict(), RoundRobin::new(), &servers).await;
    let mut body = soon(stack(&layer, LONG).oneshot(ask()))
        .await
        .unwrap()
        .into_body();
    assert!(soon(body.frame()).await.unwrap().unwrap().is_data());
    go_on.send(true).unwrap();
    assert_eq!(stats(&layer, "a").in_flight, 1);
    assert_eq!(soon(body.collect()).await.unwrap().to_bytes(), "second");
    assert_eq!(
        (stats(&layer, "a").in_flight, stats(&layer, "a").successes),
        (0, 1)
    );
}

#[tokio::test]
async fn a_body_of_known_length_ends_with_its_last_data() {
    let servers = ["a"].map(Server::http);
    let layer = layer(strict(), RoundRobin::new(), &servers).await;
    let mut body = soon(stack(&layer, LONG).oneshot(ask()))
        .await
        .unwrap()
        .into_body();
    assert_eq!(
        (body.size_hint().exact(), stats(&layer, "a").in_flight),
        (Some(1), 1)
    );
    assert!(soon(body.frame()).await.unwrap().unwrap().is_data());
    assert!(body.is_end_stream());
    assert_eq!(
        (stats(&layer, "a").in_flight, stats(&layer, "a").successes),
        (0, 1)
    );
    // What has no body ends with its head.
    let request = Request::head("http://service.test/")
        .body(Empty::new())
        .unwrap();
    let response = soon(layer.layer(client()).oneshot(request)).await.unwrap();
    assert_eq!(
        (stats(&layer, "a").in_flight, stats(&layer, "a").successes),
        (0, 2)
    );
    drop(response);
}

/// The end of an HTTP/2 stream comes after the last data. Whoever asks for it does not poll for
/// it.
#[tokio::test]
async fn a_stream_of_http2_ends_with_whatever_tells_its_end() {
    let (server, go_on) = halting(Ok(None));
    let servers = [server];
    let layer = layer(strict(), RoundRobin::new(), &servers).await;
    let mut builder = hyper_util::client::legacy::Client::builder(TokioExecutor::new());
    let client: Client = builder.http2_only(true).build_http();
    let mut body = soon(layer.layer(client).oneshot(ask()))
        .await
        .unwrap()
        .into_body();
    assert!(soon(body.frame()).await.unwrap().unwrap().is_data());
    assert_eq!(
        (body.is_end_stream(), stats(&layer, "a").in_flight),
        (false, 1)
    );
    go_on.send(true).unwrap();
    while !body.is_end_stream() {
        soon(body.frame()).await;
    }
    let a = stats(&layer, "a");
    assert_eq!((a.in_flight, a.successes, a.drops), (0, 1, 0));
}
