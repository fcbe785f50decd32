//! Policies that misbehave.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use counterpoise::{
    Balance, Builder, Health, discover,
    error::ErrorKind,
    policy::{BoxPolicy, Members, PickContext, PickResult, Picker, Policy},
};
use tower::{Service, ServiceExt};

use crate::{
    probes::{answers, call},
    support::{Act, Site, Sites, settle},
};

// ===== policies that misbehave =====

/// A policy that does what the test says, and counts how often it is asked.
#[derive(Clone)]
struct Says {
    choose: fn(&PickContext<'_>, usize) -> PickResult,
    asked: Arc<AtomicUsize>,
}

impl Says {
    fn new(choose: fn(&PickContext<'_>, usize) -> PickResult) -> Self {
        Self {
            choose,
            asked: Arc::default(),
        }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Policy for Says {
    type Picker = Self;

    fn build(&self, _members: &Members<'_>, _previous: Option<&Self>) -> Self {
        self.clone()
    }
}

impl<Req: ?Sized> Picker<Req> for Says {
    fn pick(&self, _request: &Req, cx: &PickContext<'_>) -> PickResult {
        (self.choose)(cx, self.asked.fetch_add(1, Ordering::SeqCst))
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_panics_in_a_pick_reaches_the_caller_and_loses_nothing() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let site = Site::new("a");
        let list = discover::list([("a", site.endpoint())]);
        let mut balance = Builder::new().balance(list, policy).unwrap();
        settle().await;
        let ready = balance.ready().await.unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| drop(ready.call(())))).is_err());
        let stats = balance.stats();
        assert_eq!((stats.waiting, stats.endpoint("a").unwrap().picks), (0, 0));
        assert_eq!(answers(&mut balance, 3).await, ["a"; 3]);
        assert_eq!(site.instances(), 2);
    }
    let once = || {
        Says::new(|_, nth| {
            assert_ne!(nth, 0, "the first pick panics");
            PickResult::Any
        })
    };
    case(once()).await;
    case(BoxPolicy::new(once())).await;
}

#[tokio::test(start_paused = true)]
async fn an_index_out_of_range_is_an_error_of_the_call() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let sites = Sites::new(&["a", "b"]);
        let list = sites.list(&["a", "b"]);
        let mut balance = Builder::new().balance(list, policy).unwrap();
        settle().await;
        let error = call(&mut balance).await.unwrap_err();
        assert_eq!((error.kind(), error.endpoint()), (ErrorKind::Policy, None));
        assert!(error.to_string().contains("member 2 of 2"), "{error}");
        assert!(error.is_unsent() && !error.is_unavailable());
        assert_eq!((sites["a"].calls(), sites["b"].calls()), (0, 0));
        assert_eq!(balance.stats().waiting, 0);
    }
    case(Says::new(|_, _| PickResult::Member(2))).await;
    case(BoxPolicy::new(Says::new(|_, _| PickResult::Member(2)))).await;
    let list = Sites::new(&["a"]).list(&["a"]);
    let mut balance = Balance::new(list, Says::new(|_, _| PickResult::Member(usize::MAX)));
    settle().await;
    assert_eq!(
        call(&mut balance).await.unwrap_err().kind(),
        ErrorKind::Policy
    );
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_fails_with_the_reason() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let site = Site::new("a");
        let list = discover::list([("a", site.endpoint())]);
        let mut balance = Builder::new().balance(list, policy).unwrap();
        settle().await;
        let error = call(&mut balance).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Policy);
        assert!(error.to_string().contains("not today"), "{error}");
        assert_eq!((site.calls(), balance.stats().waiting), (0, 0));
    }
    case(Says::new(|_, _| PickResult::Refuse("not today"))).await;
    case(BoxPolicy::new(Says::new(|_, _| {
        PickResult::Refuse("not today")
    })))
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_final() {
    let refuses_once = Says::new(|_, nth| match nth {
        0 => PickResult::Refuse("not today"),
        _ => PickResult::Any,
    });
    let site = Site::new("a");
    let list = discover::list([("a", site.endpoint())]);
    let mut balance = Balance::new(list, refuses_once.clone());
    settle().await;
    assert_eq!(
        call(&mut balance).await.unwrap_err().kind(),
        ErrorKind::Policy
    );
    assert_eq!((refuses_once.asked(), site.calls()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_drained_or_ejected_member_that_a_careless_policy_names_gets_no_call() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let sites = Sites::new(&["a", "b", "c"]);
        let (handle, changes) = discover::channel();
        handle.set(["a", "b", "c"].map(|name| (name, sites[name].endpoint())));
        let health = Health::new().consecutive_failures(1);
        let builder = Builder::new().seed(1).starting_at(0).health(health);
        let mut balance = builder.balance(changes, policy).unwrap();
        settle().await;
        assert_eq!(answers(&mut balance, 2).await, ["a", "a"]);
        handle.insert("a", sites["a"].endpoint().weight(0));
        settle().await;
        let others = answers(&mut balance, 100).await;
        assert!(
            others.iter().all(|name| ["b", "c"].contains(name)),
            "a is drained"
        );
        let evenly = |expected: usize| {
            let (b, c) = (sites["b"].calls(), sites["c"].calls());
            assert_eq!(b + c, 2 * expected);
            // Five standard deviations of what even chances give.
            assert!(
                b.abs_diff(expected) <= 5 * (expected / 2).isqrt(),
                "{b} and {c}"
            );
        };
        evenly(50);

        handle.insert("a", sites["a"].endpoint());
        settle().await;
        sites["a"].act(Act::Err);
        call(&mut balance).await.unwrap_err();
        answers(&mut balance, 100).await;
        assert_eq!(sites["a"].calls(), 3, "a is ejected");
        evenly(100);
    }
    case(Says::new(|_, _| PickResult::Member(0))).await;
    case(BoxPolicy::new(Says::new(|_, _| PickResult::Member(0)))).await;
}

#[tokio::test(start_paused = true)]
async fn any_is_a_rotation_over_the_eligible() {
    let sites = Sites::new(&["a", "b", "c"]);
    let list = sites.list(&["a", "b", "c"]);
    let any = Says::new(|_, _| PickResult::Any);
    let mut balance = Builder::new().starting_at(1).balance(list, any).unwrap();
    settle().await;
    assert_eq!(answers(&mut balance, 4).await, ["b", "c", "a", "b"]);
}
