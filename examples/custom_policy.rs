//! A custom policy keeps the calls of a tenant with one endpoint.
//!
//! Run it with `cargo run --example custom_policy`. The policy implements `build`, `pick` and
//! `candidates`. Each tenant has an order of endpoints: its calls go to the first, the owner, while
//! that is in service, and to the next one otherwise. Calls without a tenant are spread evenly.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    hash::{DefaultHasher, Hash, Hasher},
};

use counterpoise::{
    Balance, BoxError, Direct, Endpoint, discover,
    policy::{Candidates, Member, Members, PickContext, PickResult, Picker, Policy},
};
use tokio::task::yield_now;
use tower::{ServiceExt, service_fn};

/// The request. The policy below works for any type that implements `Tenant`.
struct Query {
    tenant: Option<&'static str>,
}

/// A request that may belong to a tenant.
trait Tenant {
    fn tenant(&self) -> Option<&str>;
}

impl Tenant for Query {
    fn tenant(&self) -> Option<&str> {
        self.tenant
    }
}

/// Rendezvous hashing: each endpoint has a score for each slot of tenants, and the lowest score comes
/// first. When an endpoint leaves, only its own tenants move.
#[derive(Debug)]
struct Sticky;

/// How many slots the tenants share: many more than endpoints, so that each owns its share.
const SLOTS: usize = 256;

impl Policy for Sticky {
    type Picker = Slots;

    /// Builds the orders once for each change of the set, without a request. They contain all
    /// members, not only the eligible, so an ejection moves only the tenants of the ejected endpoint.
    fn build(&self, members: &Members<'_>, _previous: Option<&Slots>) -> Slots {
        Slots((0..SLOTS).map(|slot| order(slot, members)).collect())
    }
}

/// Returns the indexes of the members in the order of their scores for a slot.
fn order(slot: usize, members: &Members<'_>) -> Vec<usize> {
    let score = |member: &Member| hash(&(slot, member.name()));
    let scores: Vec<u64> = members.iter().map(score).collect();
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by_key(|&index| scores[index]);
    order
}

/// The picker: an order of the members for each slot of tenants.
struct Slots(Vec<Vec<usize>>);

impl Slots {
    fn order(&self, tenant: &str) -> &[usize] {
        &self.0[(hash(tenant) % SLOTS as u64) as usize]
    }
}

impl<R: Tenant> Picker<R> for Slots {
    /// Picks the first endpoint of the tenant's order that can take the request.
    fn pick(&self, request: &R, cx: &PickContext<'_>) -> PickResult {
        let Some(tenant) = request.tenant() else {
            return PickResult::Any;
        };
        let first = self.order(tenant).iter().find(|&&index| cx.accepts(index));
        first.map_or(PickResult::Any, |&index| PickResult::Member(index))
    }

    /// Pushes the tenant's order, for calls that cannot use the pick, such as retries. The request is
    /// bound to the first endpoint: the trial of an ejected endpoint is a call of its own tenants.
    fn candidates(&self, request: &R, cx: &PickContext<'_>, skip: usize, out: &mut Candidates) {
        let Some(tenant) = request.tenant() else {
            return cx.shuffle(skip, out);
        };
        out.bind();
        for &index in self.order(tenant).iter().skip(skip) {
            if !out.push(index) {
                break;
            }
        }
    }
}

/// Hashes a value, the same in one process only: `DefaultHasher` may change with the version of Rust.
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
    let mut owners = BTreeMap::new();
    for tenant in tenants {
        let owner = balance
            .clone()
            .oneshot(Query {
                tenant: Some(tenant),
            })
            .await?;
        owners.insert(tenant, owner);
    }
    println!("owners: {owners:?}");

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
    for (tenant, owner) in owners {
        let answer = balance
            .clone()
            .oneshot(Query {
                tenant: Some(tenant),
            })
            .await?;
        println!("{tenant} was with {owner} and is with {answer}");
        assert!(answer == owner || owner == "amber");
    }
    Ok(())
}
