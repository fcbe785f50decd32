//! What `Attempts` prefer and avoid.

use counterpoise::{
    Attempts, Builder, Health, discover,
    health::PanicMode,
    policy::{BoxPolicy, Picker, Policy, Random, RoundRobin, SmoothWeighted},
};

use crate::{
    probes::{Gate, Probe, answers, call, probes},
    support::{Act, Answer, Sites, settle},
};

const ABC: [&str; 3] = ["a", "b", "c"];

macro_rules! each_policy {
    ($case:path) => {{
        $case(RoundRobin::new()).await;
        $case(SmoothWeighted::new()).await;
        $case(Random::new()).await;
        $case(BoxPolicy::new(RoundRobin::new())).await;
    }};
}

#[tokio::test(start_paused = true)]
async fn calls_go_to_the_preferred_endpoint_while_they_can() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let sites = Sites::new(&ABC);
        let (handle, changes) = discover::channel();
        handle.set(ABC.map(|name| (name, sites[name].endpoint())));
        let health = Health::new().consecutive_failures(1);
        let mut balance = Builder::new()
            .seed(1)
            .health(health)
            .balance(changes, policy)
            .unwrap();
        settle().await;
        for _ in 0..20 {
            let attempts = Attempts::new();
            attempts.prefer("c");
            let answer = attempts.scope(call(&mut balance)).await.unwrap();
            assert_eq!(answer, Answer::From("c"));
            let retried = attempts.scope(call(&mut balance)).await.unwrap();
            assert_ne!(retried, Answer::From("c"), "it was tried");
        }
        let anywhere = Attempts::new();
        anywhere.prefer("d");
        anywhere.scope(call(&mut balance)).await.unwrap();

        handle.insert("c", sites["c"].endpoint().weight(0));
        settle().await;
        let drained = sites["c"].calls();
        let attempts = Attempts::new();
        attempts.prefer("c");
        attempts.scope(call(&mut balance)).await.unwrap();
        assert_eq!(sites["c"].calls(), drained, "it is drained");

        sites["a"].act(Act::Err);
        while balance.stats().counts.ejected == 0 {
            let _failed = call(&mut balance).await;
        }
        let ejected = sites["a"].calls();
        let attempts = Attempts::new();
        attempts.prefer("a");
        assert_eq!(
            attempts.scope(call(&mut balance)).await.unwrap(),
            Answer::From("b")
        );
        assert_eq!(sites["a"].calls(), ejected, "it is ejected");
    }
    each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn a_preferred_endpoint_that_is_not_ready_does_not_hold_the_call_up() {
    let [a, b] = probes([Gate::Open, Gate::Shut]);
    let list = discover::list([("p1", a.endpoint()), ("p2", b.endpoint())]);
    let mut balance = Builder::new().balance(list, RoundRobin::new()).unwrap();
    settle().await;
    let attempts = Attempts::new();
    attempts.prefer("p2");
    assert_eq!(attempts.scope(answers(&mut balance, 1)).await, ["p1"]);
    assert!(Probe::polls(&b) > 0, "it was tried first");
}

#[tokio::test(start_paused = true)]
async fn avoided_endpoints_are_taken_only_if_there_is_no_other() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let sites = Sites::new(&ABC);
        let health = Health::new()
            .consecutive_failures(1)
            .panic_mode(PanicMode::Fail);
        let builder = Builder::new().seed(1).health(health);
        let mut balance = builder.balance(sites.list(&ABC), policy).unwrap();
        settle().await;
        for _ in 0..20 {
            let attempts = Attempts::new();
            attempts.avoid("a");
            attempts.avoid("b");
            assert_eq!(
                attempts.scope(call(&mut balance)).await.unwrap(),
                Answer::From("c")
            );
            assert_eq!(
                attempts
                    .names()
                    .iter()
                    .map(|name| &**name)
                    .collect::<Vec<_>>(),
                ["c"]
            );
        }
        let attempts = Attempts::new();
        ABC.iter().for_each(|&name| attempts.avoid(name));
        attempts.scope(call(&mut balance)).await.unwrap();
        assert_eq!(attempts.names().len(), 1, "any is better than none");
    }
    each_policy!(case);
}
