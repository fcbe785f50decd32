//! A test bed for bodies: endpoints that answer with the very response they are asked for, and
//! bodies that follow a script.

use std::{
    collections::VecDeque,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use counterpoise::{
    Balance, Builder, Direct, Endpoint, Error,
    call::Judge,
    discover::{self, Handle},
    observe::{EndpointState, EndpointStats},
    policy::{Picker, Policy, RoundRobin},
};
use http_body_util::BodyExt;
use hyper::{
    HeaderMap, Response,
    body::{Body, Frame, SizeHint},
};
use tower::{Service, util::ServiceFn};

use crate::support::{Broken, settle};

/// What becomes of a call: a response after a while, or an error.
pub(crate) type Reply = (Duration, Result<Response<Script>, Broken>);
type Wait = Pin<Box<dyn Future<Output = Result<Response<Script>, Broken>> + Send>>;
pub(crate) type Echo = Direct<ServiceFn<fn(Reply) -> Wait>>;

/// A body that follows a script, spelt in letters.
///
/// `d`: data. `t`: trailers. `!`: breaks off. `p`: panics. `.`: pending, once. At its end it
/// yields `None`, however often it is polled. With a `=` before it, it knows its end without being
/// polled: as one with a content length does.
#[derive(Debug, Default)]
pub(crate) struct Script {
    steps: VecDeque<char>,
    knows_its_end: bool,
    trailers: HeaderMap,
}

impl Script {
    pub(crate) fn new(text: &str) -> Self {
        let steps = text.trim_start_matches('=').chars().collect();
        Self {
            steps,
            knows_its_end: text.starts_with('='),
            ..Self::default()
        }
    }

    /// Has gRPC's status in its trailers.
    pub(crate) fn grpc(text: &str, status: &str) -> Self {
        let trailers =
            HeaderMap::from_iter([("grpc-status".parse().unwrap(), status.parse().unwrap())]);
        Self {
            trailers,
            ..Self::new(text)
        }
    }
}

impl Body for Script {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let frame = match self.steps.pop_front() {
            Some('d') => Some(Ok(Frame::data(Bytes::from_static(b"data")))),
            Some('t') => Some(Ok(Frame::trailers(self.trailers.clone()))),
            Some('!') => Some(Err(Broken("the body"))),
            Some('.') => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Some(_) => panic!("the body panics"),
            None => None,
        };
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.knows_its_end && self.steps.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        match self.knows_its_end {
            true => SizeHint::with_exact(4 * self.steps.len() as u64),
            false => SizeHint::default(),
        }
    }
}

fn echo((after, reply): Reply) -> Wait {
    Box::pin(async move {
        tokio::time::sleep(after).await;
        reply
    })
}

/// A response with this status at once.
pub(crate) fn reply(status: u16, body: Script) -> Reply {
    let response = Response::builder().status(status).body(body);
    (Duration::ZERO, Ok(response.unwrap()))
}

/// Endpoints behind a balancer, which start at the first of them.
pub(crate) struct BodyBed<J, P: Policy = RoundRobin> {
    pub(crate) handle: Handle<&'static str, Echo>,
    pub(crate) balance: Balance<Echo, P, (), J>,
}

impl<J: Clone> BodyBed<J> {
    pub(crate) async fn new(names: &[&'static str], builder: Builder<J>) -> Self
    where
        J: Send + 'static,
    {
        Self::with(names, builder, RoundRobin::new()).await
    }
}

impl<J: Clone, P: Policy> BodyBed<J, P> {
    pub(crate) async fn with(names: &[&'static str], builder: Builder<J>, policy: P) -> Self {
        let (handle, changes) = discover::channel();
        for &name in names {
            handle.insert(name, endpoint());
        }
        let balance = builder.starting_at(0).balance(changes, policy).unwrap();
        settle().await;
        Self { handle, balance }
    }

    /// Makes a call; its body is the caller's.
    pub(crate) async fn call<B>(&mut self, reply: Reply) -> Result<B, Error>
    where
        J: Judge<Echo, (), Response<Script>, Broken, Response = Response<B>>,
        P: Policy<Picker: Picker<Reply>>,
    {
        self.balance.call(reply).await.map(Response::into_body)
    }

    /// Makes a call that is answered with 200.
    pub(crate) async fn open<B>(&mut self, text: &str) -> B
    where
        J: Judge<Echo, (), Response<Script>, Broken, Response = Response<B>>,
        P: Policy<Picker: Picker<Reply>>,
    {
        self.call(reply(200, Script::new(text))).await.unwrap()
    }

    /// Makes a call that fails without a response.
    pub(crate) async fn fail<B>(&mut self)
    where
        J: Judge<Echo, (), Response<Script>, Broken, Response = Response<B>>,
        P: Policy<Picker: Picker<Reply>>,
    {
        let reply = (Duration::ZERO, Err(Broken("the endpoint")));
        assert!(self.call(reply).await.is_err());
    }

    pub(crate) async fn remove(&self, name: &'static str) {
        self.handle.remove(&name);
        settle().await;
    }

    pub(crate) fn stats(&self, name: &str) -> EndpointStats {
        let stats = self.balance.stats();
        stats.endpoints.iter().for_each(assert_sums);
        stats.endpoint(name).unwrap().clone()
    }

    pub(crate) fn state(&self, name: &str) -> EndpointState {
        self.stats(name).state
    }

    pub(crate) fn in_flight(&self, name: &str) -> u64 {
        self.stats(name).in_flight
    }

    /// Returns how many failures in a row count.
    pub(crate) fn failures(&self, name: &str) -> u32 {
        self.stats(name).consecutive_failures
    }
}

pub(crate) fn endpoint() -> Endpoint<Echo> {
    Endpoint::new(Direct(tower::service_fn(echo as fn(Reply) -> Wait)))
}

/// Every call that was sent runs still or has ended in one way.
pub(crate) fn assert_sums(stats: &EndpointStats) {
    let EndpointStats {
        successes,
        failures,
        overloads,
        neutrals,
        drops,
        ..
    } = stats;
    let ended = successes + failures + overloads + neutrals + drops;
    assert_eq!(stats.picks, ended + stats.in_flight, "{stats:?}");
}

/// Spells how calls have ended: `S`uccess, `F`ailure, `O`verload, `N`eutral, `D`rop.
pub(crate) fn endings(stats: &EndpointStats) -> String {
    let EndpointStats {
        successes,
        failures,
        overloads,
        neutrals,
        drops,
        ..
    } = *stats;
    let counts = [successes, failures, overloads, neutrals, drops];
    let spell = |(letter, times): (&str, u64)| letter.repeat(times as usize);
    ["S", "F", "O", "N", "D"]
        .into_iter()
        .zip(counts)
        .map(spell)
        .collect()
}

/// Polls a body once; spells what came, as in its script, and `$` for its end.
pub(crate) fn poll<B>(body: &mut B) -> char
where
    B: Body<Data = Bytes, Error = Broken> + Unpin,
{
    let mut cx = Context::from_waker(Waker::noop());
    let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(body).poll_frame(&mut cx)));
    match polled {
        Err(_) => 'p',
        Ok(Poll::Pending) => '.',
        Ok(Poll::Ready(None)) => '$',
        Ok(Poll::Ready(Some(Err(_)))) => '!',
        Ok(Poll::Ready(Some(Ok(frame)))) if frame.is_data() => 'd',
        Ok(Poll::Ready(Some(Ok(_)))) => 't',
    }
}

/// Reads a body to its end.
pub(crate) async fn read<B>(body: B)
where
    B: Body<Data = Bytes, Error = Broken>,
{
    let body = pin!(body);
    let _whole = body.collect().await;
}
