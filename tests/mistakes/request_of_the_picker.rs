//! expects: cannot pick for requests of type
//! A picker of one's own picks for the requests that it names, and for no others.

use counterpoise::{
    Balance, Direct, Endpoint, discover,
    policy::{Members, PickContext, PickResult, Picker, Policy},
};
use std::convert::Infallible;
use tower::{Service, service_fn};

struct Shards;

impl Policy for Shards {
    type Picker = Self;

    fn build(&self, _members: &Members<'_>, _previous: Option<&Self>) -> Self {
        Self
    }
}

#[cfg(mistake)]
type Request = String;
#[cfg(not(mistake))]
type Request = u64;

impl Picker<Request> for Shards {
    fn pick(&self, _request: &Request, _context: &PickContext<'_>) -> PickResult {
        PickResult::Member(0)
    }
}

fn send<S: Service<u64>>(_client: S) {}

pub fn client() {
    let same = service_fn(async |number: u64| Ok::<_, Infallible>(number));
    let endpoints = discover::list([("a", Endpoint::new(Direct(same)))]);
    send(Balance::new(endpoints, Shards));
}
