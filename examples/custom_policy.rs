//! A policy of one's own: tenants stay with an endpoint, and move only if they must.
//!
//! Run it with `cargo run --example custom_policy`. Calls of one tenant go to one endpoint,
//! its home, as long as that is in service; to the next one after it while it is not; and
//! calls without a tenant are spread evenly.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    hash::{DefaultHasher, Hash, Hasher},
};

use counterpoise::{
    Balance, BoxError, Direct, Endpoint, discover,
    policy::{Candidates, Members, PickContext, PickResult, Picker, Policy},
};
use tokio::task::yield_now;
use tower::{ServiceExt, service_fn};

/// What is sent. The policy below works for any request that implements `Tenant`.
struct Query {
    tenant: Option<&'static str>,
}

/// Requests that may belong to a tenant.
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

/// Tenants beyond this number share slots.
const SLOTS: usize = 256;

impl Policy for Sticky {
    type Picker = Slots;

    /// Sees the members and no request. All members, not the eligible ones alone: so an
    /// ejection moves no tenant but those of the endpoint that is out.
    fn build(&self, members: &Members<'_>, _previous: Option<&Slots>) -> Slots {
        let order = |slot: usize| {
            let bids: Vec<_> = members.iter().map(|member| bid(slot, member.name())).collect();
            let mut order: Vec<usize> = (0..bids.len()).collect();
            order.sort_by_key(|&index| bids[index]);
            order
        };
        Slots((0..SLOTS).map(order).collect())
    }
}

/// Built once for each change of the set: for each of a few slots of tenants, the indexes of the
/// members in the order of their bids.
struct Slots(Vec<Vec<usize>>);

impl Slots {
    fn order(&self, tenant: &str) -> &[usize] {
        &self.0[(hash(tenant) % SLOTS as u64) as usize]
    }
}

impl<R: Tenant> Picker<R> for Slots {
    /// Sees one request: the first endpoint of the tenant's order that may take it.
    fn pick(&self, request: &R, cx: &PickContext<'_>) -> PickResult {
        let Some(tenant) = request.tenant() else { return PickResult::Any };
        let first = self.order(tenant).iter().find(|&&index| cx.accepts(index));
        first.map_or(PickResult::Any, |&index| PickResult::Member(index))
    }

    /// The whole order, for retries and the like. A tenant is bound to it: an ejected endpoint is
    /// tested with a call of its own tenants.
    fn candidates(&self, request: &R, cx: &PickContext<'_>, skip: usize, out: &mut Candidates) {
        let Some(tenant) = request.tenant() else { return cx.shuffle(skip, out) };
        out.bind();
        for &index in self.order(tenant).iter().skip(skip) {
            if !out.push(index) {
                break;
            }
        }
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

    // Calls without a tenant are spread evenly.
    for _ in 0..3 {
        let answer = balance.clone().oneshot(Query { tenant: None }).await?;
        println!("without a tenant: {answer}");
    }

    // When an endpoint leaves, its tenants move, and no others.
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
