//! Endpoints that are numbers, for tests that count picks by the thousand.

use std::ops::Range;

use counterpoise::{
    Balance, Builder, Direct,
    discover::{self, Handle},
    policy::Pick,
};
use tower::{Service, ServiceExt};

use crate::support::{Scripted, settle};

/// A service that answers with its number.
pub(crate) type Number = Scripted<usize>;

/// A balancer over numbers, and what changes its set.
pub(crate) struct Numbers<P: Pick<()>> {
    pub(crate) handle: Handle<usize, Direct<Number>>,
    pub(crate) balance: Balance<Direct<Number>, P>,
}

impl<P: Pick<()>> Numbers<P> {
    /// Builds over the empty set.
    pub(crate) fn new(policy: P, builder: Builder) -> Self {
        let (handle, changes) = discover::channel();
        Self { handle, balance: builder.balance(changes, policy).unwrap() }
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
        self.handle.set(numbers.map(|n| (n, Number::new(n).endpoint().weight(weight))));
        settle().await;
    }

    /// Inserts a number.
    pub(crate) async fn insert(&self, n: usize, weight: u32) {
        self.handle.insert(n, Number::new(n).endpoint().weight(weight));
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
