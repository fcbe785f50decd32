//! Sites behind any policy: each site does what it is told, and each request may carry a key.

use std::{collections::BTreeMap, time::Duration};

use counterpoise::{
    Balance, Builder, Classify, Direct, Error, Outcome,
    call::AtHead,
    call::ResponseFuture,
    discover::{self, Handle},
    observe::{EndpointState, EndpointStats},
    policy::{
        Picker, Policy,
        affinity::{Key, Keyed},
    },
};
use tower::{Service, ServiceExt};

use crate::support::{Act, Answer, Broken, Request, Scripted, Text, settle};

/// A request: its key, if it has one.
pub(crate) type Job = Option<u64>;

/// What finds the key of a request.
pub(crate) type JobKey = for<'a> fn(&'a Job) -> Option<Key<'a>>;

pub(crate) const KEY: JobKey = |job| job.map(Key::from);

/// The policies that keep keys.
pub(crate) type KeyedBy<S> = Keyed<JobKey, S>;

/// How a policy shares calls out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// In turn.
    Turns { weighted: bool },
    /// By draws.
    Draws { weighted: bool },
    /// By draws and costs.
    Costs,
    /// By keys.
    Keys,
}

/// Runs a check with every policy there is; the check takes how it shares, and the policy.
macro_rules! each_policy {
    ($check:path) => {{
        $crate::fleet::each_free!($check);
        $crate::fleet::each_keyed_fleet!($check);
    }};
}

/// Those that keep no keys.
macro_rules! each_free {
    ($check:path) => {{
        use $crate::fleet::Sharing;
        let (turns, smooth) = (
            Sharing::Turns { weighted: false },
            Sharing::Turns { weighted: true },
        );
        let (even, draws) = (
            Sharing::Draws { weighted: false },
            Sharing::Draws { weighted: true },
        );
        $check(turns, counterpoise::policy::RoundRobin::new()).await;
        $check(turns, counterpoise::policy::ModuloRoundRobin::new()).await;
        $check(smooth, counterpoise::policy::SmoothWeighted::new()).await;
        $check(even, counterpoise::policy::Random::new()).await;
        $check(draws, counterpoise::policy::WeightedRandom::new()).await;
        $check(draws, counterpoise::policy::LeastRequest::new()).await;
        $check(draws, counterpoise::policy::LeastRequest::new().full_scan()).await;
        $check(Sharing::Costs, counterpoise::policy::PeakEwma::new()).await;
        $check(
            smooth,
            counterpoise::policy::BoxPolicy::new(counterpoise::policy::SmoothWeighted::new()),
        )
        .await;
        $check(
            Sharing::Costs,
            counterpoise::policy::BoxPolicy::new(counterpoise::policy::PeakEwma::new()),
        )
        .await;
        // Without keys.
        let nothing: $crate::fleet::JobKey = |_| None;
        $check(even, counterpoise::policy::affinity::RingHash::by(nothing)).await;
        let random = counterpoise::policy::affinity::Fallback::Random;
        $check(
            even,
            counterpoise::policy::affinity::Rendezvous::by(nothing).fallback(random),
        )
        .await;
    }};
}

/// Those that keep keys.
macro_rules! each_keyed_fleet {
    ($check:path) => {{
        use $crate::fleet::{KEY, Sharing};
        $check(
            Sharing::Keys,
            counterpoise::policy::affinity::RingHash::by(KEY),
        )
        .await;
        $check(
            Sharing::Keys,
            counterpoise::policy::affinity::Rendezvous::by(KEY),
        )
        .await;
        $check(
            Sharing::Keys,
            counterpoise::policy::affinity::Maglev::by(KEY).table_size(4_099),
        )
        .await;
        $check(
            Sharing::Keys,
            counterpoise::policy::affinity::HashMod::by(KEY),
        )
        .await;
        $check(
            Sharing::Keys,
            counterpoise::policy::BoxPolicy::new(counterpoise::policy::affinity::RingHash::by(KEY)),
        )
        .await;
    }};
}
pub(crate) use {each_free, each_keyed_fleet, each_policy};

impl Request for Job {}

/// A site that takes requests with keys.
pub(crate) type Worker = Scripted<Text, Job>;

/// Takes refusals for push-back, for a time if there is one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Push(pub(crate) Option<Duration>);

impl Classify<Answer, Broken> for Push {
    fn classify(&self, result: Result<&Answer, &Broken>) -> Outcome {
        match (result, self.0) {
            (Ok(Answer::From(_)), _) => Outcome::Success,
            (Ok(Answer::Rejected(_)), None) => Outcome::Overload,
            (Ok(Answer::Rejected(_)), Some(time)) => Outcome::OverloadFor(time),
            (Err(_), _) => Outcome::Failure,
        }
    }
}

pub(crate) struct Fleet<P: Policy<Picker: Picker<Job>>> {
    pub(crate) sites: BTreeMap<&'static str, Worker>,
    pub(crate) handle: Handle<&'static str, Direct<Worker>>,
    pub(crate) balance: Balance<Direct<Worker>, P, (), AtHead<Push>>,
    /// The key of the next call.
    pub(crate) next: u64,
}

/// A call that runs.
pub(crate) type Running<P> = ResponseFuture<Job, Direct<Worker>, P, (), AtHead<Push>>;

impl<P: Policy<Picker: Picker<Job>>> Fleet<P> {
    /// Builds over a first batch; chances are fixed unless the builder says otherwise.
    pub(crate) async fn new(builder: Builder, policy: P, set: &[(&'static str, u32)]) -> Self {
        Self::with(
            builder.starting_at(0).seed(1).classify(Push(None)),
            policy,
            set,
        )
        .await
    }

    pub(crate) async fn with(
        builder: Builder<AtHead<Push>>,
        policy: P,
        set: &[(&'static str, u32)],
    ) -> Self {
        let (handle, changes) = discover::channel();
        let balance = builder.balance(changes, policy).unwrap();
        let mut fleet = Self {
            sites: BTreeMap::new(),
            handle,
            balance,
            next: 0,
        };
        set.iter()
            .for_each(|&(name, weight)| fleet.announce(name, weight));
        // The picker of a large set is built on another thread.
        fleet.balance.ready_when(set.len()).await.unwrap();
        settle().await;
        fleet
    }

    fn announce(&mut self, name: &'static str, weight: u32) {
        let site = self.sites.entry(name).or_insert_with(|| Worker::new(name));
        self.handle.insert(name, site.endpoint().weight(weight));
    }

    /// Adds an endpoint, or announces it again.
    pub(crate) async fn join(&mut self, name: &'static str, weight: u32) {
        self.announce(name, weight);
        settle().await;
    }

    /// Adds endpoints in one batch.
    pub(crate) async fn join_all(&mut self, set: &[(&'static str, u32)]) {
        set.iter()
            .for_each(|&(name, weight)| self.announce(name, weight));
        settle().await;
    }

    pub(crate) async fn leave(&mut self, name: &'static str) {
        self.handle.remove(&name);
        settle().await;
    }

    pub(crate) fn act(&self, name: &str, act: Act) {
        self.sites[name].act(act);
    }

    /// Starts a call with the next key.
    pub(crate) fn start(&mut self) -> Running<P> {
        self.next += 1;
        self.balance.call(Some(self.next))
    }

    pub(crate) async fn call(&mut self, job: Job) -> Result<Answer, Error> {
        self.balance.ready().await?.call(job).await
    }

    /// Makes a call; returns who was called, whatever came of it.
    pub(crate) async fn ask(&mut self, job: Job) -> &'static str {
        match self.call(job).await {
            Ok(Answer::From(name) | Answer::Rejected(name)) => name,
            Err(error) => {
                let name = error.endpoint().expect("somebody was called").to_owned();
                self.sites.get_key_value(&*name).expect("a site").0
            }
        }
    }

    /// Makes calls with new keys, one by one; returns who was called.
    pub(crate) async fn route(&mut self, calls: usize) -> Vec<&'static str> {
        let mut route = Vec::with_capacity(calls);
        for _ in 0..calls {
            self.next += 1;
            route.push(self.ask(Some(self.next)).await);
        }
        route
    }

    /// Makes calls with the keys from 1 on; returns how many a site got.
    pub(crate) async fn share(&mut self, calls: usize, name: &str) -> usize {
        self.next = 0;
        self.route(calls)
            .await
            .iter()
            .filter(|&&other| other == name)
            .count()
    }

    /// Returns who is called with each of the keys below `n`.
    pub(crate) async fn owners(&mut self, n: u64) -> Vec<&'static str> {
        let mut owners = Vec::new();
        for key in 0..n {
            owners.push(self.ask(Some(key)).await);
        }
        owners
    }

    /// Makes calls until this endpoint has failed its way out; it works again from then on.
    pub(crate) async fn eject(&mut self, name: &str) {
        self.act(name, Act::Err);
        let ejections = self.stats(name).ejections;
        while self.stats(name).ejections == ejections {
            self.route(1).await;
            assert!(self.next < 100_000, "{name} is not ejected");
        }
        self.act(name, Act::Ok);
    }

    /// Makes calls until this endpoint, whose trial is due, is back.
    pub(crate) async fn bring_back(&mut self, name: &str) {
        while self.stats(name).state != EndpointState::Serving {
            self.route(1).await;
            assert!(self.next < 100_000, "{name} does not return");
        }
    }

    pub(crate) fn stats(&self, name: &str) -> EndpointStats {
        self.balance.stats().endpoint(name).unwrap().clone()
    }

    /// Returns the part of a site's weight that counts.
    pub(crate) fn factor(&self, name: &str) -> f64 {
        let stats = self.stats(name);
        stats.effective_weight / f64::from(stats.weight)
    }

    pub(crate) fn calls(&self, name: &str) -> usize {
        self.sites[name].calls()
    }
}

/// Returns whether a count of draws is within five standard deviations of what is expected,
/// and one.
pub(crate) fn is_likely(count: usize, draws: usize, chance: f64) -> bool {
    let (expected, n) = (draws as f64 * chance, draws as f64);
    (count as f64 - expected).abs() <= 1.0 + 5.0 * (n * chance * (1.0 - chance)).sqrt()
}
