//! One balancer, from discovery to answer.

use counterpoise::{
    Builder,
    policy::{
        BoxPolicy, ModuloRoundRobin, Picker, Policy, Random, RoundRobin, SmoothWeighted,
        WeightedRandom,
        affinity::{Key, Maglev, RingHash},
    },
};
use tower::{Service, ServiceExt};

use crate::{
    support::{Answer, Sites},
    table::{Fail, Table},
};

#[tokio::test(start_paused = true)]
async fn calls_go_round() {
    let names = ["a", "b", "c"];
    let sites = Sites::new(&names);
    let mut balance = Builder::new()
        .starting_at(0)
        .balance(sites.list(&names), RoundRobin::new())
        .unwrap();
    for name in names.iter().cycle().take(7) {
        assert_eq!(
            balance.ready().await.unwrap().call(()).await.unwrap(),
            Answer::From(name)
        );
    }
    let stats = balance.stats();
    assert_eq!(stats.endpoint("a").unwrap().picks, 3);
    assert_eq!(stats.endpoint("c").unwrap().in_flight, 0);
}

#[test]
fn a_call_to_a_healthy_endpoint_allocates_nothing() {
    fn check<P: Policy<Picker: Picker<Fail>>>(policy: P) {
        let mut table = Table::new(policy, &[4, 2, 1]);
        // The first calls may make a block of a sequence.
        table.counts(3, 3_000);
        let info = allocation_counter::measure(|| drop(table.counts(3, 1_000)));
        assert_eq!(info.count_total, 1, "that is the list of the counts");
    }
    check(RoundRobin::new());
    check(ModuloRoundRobin::new());
    check(SmoothWeighted::new());
    check(Random::new());
    check(WeightedRandom::new());
    check(BoxPolicy::<Fail>::new(SmoothWeighted::new()));
    check(RingHash::by(|fail: &Fail| {
        Some(Key::from(if *fail { "a" } else { "b" }))
    }));
    check(Maglev::by(|_: &Fail| Some(Key::from("key"))));
}
