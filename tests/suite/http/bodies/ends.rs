//! Calls that end at the head, at the first data or at the end of their body: nobody is in
//! flight for longer or shorter than that, and the body is what it was.

use std::{
    marker::{PhantomData, PhantomPinned},
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll},
};

use bytes::Bytes;
use counterpoise::{
    Builder, Direct,
    call::{AtHead, Judge},
    health::ErrorsAreFailures,
    http::{AtBodyEnd, AtFirstData, GoodHead, Grpc, Tracked},
    policy::{
        LeastRequest,
        affinity::{Key, RingHash},
    },
};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{
    Response,
    body::{Body, Frame, SizeHint},
};
use tokio::time::advance;
use tower::Service;

use crate::{
    bed::SECOND,
    body_bed::{BodyBed, Echo, Reply, Script, endings, endpoint, poll, read, reply},
    support::{Broken, settle},
};

type Followed = Tracked<Script, GoodHead>;

async fn bed<J: Clone + Send + 'static>(judge: J) -> BodyBed<J> {
    BodyBed::new(&["a"], Builder::new().judge(judge)).await
}

/// Makes a call, polls its body so many times and drops it. Spells what the body yielded; how
/// many calls were in flight after the head, each poll and the drop; and how the call ended.
async fn trace<J, B>(judge: J, script: &str, polls: usize) -> (String, String)
where
    J: Judge<Echo, (), Response<Script>, Broken, Response = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error = Broken> + Unpin,
{
    let mut bed = bed(judge).await;
    let mut body = bed.open(script).await;
    let (mut frames, mut trace) = (String::new(), bed.in_flight("a").to_string());
    for _ in 0..polls {
        frames.push(poll(&mut body));
        trace += &bed.in_flight("a").to_string();
    }
    drop(body);
    let stats = bed.stats("a");
    assert_eq!(stats.picks, 1);
    (
        frames,
        format!("{trace}{}{}", stats.in_flight, endings(&stats)),
    )
}

/// What each rule makes of a script that is polled so often.
const TRACES: &[(&str, usize, &str, &str, &str)] = &[
    ("dd", 3, "00000S", "10000S", "11100S"),
    ("ddt", 4, "000000S", "100000S", "111000S"),
    ("t", 2, "0000S", "1000S", "1000S"),
    ("", 1, "000S", "100S", "100S"),
    // By content length: nobody polls for the end.
    ("=dd", 2, "0000S", "1000S", "1100S"),
    ("=dt", 2, "0000S", "1000S", "1100S"),
    ("=", 0, "00S", "00S", "00S"),
    ("=", 2, "0000S", "0000S", "0000S"),
    ("d!", 2, "0000S", "1000S", "1100F"),
    ("!", 1, "000S", "100F", "100F"),
    ("d!d", 4, "000000S", "100000S", "110000F"),
    ("dd", 0, "00S", "10D", "10D"),
    ("dd", 1, "000S", "100S", "110D"),
    ("=dd", 1, "000S", "100S", "110D"),
    ("dd", 2, "0000S", "1000S", "1110D"),
    (".d.d", 3, "00000S", "11000S", "11110D"),
    (".d..", 5, "0000000S", "1100000S", "1111100S"),
    // Polled again after the end.
    ("d", 4, "000000S", "100000S", "110000S"),
    ("p", 1, "000S", "110F", "110F"),
    ("dp", 2, "0000S", "1000S", "1110F"),
    (".p", 2, "0000S", "1110F", "1110F"),
];

#[tokio::test(start_paused = true)]
async fn a_call_is_in_flight_until_its_rule_says_so() {
    for &(script, polls, head, first, end) in TRACES {
        let mut bare = Script::new(script);
        let bare: String = (0..polls).map(|_| poll(&mut bare)).collect();
        let want = |trace: &str| (bare.clone(), trace.to_owned());
        let context = format!("{script:?}, polled {polls} times");
        assert_eq!(
            trace(AtHead::new(ErrorsAreFailures), script, polls).await,
            want(head),
            "{context}, at the head"
        );
        let rule = AtFirstData::new(ErrorsAreFailures);
        assert_eq!(
            trace(rule, script, polls).await,
            want(first),
            "{context}, at the first data"
        );
        let rule = AtBodyEnd::new(ErrorsAreFailures);
        assert_eq!(
            trace(rule, script, polls).await,
            want(end),
            "{context}, at the end"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_body_says_what_it_said_without_the_balancer() {
    let mut bed = bed(AtBodyEnd::new(ErrorsAreFailures)).await;
    for script in ["", "=", "dd", "=ddd", "ddt", "=dt", "d!", "=d!", ".d"] {
        let (mut bare, mut body) = (Script::new(script), bed.open::<Followed>(script).await);
        for _ in 0..6 {
            let hint = |body: &SizeHint| (body.lower(), body.upper());
            assert_eq!(hint(&body.size_hint()), hint(&bare.size_hint()), "{script}");
            assert_eq!(body.is_end_stream(), bare.is_end_stream(), "{script}");
            assert_eq!(poll(&mut body), poll(&mut bare), "{script}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_held_may_outlive_its_endpoint() {
    let mut bed = bed(AtBodyEnd::new(ErrorsAreFailures)).await;
    let [mut removed, forgotten] = [bed.open::<Followed>("dd").await, bed.open("dd").await];
    assert_eq!(poll(&mut removed), 'd');
    std::mem::forget(forgotten);
    bed.remove("a").await;
    bed.handle.insert("a", endpoint());
    settle().await;
    assert_eq!(
        (bed.in_flight("a"), bed.stats("a").picks),
        (0, 0),
        "another endpoint"
    );
    advance(3600 * SECOND).await;
    drop(removed);
    assert_eq!(
        (bed.in_flight("a"), endings(&bed.stats("a")).as_str()),
        (0, "")
    );
    read(bed.open::<Followed>("dd").await).await;
    assert_eq!(
        (bed.in_flight("a"), endings(&bed.stats("a")).as_str()),
        (0, "S")
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_belongs_to_its_endpoint_when_the_service_is_replaced() {
    let mut bed = bed(AtBodyEnd::new(ErrorsAreFailures)).await;
    let mut bodies = [bed.open::<Followed>("dd").await, bed.open("dd").await];
    assert_eq!(poll(&mut bodies[0]), 'd');
    bed.handle.insert("a", endpoint().weight(3));
    settle().await;
    assert_eq!((bed.in_flight("a"), bed.stats("a").weight), (2, 3));
    bed.handle.insert("a", endpoint().weight(0));
    settle().await;
    assert_eq!(bed.in_flight("a"), 2, "drained");
    let [half, whole] = bodies;
    drop(half);
    read(whole).await;
    assert_eq!(
        (bed.in_flight("a"), endings(&bed.stats("a")).as_str()),
        (0, "SD")
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_may_outlive_the_balancer() {
    for polls in 0..4 {
        let mut bed = bed(AtBodyEnd::new(ErrorsAreFailures)).await;
        let mut body = bed.open::<Followed>("dd").await;
        drop(bed);
        settle().await;
        let frames: String = (0..polls).map(|_| poll(&mut body)).collect();
        assert_eq!(frames, "dd$"[..polls]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_may_end_in_another_thread() {
    let mut bed = bed(AtBodyEnd::new(ErrorsAreFailures)).await;
    for want in ["S", "SS"] {
        let body = bed.open::<Followed>("dd").await;
        let reading = std::thread::spawn(move || futures::executor::block_on(read(body)));
        reading.join().unwrap();
        assert_eq!(
            (bed.in_flight("a"), endings(&bed.stats("a")).as_str()),
            (0, want)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_default_body_belongs_to_no_call() {
    let mut bed = bed(AtBodyEnd::new(ErrorsAreFailures)).await;
    let body = bed.open::<Followed>("dd").await;
    let mut other = Followed::default();
    assert_eq!([poll(&mut other), poll(&mut other)], ['$', '$']);
    drop(other);
    drop(std::mem::take(&mut Followed::default()));
    assert_eq!(
        (bed.in_flight("a"), endings(&bed.stats("a")).as_str()),
        (1, "")
    );
    // A body that is swapped out ends when it is dropped itself.
    let mut slot = body;
    let body = std::mem::take(&mut slot);
    drop(slot);
    assert_eq!(bed.in_flight("a"), 1);
    drop(body);
    assert_eq!(
        (bed.in_flight("a"), endings(&bed.stats("a")).as_str()),
        (0, "D")
    );
}

#[tokio::test(start_paused = true)]
async fn bodies_can_be_boxed_collected_and_mapped() {
    let mut bed = bed(AtBodyEnd::new(ErrorsAreFailures)).await;
    let body = bed
        .call::<Followed>(reply(200, Script::grpc("d.dt", "7")))
        .await
        .unwrap();
    let boxed: UnsyncBoxBody<Bytes, Broken> = body.boxed_unsync();
    assert_eq!(bed.in_flight("a"), 1);
    let collected = boxed.collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap()["grpc-status"], "7");
    assert_eq!(collected.to_bytes(), "datadata");
    assert_eq!(
        (bed.in_flight("a"), endings(&bed.stats("a")).as_str()),
        (0, "S")
    );
    let mut mapped = bed
        .open::<Followed>("dd")
        .await
        .map_frame(|frame| frame)
        .boxed();
    assert!(mapped.frame().await.unwrap().is_ok());
    drop(mapped);
    assert_eq!(
        (bed.in_flight("a"), endings(&bed.stats("a")).as_str()),
        (0, "SD")
    );
}

/// A body that must stay where it is, and with its thread.
#[derive(Default)]
struct Rooted(PhantomData<Rc<()>>, PhantomPinned);

impl Body for Rooted {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        Poll::Ready(None)
    }
}

/// Fails to compile if the type has that trait.
macro_rules! assert_not {
    ($type:ty: $trait:path) => {{
        trait Ambiguous<A> {
            fn some() {}
        }
        impl<T> Ambiguous<()> for T {}
        impl<T: $trait> Ambiguous<u8> for T {}
        <$type as Ambiguous<_>>::some();
    }};
}

#[tokio::test(start_paused = true)]
async fn what_the_inner_body_is_the_tracked_one_is_too() {
    const fn assert_all<T: Send + Sync + Unpin>() {}
    assert_all::<Followed>();
    assert_all::<Tracked<Full<Bytes>, Grpc>>();
    assert_not!(Tracked<Rooted, GoodHead>: Send);
    assert_not!(Tracked<Rooted, GoodHead>: Sync);
    assert_not!(Tracked<Rooted, GoodHead>: Unpin);
    let service =
        tower::service_fn(async |(): ()| Ok::<_, Broken>(Response::new(Rooted::default())));
    let endpoints =
        counterpoise::discover::list([("a", counterpoise::Endpoint::new(Direct(service)))]);
    let builder = Builder::new().judge(AtBodyEnd::new(ErrorsAreFailures));
    let mut balance = builder
        .balance(endpoints, counterpoise::policy::RoundRobin::new())
        .unwrap();
    settle().await;
    let body = pin!(balance.call(()).await.unwrap().into_body());
    assert!(body.collect().await.is_ok());
    assert_eq!(balance.stats().endpoint("a").unwrap().successes, 1);
}

#[tokio::test(start_paused = true)]
async fn who_is_busy_with_bodies_is_not_picked() {
    let builder = Builder::new()
        .judge(AtBodyEnd::new(ErrorsAreFailures))
        .seed(1);
    let mut bed = BodyBed::with(&["a", "b"], builder, LeastRequest::new().full_scan()).await;
    let mut bodies: Vec<Followed> = Vec::new();
    for calls in 1..=10 {
        bodies.push(bed.open("dd").await);
        let loads = ["a", "b"].map(|name| bed.in_flight(name));
        assert!(
            loads[0].abs_diff(loads[1]) <= 1,
            "{loads:?} after {calls} calls"
        );
    }
    drop(bodies);
    assert_eq!(["a", "b"].map(|name| bed.in_flight(name)), [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_bound_counts_calls_until_their_bodies_end() {
    let policy = RingHash::by(|_: &Reply| Some(Key::from(b"hot".as_slice()))).bounded(1.0);
    let mut bed = BodyBed::with(
        &["a", "b", "c"],
        Builder::new().judge(AtBodyEnd::new(ErrorsAreFailures)),
        policy,
    )
    .await;
    let loads = |bed: &BodyBed<_, _>| ["a", "b", "c"].map(|name| bed.in_flight(name));
    for round in 0..3 {
        let mut bodies: Vec<Followed> = Vec::new();
        for _ in 0..6 {
            bodies.push(bed.open("=d").await);
        }
        assert_eq!(loads(&bed), [2, 2, 2], "round {round}");
        // Ended but held: the room is free again.
        bodies
            .iter_mut()
            .for_each(|body| assert_eq!(poll(body), 'd'));
        assert_eq!(loads(&bed), [0, 0, 0]);
        let more = [bed.open::<Followed>("=").await, bed.open("dd").await];
        assert_eq!(loads(&bed).iter().sum::<u64>(), 1);
        drop((bodies, more));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_at_once_leave_nobody_in_flight() {
    let bed = bed(AtBodyEnd::new(ErrorsAreFailures)).await;
    bed.balance.ready_when(1).await.unwrap();
    let callers = (0..4).map(|caller| {
        let mut balance = bed.balance.clone();
        tokio::spawn(async move {
            let mut held: Vec<Followed> = Vec::new();
            for call in 0..500 {
                let text = ["dd", "=d", "d!", "ddt"][(caller + call) % 4];
                let reply = reply(200, Script::new(text));
                let mut body = balance.call(reply).await.unwrap().into_body();
                (0..call % 4).for_each(|_| assert_ne!(poll(&mut body), 'p'));
                held.push(body);
                if held.len() > 5 {
                    held.swap_remove(call % 5);
                }
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    while callers.iter().any(|caller| !caller.is_finished()) {
        assert!(bed.in_flight("a") <= 4 * 7, "nobody holds more");
        tokio::task::yield_now().await;
    }
    for caller in callers {
        caller.await.unwrap();
    }
    assert_eq!((bed.in_flight("a"), bed.stats("a").picks), (0, 2_000));
}
