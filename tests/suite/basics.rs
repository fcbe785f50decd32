//! One balancer, from discovery to answer.

use counterpoise::{Builder, RoundRobin};
use tower::{Service, ServiceExt};

use crate::support::{Answer, Sites};

#[tokio::test(start_paused = true)]
async fn calls_go_round() {
    let names = ["a", "b", "c"];
    let sites = Sites::new(&names);
    let mut balance =
        Builder::new().starting_at(0).balance(sites.list(&names), RoundRobin::new()).unwrap();
    for name in names.iter().cycle().take(7) {
        assert_eq!(balance.ready().await.unwrap().call(()).await.unwrap(), Answer::From(name));
    }
    let stats = balance.stats();
    assert_eq!(stats.endpoint("a").unwrap().picks, 3);
    assert_eq!(stats.endpoint("c").unwrap().in_flight, 0);
}
