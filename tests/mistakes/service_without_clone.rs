//! expects: does not know how to use the client
//! `Direct` clones its service for each call.

use counterpoise::{Balance, Direct, Endpoint, discover, policy::RoundRobin};
use std::{
    convert::Infallible,
    future::{Ready, ready},
    task::{Context, Poll},
};
use tower::Service;

#[cfg_attr(not(mistake), derive(Clone))]
struct Same;

impl Service<u64> for Same {
    type Response = u64;
    type Error = Infallible;
    type Future = Ready<Result<u64, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, number: u64) -> Self::Future {
        ready(Ok(number))
    }
}

fn send<S: Service<u64>>(_client: S) {}

pub fn client() {
    let endpoints = discover::list([("a", Endpoint::new(Direct(Same)))]);
    send(Balance::new(endpoints, RoundRobin::new()));
}
