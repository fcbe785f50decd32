//! Endpoints that answer with their number: in a [`Table`], driven by hand, with no runtime and no
//! waiting, every change at the very moment; or as [`Numbers`], in a runtime.

use std::ops::Range;
use std::{
    future::Future,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use counterpoise::{
    Balance, Builder, Direct,
    discover::{self, Handle},
    policy::{Picker, Policy},
};
use tower::{Layer, Service, ServiceExt};

use crate::support::{Act, Request, Scripted, settle};

/// Answers with its number, or fails if the request says so.
pub(crate) type Echo = Scripted<usize, Fail>;

/// Whether the endpoint is to fail.
pub(crate) type Fail = bool;

impl Request for Fail {
    fn act(&self) -> Act {
        if *self { Act::Err } else { Act::Ok }
    }
}

/// Makes a call that succeeds; returns who answered.
pub(crate) fn pick<P: Policy<Picker: Picker<Fail>>>(
    balance: &mut Balance<Direct<Echo>, P>,
) -> usize {
    call(balance, false).unwrap()
}

fn call<P: Policy<Picker: Picker<Fail>>>(
    balance: &mut Balance<Direct<Echo>, P>,
    fail: Fail,
) -> Result<usize, counterpoise::Error> {
    match pin!(balance.call(fail)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("nothing here waits"),
    }
}

pub(crate) struct Table<P: Policy<Picker: Picker<Fail>>> {
    handle: Handle<usize, Direct<Echo>>,
    driver: Pin<Box<dyn Future<Output = ()> + Send>>,
    pub(crate) balance: Balance<Direct<Echo>, P>,
}

impl<P: Policy<Picker: Picker<Fail>>> Table<P> {
    /// Creates a table whose picks start without credit, at ticket 0.
    pub(crate) fn new(policy: P, weights: &[u32]) -> Self {
        Self::with(Builder::new().starting_at(0).seed(1), policy, weights)
    }

    pub(crate) fn with(builder: Builder, policy: P, weights: &[u32]) -> Self {
        let (handle, changes) = discover::channel();
        let (layer, driver) = builder.pair(changes, policy).unwrap();
        let mut table = Self {
            handle,
            driver: Box::pin(driver),
            balance: layer.layer(()),
        };
        table.insert_all(weights.iter().copied().enumerate());
        table
    }

    pub(crate) fn insert_all(&mut self, weights: impl IntoIterator<Item = (usize, u32)>) {
        for (number, weight) in weights {
            self.handle
                .insert(number, Echo::new(number).endpoint().weight(weight));
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
        call(&mut self.balance, fail)
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

/// A service that answers with its number.
pub(crate) type Number = Scripted<usize>;

/// A balancer over numbers, and what changes its set.
pub(crate) struct Numbers<P: Policy<Picker: Picker<()>>> {
    pub(crate) handle: Handle<usize, Direct<Number>>,
    pub(crate) balance: Balance<Direct<Number>, P>,
}

impl<P: Policy<Picker: Picker<()>>> Numbers<P> {
    /// Builds over the empty set.
    pub(crate) fn new(policy: P, builder: Builder) -> Self {
        let (handle, changes) = discover::channel();
        Self {
            handle,
            balance: builder.balance(changes, policy).unwrap(),
        }
    }

    /// Builds over the numbers below `n`, each with weight 1.
    pub(crate) async fn below(n: usize, policy: P, first_ticket: u64) -> Self {
        let numbers = Self::new(policy, Builder::new().starting_at(first_ticket));
        numbers.set(0..n).await;
        numbers
    }

    /// Makes these the set, each with weight 1.
    pub(crate) async fn set(&self, numbers: Range<usize>) {
        self.fill(numbers, 1).await;
    }

    /// Makes these the set, each with this weight.
    pub(crate) async fn fill(&self, numbers: Range<usize>, weight: u32) {
        self.handle
            .set(numbers.map(|n| (n, Number::new(n).endpoint().weight(weight))));
        settle().await;
    }

    /// Inserts a number.
    pub(crate) async fn insert(&self, n: usize, weight: u32) {
        self.handle
            .insert(n, Number::new(n).endpoint().weight(weight));
        settle().await;
    }

    pub(crate) async fn remove(&self, n: usize) {
        self.handle.remove(&n);
        settle().await;
    }

    /// Returns who answers the next calls.
    pub(crate) async fn take(&mut self, calls: usize) -> Vec<usize> {
        let mut answers = Vec::new();
        for _ in 0..calls {
            answers.push(self.balance.ready().await.unwrap().call(()).await.unwrap());
        }
        answers
    }
}

/// Returns how often each number below `n` occurs.
pub(crate) fn tally(n: usize, answers: &[usize]) -> Vec<usize> {
    let mut counts = vec![0; n];
    for &answer in answers {
        counts[answer] += 1;
    }
    counts
}

/// Runs a check with every policy that rotates.
macro_rules! each_rotation {
    ($check:ident) => {
        $check(counterpoise::policy::RoundRobin::new).await;
        $check(counterpoise::policy::ModuloRoundRobin::new).await;
        $check(counterpoise::policy::RoundRobin::new).await;
        $check(|| counterpoise::policy::BoxPolicy::new(counterpoise::policy::RoundRobin::new()))
            .await;
        $check(|| {
            counterpoise::policy::BoxPolicy::new(counterpoise::policy::ModuloRoundRobin::new())
        })
        .await;
    };
}
pub(crate) use each_rotation;
