//! A policy of one's own: tenants stay with an endpoint, and move only if they must.
//!
//! Run it with `cargo run --example custom_policy`. Calls of one tenant go to one endpoint,
//! its home, as long as that is in service; to the next one after it while it is not; and
//! calls without a tenant go round.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    hash::{DefaultHasher, Hash, Hasher},
};

use counterpoise::{
    Balance, BoxError, Direct, Endpoint, discover,
    policy::{Choice, Pick, Policy, Turn, View},
};
use tokio::task::yield_now;
use tower::{ServiceExt, service_fn};

/// What is sent. The policy below works for any request that implements `Tenant`.
struct Query {
    tenant: Option<&'static str>,
}

/// Requests that may belong to somebody.
trait Tenant {
    fn tenant(&self) -> Option<&str>;
}

impl Tenant for Query {
    fn tenant(&self) -> Option<&str> {
        self.tenant
    }
}

/// Rendezvous hashing: every endpoint bids for a tenant, and the highest bid wins. When an
/// endpoint leaves, only its own tenants move.
#[derive(Debug)]
struct Sticky;

/// What a pick needs to know of the members, compiled once per change of the set: for each
/// of a few slots of tenants, the members in the order of their bids.
struct Slots(Vec<Vec<usize>>);

/// Tenants beyond this number share slots.
const SLOTS: usize = 256;

impl Policy for Sticky {
    type Table = Slots;

    /// Knows the members and no request. All members, not the eligible ones alone: so an
    /// ejection moves no tenant but those of the endpoint that is out.
    fn compile(&self, view: &View<'_>, _previous: Option<&Slots>) -> Slots {
        let order = |slot: usize| {
            let mut members: Vec<usize> = (0..view.members().len()).collect();
            members.sort_by_cached_key(|&member| bid(slot, view.members()[member].name()));
            members
        };
        Slots((0..SLOTS).map(order).collect())
    }
}

impl<R: Tenant> Pick<R> for Sticky {
    /// Knows one request. The index it returns is one of `View::members`.
    fn pick(&self, table: &Slots, request: &R, turn: &Turn<'_>) -> Choice {
        let Some(tenant) = request.tenant() else { return Choice::Any };
        let slot = (hash(tenant) % SLOTS as u64) as usize;
        let mut members = table.0[slot].iter().copied();
        members.find(|&member| turn.is_eligible(member)).map_or(Choice::Any, Choice::Member)
    }
}

/// The lowest number is the best bid.
fn bid(slot: usize, name: &str) -> u64 {
    hash(&(slot, name))
}

/// Good enough for one process. Where several must agree, use a hash that is specified:
/// this one may change with the version of Rust.
fn hash(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let (discovery, changes) = discover::channel();
    for name in ["amber", "birch", "cedar"] {
        let service = service_fn(move |_: Query| async move { Ok::<_, Infallible>(name) });
        discovery.insert(name, Endpoint::new(Direct(service)));
    }
    let balance = Balance::new(changes, Sticky);
    balance.ready_when(3).await?;

    let tenants = ["ann", "ben", "cleo", "dora", "eve", "finn"];
    let mut homes = BTreeMap::new();
    for tenant in tenants {
        let home = balance.clone().oneshot(Query { tenant: Some(tenant) }).await?;
        homes.insert(tenant, home);
    }
    println!("homes: {homes:?}");

    // Calls of nobody go round.
    for _ in 0..3 {
        let answer = balance.clone().oneshot(Query { tenant: None }).await?;
        println!("nobody is with {answer}");
    }

    // When an endpoint leaves, its tenants move, and nobody else.
    discovery.remove(&"amber");
    while balance.stats().endpoints.len() > 2 {
        yield_now().await;
    }
    for (tenant, home) in homes {
        let answer = balance.clone().oneshot(Query { tenant: Some(tenant) }).await?;
        println!("{tenant} was with {home} and is with {answer}");
        assert!(answer == home || home == "amber");
    }
    Ok(())
}
