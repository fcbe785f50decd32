//! Balancers whose requests carry keys, driven by hand: no waiting, every change at the very
//! moment.

use std::{
    collections::HashMap,
    future::Future,
    pin::{Pin, pin},
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use counterpoise::{
    Attempts, Balance, Builder, Direct, Error,
    discover::{self, Handle},
    policy::{
        Candidates, Members, PickContext, PickResult, Picker, Policy,
        affinity::{Key, Keyed},
    },
};
use tower::{Layer, Service};

use crate::support::{Act, Gate, Request, Scripted, picked};

/// A request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ask {
    pub(crate) key: Option<String>,
    pub(crate) deed: Act,
}

impl Ask {
    pub(crate) fn of(key: &str) -> Self {
        Self {
            key: Some(key.to_owned()),
            deed: Act::Ok,
        }
    }

    pub(crate) fn deed(self, deed: Act) -> Self {
        Self { deed, ..self }
    }
}

/// What finds the key of a request.
pub(crate) type ByKey = for<'a> fn(&'a Ask) -> Option<Key<'a>>;

pub(crate) const KEY: ByKey = |ask| ask.key.as_deref().map(Key::from);

/// Runs a check with every structure that keeps keys.
macro_rules! each_keyed {
    ($check:path) => {
        $check(counterpoise::policy::affinity::RingHash::by(
            $crate::keyed_bed::KEY,
        ));
        $check(
            counterpoise::policy::affinity::Maglev::by($crate::keyed_bed::KEY).table_size(4_099),
        );
        $check(counterpoise::policy::affinity::HashMod::by(
            $crate::keyed_bed::KEY,
        ));
        $check(counterpoise::policy::affinity::Rendezvous::by(
            $crate::keyed_bed::KEY,
        ));
    };
}
pub(crate) use each_keyed;

/// The policies that the checks are about.
pub(crate) type KeyedBy<S> = Keyed<ByKey, S>;

impl Request for Ask {
    fn act(&self) -> Act {
        self.deed
    }
}

/// An endpoint that answers with its name.
type Desk = Scripted<Arc<str>, Ask>;

pub(crate) type Target = Direct<Desk>;

/// A call that has not ended.
pub(crate) type Open = Pin<Box<dyn Future<Output = Result<Arc<str>, Error>> + Send>>;

pub(crate) struct KeyedBed<P: Policy<Picker: Picker<Ask>>> {
    handle: Handle<String, Target>,
    driver: Mutex<Pin<Box<dyn Future<Output = ()> + Send>>>,
    desks: HashMap<String, Desk>,
    pub(crate) balance: Balance<Target, P>,
}

impl<P: Policy<Picker: Picker<Ask>>> KeyedBed<P> {
    pub(crate) fn new(policy: P, set: &[(&str, u32)]) -> Self {
        Self::with(Builder::new(), policy, set)
    }

    pub(crate) fn with(builder: Builder, policy: P, set: &[(&str, u32)]) -> Self {
        let (handle, changes) = discover::channel();
        let builder = builder.starting_at(0).seed(1);
        let (layer, driver) = builder.pair(changes, policy).unwrap();
        let (driver, desks) = (Mutex::new(Box::pin(driver) as _), HashMap::new());
        let mut bed = Self {
            handle,
            driver,
            desks,
            balance: layer.layer(()),
        };
        set.iter()
            .for_each(|&(name, weight)| bed.announce(name, weight));
        bed.drive();
        if !set.is_empty() {
            bed.drive_until_published(1);
        }
        bed
    }

    /// Adds an endpoint or changes its weight, with the next [`drive`](Self::drive).
    pub(crate) fn announce(&mut self, name: &str, weight: u32) {
        let desk = self
            .desks
            .entry(name.to_owned())
            .or_insert_with(|| Desk::new(name));
        let endpoint = desk.endpoint().weight(weight);
        self.handle.insert(name.to_owned(), endpoint);
    }

    pub(crate) fn insert(&mut self, name: &str, weight: u32) {
        self.announce(name, weight);
        self.drive();
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.handle.remove(&name.to_owned());
        self.drive();
    }

    pub(crate) fn drive(&mut self) {
        // A poll takes a bounded number of changes.
        (0..16).for_each(|_| self.poll_driver());
    }

    /// As [`drive`](Self::drive), in a runtime: there a costly table is compiled on another
    /// thread, of which the end is waited for, within reason.
    fn drive_until_published(&mut self, generation: u64) {
        for _ in 0..1_000_000 {
            self.poll_driver();
            if self.balance.stats().generation > generation {
                return;
            }
            std::thread::yield_now();
        }
    }

    fn poll_driver(&mut self) {
        let mut nobody = Context::from_waker(Waker::noop());
        let driver = self.driver.get_mut().unwrap().as_mut();
        assert!(driver.poll(&mut nobody).is_pending());
    }

    pub(crate) fn unready(&self, name: &str, unready: bool) {
        self.desks[name].turn(if unready { Gate::Shut } else { Gate::Open });
    }

    /// Returns how many calls an endpoint has got.
    pub(crate) fn calls(&self, name: &str) -> usize {
        self.desks[name].calls()
    }

    /// Returns how many calls have run at an endpoint at once, at most.
    pub(crate) fn most(&self, name: &str) -> usize {
        self.desks[name].most()
    }

    pub(crate) fn in_flight(&self, name: &str) -> u64 {
        self.balance.stats().endpoint(name).unwrap().in_flight
    }

    /// Makes a call, which must not wait.
    pub(crate) fn call(&self, ask: Ask) -> Result<Arc<str>, Error> {
        match self.start(ask) {
            Ok(result) => result,
            Err(_) => panic!("the call waits"),
        }
    }

    /// Starts a call: it ends at once or is open.
    pub(crate) fn start(&self, ask: Ask) -> Result<Result<Arc<str>, Error>, Open> {
        let mut call: Open = Box::pin(self.balance.clone().call(ask));
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Ok(result),
            Poll::Pending => Err(call),
        }
    }

    /// Starts a call that hangs.
    pub(crate) fn hold(&self, key: &str) -> Open {
        self.start(Ask::of(key).deed(Act::Hang)).unwrap_err()
    }

    /// Returns who answers a call with this key.
    pub(crate) fn owner(&self, key: &str) -> String {
        self.call(Ask::of(key)).unwrap().to_string()
    }

    pub(crate) fn owners(&self, keys: &[String]) -> Vec<String> {
        keys.iter().map(|key| self.owner(key)).collect()
    }

    /// Sends a call that fails; returns who failed it.
    pub(crate) fn fail(&self, key: &str) -> String {
        let error = self.call(Ask::of(key).deed(Act::Err)).unwrap_err();
        error.endpoint().unwrap().to_owned()
    }

    /// Returns where so many attempts of one failing request go.
    pub(crate) fn attempts(&self, key: &str, attempts: usize) -> Vec<String> {
        let scope = Attempts::new();
        for _ in 0..attempts {
            let mut balance = self.balance.clone();
            let call = async move { balance.call(Ask::of(key).deed(Act::Err)).await };
            let call = pin!(scope.scope(call)).poll(&mut Context::from_waker(Waker::noop()));
            assert!(call.is_ready());
        }
        scope.names().iter().map(ToString::to_string).collect()
    }
}

/// Runs a future that does not wait.
pub(crate) fn at_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("nothing here waits"),
    }
}

/// A policy that notes the whole walk of each request.
#[derive(Debug)]
pub(crate) struct Walks<P> {
    policy: Arc<P>,
    walk: Arc<Mutex<Vec<usize>>>,
}

impl<P> Walks<P> {
    pub(crate) fn new(policy: P) -> Self {
        Self {
            policy: Arc::new(policy),
            walk: Arc::default(),
        }
    }
}

impl<P> Clone for Walks<P> {
    fn clone(&self) -> Self {
        Self {
            policy: Arc::clone(&self.policy),
            walk: Arc::clone(&self.walk),
        }
    }
}

impl<P: Policy> Policy for Walks<P> {
    type Picker = WalksPicker<P::Picker>;

    fn build(&self, members: &Members<'_>, previous: Option<&Self::Picker>) -> Self::Picker {
        let inner = self
            .policy
            .build(members, previous.map(|picker| &picker.inner));
        WalksPicker {
            inner,
            walk: Arc::clone(&self.walk),
        }
    }
}

pub(crate) struct WalksPicker<K> {
    inner: K,
    walk: Arc<Mutex<Vec<usize>>>,
}

impl<K: Picker<Ask>> Picker<Ask> for WalksPicker<K> {
    fn pick(&self, ask: &Ask, cx: &PickContext<'_>) -> PickResult {
        let mut walk = Vec::new();
        let mut is_over = false;
        while !is_over {
            let mut part = Candidates::new();
            self.inner.candidates(ask, cx, walk.len(), &mut part);
            assert!(part.is_bound());
            walk.extend(part.iter());
            is_over = !part.is_full();
        }
        *self.walk.lock().unwrap() = walk;
        self.inner.pick(ask, cx)
    }
}

impl<P: Policy<Picker: Picker<Ask>>> KeyedBed<Walks<P>> {
    /// Returns the walks of keys in the table that is in use.
    pub(crate) fn walks(&self, walks: &Walks<P>, keys: &[String]) -> Vec<Vec<String>> {
        let stats = self.balance.stats();
        let walk = |key: &String| {
            picked(&self.balance, Ask::of(key));
            let walk = walks.walk.lock().unwrap();
            walk.iter()
                .map(|&index| stats.endpoints[index].name.to_string())
                .collect()
        };
        keys.iter().map(walk).collect()
    }
}

/// Returns so many keys.
pub(crate) fn keys(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("user {i}")).collect()
}

/// Returns the first choice of each key in a set, as a balancer's picks see it. (A map's
/// `owners` would walk to the end for each.)
pub(crate) fn firsts<P>(policy: &P, set: &[(&str, u32)], keys: &[String]) -> Vec<String>
where
    P: Policy<Picker: Picker<Ask>> + Clone,
{
    let bed = KeyedBed::new(policy.clone(), set);
    let first = |key: &String| picked(&bed.balance, Ask::of(key)).unwrap().to_string();
    keys.iter().map(first).collect()
}

/// Returns how many of the names are this one.
pub(crate) fn count(names: &[String], name: &str) -> usize {
    names.iter().filter(|other| *other == name).count()
}
