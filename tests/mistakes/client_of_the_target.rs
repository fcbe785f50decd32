//! expects: does not know how to use the client
//! A target implements `Target<C>` for the client `C` that it is used with.

use counterpoise::{
    BalanceLayer, Endpoint, Target, call::AtHead, discover, health::ErrorsAreFailures,
    policy::RoundRobin,
};
use tower::{Layer, Service, util::BoxCloneSyncService};

type Right = BoxCloneSyncService<u64, u64, std::io::Error>;
#[cfg(mistake)]
type Client = BoxCloneSyncService<u64, u64, std::fmt::Error>;
#[cfg(not(mistake))]
type Client = Right;

struct Plain;

impl Target<Right> for Plain {
    type Service = Right;
    type Judge = AtHead<ErrorsAreFailures>;

    fn attach(&self, client: &Right) -> Right {
        client.clone()
    }
}

fn send<S: Service<u64>>(_client: S) {}

pub fn client(client: Client) {
    let endpoints = discover::list([("a", Endpoint::new(Plain))]);
    send(BalanceLayer::new(endpoints, RoundRobin::new()).layer(client));
}
