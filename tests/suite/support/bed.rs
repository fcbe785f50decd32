//! A test bed: sites behind a balancer, and everything a test wants to do with them.

use std::time::Duration;

use counterpoise::{
    Balance, Builder, Direct, Error, Health, Outcome,
    call::ResponseFuture,
    call::{Implied, Judge},
    discover::{self, Handle},
    observe::{EndpointState, EndpointStats},
    policy::RoundRobin,
};
use tower::{Service, ServiceExt};

use crate::support::{Act, Answer, Broken, Site, Sites, settle};

pub(crate) const MILLISECOND: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Three failures in a row eject for exactly ten seconds.
pub(crate) fn eject3() -> Health {
    Health::new().consecutive_failures(3).jitter(0.0)
}

/// One failure ejects for exactly ten seconds.
pub(crate) fn eject1() -> Health {
    eject3().consecutive_failures(1)
}

/// Sites behind a round robin that starts at the first of them.
pub(crate) struct Bed<J = Implied> {
    pub(crate) sites: Sites,
    pub(crate) handle: Handle<&'static str, Direct<Site>>,
    pub(crate) balance: Balance<Direct<Site>, RoundRobin, (), J>,
}

impl Bed {
    /// Builds with these rules of health.
    pub(crate) async fn new(names: &[&'static str], health: Health) -> Self {
        Self::build(names, Builder::new().health(health)).await
    }

    /// Builds with these rules of health, and other chances.
    pub(crate) async fn seeded(names: &[&'static str], health: Health, seed: u64) -> Self {
        Self::build_seeded(names, Builder::new().health(health), seed).await
    }
}

impl<J> Bed<J>
where
    J: Judge<Direct<Site>, (), Answer, Broken, Response = Answer> + Send + 'static,
{
    pub(crate) async fn build(names: &[&'static str], builder: Builder<J>) -> Self {
        Self::build_seeded(names, builder, 0).await
    }

    async fn build_seeded(names: &[&'static str], builder: Builder<J>, seed: u64) -> Self {
        let sites = Sites::new(names);
        let (handle, changes) = discover::channel();
        for &name in names {
            handle.insert(name, sites[name].endpoint());
        }
        let builder = builder.starting_at(0).seed(seed);
        let balance = builder.balance(changes, RoundRobin::new()).unwrap();
        settle().await;
        Self {
            sites,
            handle,
            balance,
        }
    }

    /// Announces a site with a weight, for the first time or again.
    pub(crate) async fn announce(&self, name: &'static str, weight: u32) {
        self.handle
            .insert(name, self.sites[name].endpoint().weight(weight));
        settle().await;
    }

    pub(crate) async fn remove(&self, name: &'static str) {
        self.handle.remove(&name);
        settle().await;
    }

    /// Chooses an endpoint and calls it; the answer is for the caller to wait for.
    pub(crate) fn start(&mut self) -> ResponseFuture<(), Direct<Site>, RoundRobin, (), J> {
        self.balance.call(())
    }

    pub(crate) async fn call(&mut self) -> Result<Answer, Error> {
        self.balance.ready().await?.call(()).await
    }

    /// Makes calls one by one, and spells who was called, well or not: `-` is nobody.
    pub(crate) async fn route(&mut self, calls: usize) -> String {
        let mut route = String::new();
        for _ in 0..calls {
            match self.call().await {
                Ok(Answer::From(name) | Answer::Rejected(name)) => route.push_str(name),
                Err(error) => route.push_str(error.endpoint().unwrap_or("-")),
            }
        }
        route
    }

    /// Makes calls until this endpoint has failed its way out; it works again from then on.
    pub(crate) async fn eject(&mut self, name: &str) {
        self.sites[name].act(Act::Err);
        let ejections = self.stats(name).ejections;
        for _ in 0..1000 {
            if self.stats(name).ejections > ejections {
                self.sites[name].act(Act::Ok);
                return;
            }
            let _ = self.call().await;
        }
        panic!("{name} was not ejected");
    }

    pub(crate) fn stats(&self, name: &str) -> EndpointStats {
        self.balance.stats().endpoint(name).unwrap().clone()
    }

    pub(crate) fn state(&self, name: &str) -> EndpointState {
        self.stats(name).state
    }

    /// Returns how many calls a site has got.
    pub(crate) fn calls(&self, name: &str) -> usize {
        self.sites[name].calls()
    }
}

/// Returns how often a name occurs in a route.
pub(crate) fn share(route: &str, name: &str) -> usize {
    route.matches(name).count()
}

/// A classifier that makes this of refusals.
pub(crate) fn refusals(
    outcome: Outcome,
) -> impl Fn(Result<&Answer, &Broken>) -> Outcome + Clone + Send {
    move |result| match result {
        Ok(Answer::From(_)) => Outcome::Success,
        Ok(Answer::Rejected(_)) => outcome,
        Err(_) => Outcome::Failure,
    }
}
