//! A balancer over endpoints that answer with their number, driven by hand: no runtime, no
//! waiting, every change at the very moment.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use counterpoise::{
    Balance, Builder, Direct,
    discover::{self, Handle},
    policy::Pick,
};
use tower::{Layer, Service};

use crate::support::{Act, Request, Scripted};

/// Answers with its number, or fails if the request says so.
pub(crate) type Echo = Scripted<usize, Fail>;

/// Whether the endpoint is to fail.
pub(crate) type Fail = bool;

impl Request for Fail {
    fn act(&self) -> Act {
        if *self { Act::Err } else { Act::Ok }
    }
}

pub(crate) struct Table<P: Pick<Fail>> {
    handle: Handle<usize, Direct<Echo>>,
    driver: Pin<Box<dyn Future<Output = ()> + Send>>,
    pub(crate) balance: Balance<Direct<Echo>, P>,
}

impl<P: Pick<Fail>> Table<P> {
    /// Creates a table whose picks start without credit, at ticket 0.
    pub(crate) fn new(policy: P, weights: &[u32]) -> Self {
        Self::with(Builder::new().starting_at(0).seed(1), policy, weights)
    }

    pub(crate) fn with(builder: Builder, policy: P, weights: &[u32]) -> Self {
        let (handle, changes) = discover::channel();
        let (layer, driver) = builder.pair(changes, policy).unwrap();
        let mut table = Self { handle, driver: Box::pin(driver), balance: layer.layer(()) };
        table.insert_all(weights.iter().copied().enumerate());
        table
    }

    pub(crate) fn insert_all(&mut self, weights: impl IntoIterator<Item = (usize, u32)>) {
        for (number, weight) in weights {
            self.handle.insert(number, Echo::new(number).endpoint().weight(weight));
        }
        self.drive();
    }

    /// Adds an endpoint, or changes its weight.
    pub(crate) fn insert(&mut self, number: usize, weight: u32) {
        self.insert_all([(number, weight)]);
    }

    pub(crate) fn remove(&mut self, number: usize) {
        self.handle.remove(&number);
        self.drive();
    }

    /// Removes an endpoint with the next change that is applied.
    pub(crate) fn remove_later(&mut self, number: usize) {
        self.handle.remove(&number);
    }

    fn drive(&mut self) {
        // A poll takes a bounded number of changes.
        for _ in 0..16 {
            let mut nobody = Context::from_waker(Waker::noop());
            assert!(self.driver.as_mut().poll(&mut nobody).is_pending());
        }
    }

    /// Makes a call; returns who answered.
    pub(crate) fn pick(&mut self) -> usize {
        self.call(false).unwrap()
    }

    /// Makes a call that fails; returns who failed it.
    pub(crate) fn fail(&mut self) -> usize {
        let error = self.call(true).unwrap_err();
        error.endpoint().unwrap().parse().unwrap()
    }

    pub(crate) fn call(&mut self, fail: Fail) -> Result<usize, counterpoise::Error> {
        match pin!(self.balance.call(fail)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("nothing here waits"),
        }
    }

    pub(crate) fn picks(&mut self, n: usize) -> Vec<usize> {
        (0..n).map(|_| self.pick()).collect()
    }

    /// Makes calls; returns how many each of `0..endpoints` has answered.
    pub(crate) fn counts(&mut self, endpoints: usize, picks: usize) -> Vec<usize> {
        let mut counts = vec![0; endpoints];
        (0..picks).for_each(|_| counts[self.pick()] += 1);
        counts
    }
}
