//! Attacks on judges: what each target implies, what the builder overrides, and bodies that are
//! polled beyond their end.

use std::{
    future::{Future, Ready, ready},
    panic::AssertUnwindSafe,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use counterpoise::{
    Builder, Direct, Endpoint, Health, Outcome, discover,
    http::{AtBodyEnd, AtFirstData, Grpc, GrpcChannel, Origin, Status},
    observe::EndpointStats,
    policy::{Members, Needs, Policy, RoundRobin},
};
use hyper::{Request, Response};
use tower::{Layer, Service, service_fn};

use crate::{
    body_bed::{BodyBed, Script, endings, poll, read, reply},
    support::{Broken, Rotation, settle},
};

type Answered = Ready<Result<Response<Script>, Broken>>;

/// A rotation that bounds the load to even shares.
struct Even;

impl Policy for Even {
    type Picker = Rotation;

    fn build(&self, _members: &Members<'_>, _previous: Option<&Rotation>) -> Rotation {
        Rotation
    }

    fn needs(&self) -> Needs {
        Needs::none().bound(1.0)
    }
}

fn off() -> Builder {
    Builder::new().health(Health::off())
}

/// Every way to read a body, or not to, ends its call once and gives its permit back.
async fn every_end<J, B>(builder: impl Fn() -> Builder<J>)
where
    J: counterpoise::call::Judge<
            crate::body_bed::Echo,
            (),
            Response<Script>,
            Broken,
            Response = Response<B>,
        > + Send
        + 'static,
    B: hyper::body::Body<Data = Bytes, Error = Broken> + Unpin,
{
    let letters = ["", "d", "t", "!", "p", "."];
    let mut scripts = vec![String::new()];
    for known in ["", "="] {
        for a in letters {
            for b in letters {
                for c in letters {
                    scripts.push(format!("{known}{a}{b}{c}"));
                }
            }
        }
    }
    let mut bed = BodyBed::with(&["a"], builder(), Even).await;
    let mut former = endings(&bed.stats("a"));
    for script in scripts {
        for status in [200, 503, 429] {
            for polls in 0..6 {
                let what = format!("{script} of {status}, {polls} polls");
                let body = bed.call(reply(status, Script::grpc(&script, "0"))).await;
                let mut body = body.unwrap();
                for _ in 0..polls {
                    // Once it has panicked or ended it is polled again.
                    let _frame = poll(&mut body);
                }
                drop(body);
                let stats = bed.stats("a");
                let present = endings(&stats);
                assert_eq!(stats.in_flight, 0, "{what}");
                assert_eq!(present.len(), former.len() + 1, "{what}: one end");
                former = present;
            }
        }
    }
    // All permits are back.
    bed.handle.insert("b", crate::body_bed::endpoint());
    settle().await;
    let mut bodies = Vec::new();
    for _ in 0..4 {
        bodies.push(bed.open(".......").await);
    }
    // Only a body that belongs to the call holds it.
    let held: Vec<_> = ["a", "b"].map(|name| bed.in_flight(name)).into();
    assert_eq!(held, [2, 2]);
    drop(bodies);
}

#[tokio::test(start_paused = true)]
async fn bodies_that_are_polled_beyond_a_panic_end_once() {
    every_end(|| off().judge(AtBodyEnd::new(Status::new()))).await;
    every_end(|| off().judge(AtFirstData::new(Status::new()))).await;
    every_end(|| off().judge(AtBodyEnd::new(Grpc::new()))).await;
}

/// A head or trailers with this gRPC status.
fn grpc(in_head: bool, status: &'static str) -> Response<Script> {
    if in_head {
        let head = Response::builder().header("grpc-status", status);
        head.body(Script::new("=")).unwrap()
    } else {
        Response::new(Script::grpc("dt", status))
    }
}

fn only(stats: &counterpoise::Stats) -> EndpointStats {
    stats.endpoint("a").unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn a_grpc_channel_implies_grpc_statuses_in_head_and_trailers() {
    for (status, want) in [
        ("0", "S"),
        ("14", "F"),
        ("8", "O"),
        ("1", "N"),
        ("5", "S"),
        ("2", "F"),
    ] {
        for in_head in [true, false] {
            let serve = service_fn(move |(): ()| ready(Ok::<_, Broken>(grpc(in_head, status))));
            let list = discover::list([("a", Endpoint::new(GrpcChannel(serve)))]);
            let mut balance = off().balance(list, RoundRobin::new()).unwrap();
            settle().await;
            let response = balance.call(()).await.unwrap();
            let early = endings(&only(&balance.stats()));
            assert_eq!(early, if in_head { want } else { "" }, "{status}");
            read(response.into_body()).await;
            let stats = only(&balance.stats());
            assert_eq!((endings(&stats).as_str(), stats.in_flight), (want, 0));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_builder_overrides_what_a_grpc_channel_implies() {
    let serve = |in_head| {
        let serve = service_fn(move |(): ()| ready(Ok::<_, Broken>(grpc(in_head, "14"))));
        discover::list([("a", Endpoint::new(GrpcChannel(serve)))])
    };
    // At the head alone: the trailers are not read.
    for (in_head, want) in [(true, "F"), (false, "S")] {
        let builder = off().classify(Grpc::new());
        let mut balance = builder.balance(serve(in_head), RoundRobin::new()).unwrap();
        settle().await;
        let response: Response<Script> = balance.call(()).await.unwrap();
        assert_eq!(endings(&only(&balance.stats())), want);
        read(response.into_body()).await;
        assert_eq!(endings(&only(&balance.stats())), want);
    }
    let lenient = Grpc::new().with(14, Outcome::Neutral);
    let builder = off().judge(AtBodyEnd::new(lenient));
    let mut balance = builder.balance(serve(false), RoundRobin::new()).unwrap();
    settle().await;
    read(balance.call(()).await.unwrap().into_body()).await;
    assert_eq!(endings(&only(&balance.stats())), "N");
}

fn answer(request: Request<u16>) -> Answered {
    match *request.body() {
        0 => ready(Err(Broken("the endpoint"))),
        status => ready(Ok(Response::builder()
            .status(status)
            .body(Script::new("d!"))
            .unwrap())),
    }
}

#[tokio::test(start_paused = true)]
async fn an_origin_implies_http_statuses_at_the_head() {
    let origin = || Origin::try_from("http://127.0.0.1:80").unwrap();
    let list = || discover::list([("a", Endpoint::new(origin()))]);
    let request = |status| Request::builder().uri("/").body(status).unwrap();
    let client = service_fn(answer as fn(Request<u16>) -> Answered);
    for (status, want, overridden) in [
        (200, "S", "N"),
        (404, "S", "N"),
        (500, "F", "N"),
        (503, "F", "N"),
        (429, "O", "N"),
        (0, "F", "F"),
    ] {
        let layer = off().layer(list(), RoundRobin::new()).unwrap();
        let mut balance = layer.layer(client);
        settle().await;
        let response = balance.call(request(status)).await;
        let stats = only(&balance.stats());
        assert_eq!((endings(&stats).as_str(), stats.in_flight), (want, 0));
        drop(response);

        let builder =
            off().classify_fn(|result: Result<&Response<Script>, &Broken>| match result {
                Ok(_) => Outcome::Neutral,
                Err(_) => Outcome::Failure,
            });
        let mut balance = builder
            .layer(list(), RoundRobin::new())
            .unwrap()
            .layer(client);
        settle().await;
        drop(balance.call(request(status)).await);
        assert_eq!(endings(&only(&balance.stats())), overridden, "{status}");

        // To the end of the body, which breaks off.
        let builder = off().judge(AtBodyEnd::new(Status::new()));
        let mut balance = builder
            .layer(list(), RoundRobin::new())
            .unwrap()
            .layer(client);
        settle().await;
        if let Ok(response) = balance.call(request(status)).await {
            assert_eq!(only(&balance.stats()).in_flight, 1);
            read(response.into_body()).await;
        }
        let want = if want == "S" { "F" } else { want };
        assert_eq!(endings(&only(&balance.stats())), want, "{status}");
    }
}

/// The first poll panics; the second one yields this status.
struct PanicsOnce(u16, bool);

impl Future for PanicsOnce {
    type Output = Result<Response<Script>, Broken>;

    fn poll(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(std::mem::replace(&mut self.1, true), "the first poll");
        Poll::Ready(reply(self.0, Script::new("dd")).1)
    }
}

/// The panic has ended the call as a failure; a response of a later poll changes nothing.
#[tokio::test(start_paused = true)]
async fn a_response_after_a_panic_does_not_end_the_call_again() {
    for status in [200, 404, 429, 503] {
        let serve = service_fn(move |(): ()| PanicsOnce(status, false));
        let list = discover::list([("a", Endpoint::new(Direct(serve)))]);
        let builder = off().judge(AtBodyEnd::new(Status::new()));
        let mut balance = builder.balance(list, RoundRobin::new()).unwrap();
        settle().await;
        let mut call = tokio_test::task::spawn(balance.call(()));
        let first = std::panic::catch_unwind(AssertUnwindSafe(|| call.poll().is_ready()));
        assert!(first.is_err());
        let Poll::Ready(Ok(response)) = call.poll() else {
            panic!("the second poll yields a response");
        };
        drop(call);
        assert_eq!(endings(&only(&balance.stats())), "F", "{status}, open body");
        drop(response);
        let stats = only(&balance.stats());
        assert_eq!((&*endings(&stats), stats.in_flight), ("F", 0), "{status}");
    }
}
