//! What the classifiers make of heads and trailers, under each rule of when a call is over.

use std::panic::AssertUnwindSafe;

use bytes::Bytes;
use counterpoise::{
    Builder, Classify, Health, Outcome,
    call::{AtHead, Judge},
    http::{
        AtBodyEnd, AtFirstData, ByTowerHttp, ClassifyBody, ClassifyEnd, Grpc, Head, Status, Tracked,
    },
};
use futures::FutureExt;
use hyper::{HeaderMap, Response, body::Body};
use tower_http::classify::{GrpcErrorsAsFailures, ServerErrorsAsFailures};

use crate::{
    body_bed::{BodyBed, Echo, Reply, Script, endings, poll, reply},
    support::Broken,
};

/// A response with a status of HTTP, perhaps gRPC's in its head, and a body with gRPC's in its
/// trailers.
type Answer = (u16, Option<&'static str>, &'static str, &'static str);

fn said((status, in_head, script, in_trailers): Answer) -> Reply {
    let (after, response) = reply(status, Script::grpc(script, in_trailers));
    let mut response = response.unwrap();
    if let Some(code) = in_head {
        response
            .headers_mut()
            .insert("grpc-status", code.parse().unwrap());
    }
    (after, Ok(response))
}

/// Reads an answer to its end; spells how the call has ended.
async fn ending<J, B>(judge: J, answer: Answer) -> String
where
    J: Judge<Echo, (), Response<Script>, Broken, Response = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error = Broken> + Unpin,
{
    let builder = Builder::new().health(Health::off()).judge(judge);
    let mut bed = BodyBed::new(&["a"], builder).await;
    let mut body = bed.call(said(answer)).await.unwrap();
    while ['d', 't'].contains(&poll(&mut body)) {}
    drop(body);
    endings(&bed.stats("a"))
}

/// Asserts how an answer ends at the head, at the first data and at the end of the body.
async fn assert_endings<K>(classify: K, cases: &[(Answer, &str)])
where
    K: ClassifyBody<Script, Broken> + Clone + Send + 'static,
    K::End: Send,
{
    for &(answer, want) in cases {
        let endings = [
            ending(AtHead::new(classify.clone()), answer).await,
            ending(AtFirstData::new(classify.clone()), answer).await,
            ending(AtBodyEnd::new(classify.clone()), answer).await,
        ];
        assert_eq!(endings.concat(), want, "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn grpc_looks_wherever_the_rule_lets_it() {
    let cases = [
        ((200, None, "dt", "0"), "SSS"),
        ((200, None, "dt", "13"), "SSF"),
        ((200, None, "ddt", "5"), "SSS"),
        // It ends before the first data, so as by the end of the body.
        ((200, None, "t", "13"), "SFF"),
        ((200, None, "t", "8"), "SOO"),
        ((200, None, "t", "1"), "SNN"),
        ((200, None, "t", "nonsense"), "SFF"),
        // No status at all.
        ((200, None, "d", ""), "SSN"),
        ((200, None, "", ""), "SNN"),
        ((200, None, "=", ""), "SNN"),
        ((200, None, "d!", ""), "SSF"),
        ((200, Some("14"), "=", ""), "FFF"),
        ((200, Some("5"), "=", ""), "SSS"),
        ((200, Some("8"), "", ""), "OOO"),
        ((200, Some("1"), "", ""), "NNN"),
        // What the head says is known, whatever follows.
        ((200, Some("0"), "dt", "13"), "SSS"),
        ((200, Some("0"), "!", ""), "SSS"),
        // No gRPC at all.
        ((503, None, "dt", "0"), "FFF"),
        ((429, None, "d", ""), "OOO"),
        ((403, None, "d", ""), "SSS"),
    ];
    assert_endings(Grpc::new(), &cases).await;
}

#[tokio::test(start_paused = true)]
async fn statuses_are_judged_at_the_head_and_bodies_have_to_come_whole() {
    let cases = [
        ((200, None, "dt", "13"), "SSS"),
        ((404, None, "d", ""), "SSS"),
        ((404, None, "d!", ""), "SSF"),
        ((500, None, "d!", ""), "FFF"),
        ((429, None, "!", ""), "OOO"),
    ];
    assert_endings(Status::new(), &cases).await;
    let cases = [
        ((404, None, "d!", ""), "NNN"),
        ((204, None, "=", ""), "SSS"),
    ];
    assert_endings(Status::new().with(404..=404, Outcome::Neutral), &cases).await;
}

#[tokio::test(start_paused = true)]
async fn classifiers_of_tower_http_are_asked_at_the_end_too() {
    let cases = [
        ((200, None, "dt", "0"), "SSS"),
        ((200, None, "dt", "13"), "SSF"),
        ((200, None, "t", "5"), "SFF"),
        ((200, Some("13"), "=", ""), "FFF"),
        ((200, None, "d!", ""), "SSF"),
    ];
    assert_endings(ByTowerHttp::new(GrpcErrorsAsFailures::new()), &cases).await;
    let cases = [
        ((200, None, "dt", "13"), "SSS"),
        ((500, None, "d", ""), "FFF"),
        ((429, None, "d", ""), "SSS"),
        ((200, None, "d!", ""), "SSF"),
    ];
    assert_endings(ByTowerHttp::new(ServerErrorsAsFailures::new()), &cases).await;
}

/// A classifier that panics, at the head or at the end.
#[derive(Debug, Clone, Copy)]
struct Touchy {
    at_head: bool,
}

impl Classify<Response<Script>, Broken> for Touchy {
    fn classify(&self, _result: Result<&Response<Script>, &Broken>) -> Outcome {
        assert!(!self.at_head, "the classifier panics");
        Outcome::Success
    }
}

impl ClassifyBody<Script, Broken> for Touchy {
    type End = Self;

    fn classify_head(&self, _head: &Response<Script>) -> Head<Self> {
        assert!(!self.at_head, "the classifier panics");
        Head::Open(*self)
    }
}

impl ClassifyEnd for Touchy {
    fn classify_end(self, _trailers: Option<&HeaderMap>) -> Outcome {
        panic!("the classifier panics");
    }
}

#[tokio::test(start_paused = true)]
async fn a_classifier_that_panics_fails_the_call_and_reaches_the_caller() {
    let classify = Touchy { at_head: true };
    let mut bed = BodyBed::new(&["a"], Builder::new().classify(classify)).await;
    let call = bed.open::<Script>("d");
    assert!(AssertUnwindSafe(call).catch_unwind().await.is_err());
    assert_eq!(
        (bed.in_flight("a"), endings(&bed.stats("a")).as_str()),
        (0, "F")
    );

    let builder = Builder::new().judge(AtBodyEnd::new(classify));
    let mut bed = BodyBed::new(&["a"], builder).await;
    let call = bed.open::<Tracked<Script, Touchy>>("d");
    assert!(AssertUnwindSafe(call).catch_unwind().await.is_err());
    assert_eq!(
        (bed.in_flight("a"), endings(&bed.stats("a")).as_str()),
        (0, "F")
    );

    let builder = Builder::new().judge(AtBodyEnd::new(Touchy { at_head: false }));
    let mut bed = BodyBed::new(&["a"], builder).await;
    for (calls, (script, polls)) in [("d", 2), ("dt", 2), ("=d", 1), ("", 3)].iter().enumerate() {
        let mut body: Tracked<Script, Touchy> = bed.open(script).await;
        let frames: String = (0..*polls).map(|_| poll(&mut body)).collect();
        assert!(frames.contains('p'), "{script}: {frames}");
        drop(body);
        let stats = bed.stats("a");
        assert_eq!(
            (stats.in_flight, stats.failures),
            (0, calls as u64 + 1),
            "{script}"
        );
    }
    // A body that has ended with its head.
    let call = bed.open::<Tracked<Script, Touchy>>("=");
    assert!(AssertUnwindSafe(call).catch_unwind().await.is_err());
    assert_eq!(
        (bed.in_flight("a"), endings(&bed.stats("a")).as_str()),
        (0, "FFFFF")
    );
}
