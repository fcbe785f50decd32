//! How long a call took: to its head, its first data, or the end of its body.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use counterpoise::{
    Builder, Health,
    call::{AtHead, Judge},
    http::{AtBodyEnd, AtFirstData, Status},
    policy::{Members, Needs, PickContext, PickResult, Picker, Policy},
};
use hyper::{Response, body::Body};
use tokio::time::advance;

use crate::{
    bed::SECOND,
    body_bed::{BodyBed, Echo, Reply, Script, poll, reply},
    support::Broken,
};

/// Notes the latencies that it sees.
#[derive(Debug, Clone, Default)]
struct Watch(Arc<Mutex<Duration>>);

impl Policy for Watch {
    type Picker = Self;

    fn build(&self, _members: &Members<'_>, _previous: Option<&Self>) -> Self {
        self.clone()
    }

    fn needs(&self) -> Needs {
        Needs::latency(30_000_000 * SECOND).penalty(100 * SECOND)
    }
}

impl Picker<Reply> for Watch {
    fn pick(&self, _request: &Reply, cx: &PickContext<'_>) -> PickResult {
        *self.0.lock().unwrap() = cx.latency(0);
        PickResult::Member(0)
    }
}

/// Has a head come after 4 s, and each poll 4 s later, so many times; returns the latency, in
/// seconds.
async fn latency<J, B>(judge: J, status: u16, script: &str, polls: usize) -> u64
where
    J: Judge<Echo, (), Response<Script>, Broken, Response = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error = Broken> + Unpin,
{
    let watch = Watch::default();
    let builder = Builder::new().health(Health::off()).judge(judge);
    let mut bed = BodyBed::with(&["a"], builder, watch.clone()).await;
    let (_, response) = reply(status, Script::new(script));
    let mut body = bed.call((4 * SECOND, response)).await.unwrap();
    for _ in 0..polls {
        advance(4 * SECOND).await;
        poll(&mut body);
    }
    drop(body);
    bed.open("=").await;
    let latency = watch.0.lock().unwrap().as_secs_f64();
    latency.round() as u64
}

#[tokio::test(start_paused = true)]
async fn latency_is_measured_to_where_the_call_ends() {
    for (script, status, head, first, end) in [
        ("d.d", 200, 4, 8, 20),
        (".dt", 200, 4, 12, 16),
        ("", 200, 4, 8, 8),
        ("=", 200, 4, 4, 4),
        ("=dd", 200, 4, 8, 12),
        // What a failure counts as at least: that of the head is told with the head.
        ("dd", 500, 100, 100, 100),
        ("d!", 200, 4, 8, 100),
    ] {
        let classify = Status::new();
        let at_head = latency(AtHead::new(classify.clone()), status, script, 9).await;
        let at_first = latency(AtFirstData::new(classify.clone()), status, script, 9).await;
        let at_end = latency(AtBodyEnd::new(classify), status, script, 9).await;
        assert_eq!(
            (at_head, at_first, at_end),
            (head, first, end),
            "{status} {script}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_body_counts_as_no_less_than_it_took() {
    for (script, polls, first, end) in [
        ("ddd", 2, 8, 12),
        ("...", 2, 12, 12),
        ("..d", 0, 4, 4),
        ("d..", 2, 8, 12),
    ] {
        let classify = Status::new();
        let at_first = latency(AtFirstData::new(classify.clone()), 200, script, polls).await;
        let at_end = latency(AtBodyEnd::new(classify), 200, script, polls).await;
        assert_eq!(
            (at_first, at_end),
            (first, end),
            "{script}, polled {polls} times"
        );
    }
}
