//! A policy that is chosen while the program runs.

use std::{any::Any, fmt, sync::Arc};

use crate::load::Signals;
use crate::policy::{Choice, Claim, Pick, Policy, Turn, View};

/// Any policy for requests of type `Req`, behind one type.
///
/// Cost per pick: a virtual call more than the policy inside.
///
/// ```
/// use counterpoise::policy::{BoxPolicy, ModuloRoundRobin, RoundRobin};
///
/// fn by_name(name: &str) -> Option<BoxPolicy<String>> {
///     match name {
///         "mask" => Some(BoxPolicy::new(RoundRobin::new())),
///         "modulo" => Some(BoxPolicy::new(ModuloRoundRobin::new())),
///         _ => None,
///     }
/// }
/// # assert!(by_name("mask").is_some());
/// ```
pub struct BoxPolicy<Req: ?Sized + 'static>(Box<dyn AnyPolicy<Req>>);

/// The table of a boxed policy.
pub struct BoxTable<Req: ?Sized + 'static>(Box<dyn AnyTable<Req>>);

trait AnyPolicy<Req: ?Sized>: Send + Sync {
    fn compile(&self, view: &View<'_>, previous: Option<&dyn Any>) -> Box<dyn AnyTable<Req>>;
    fn bound(&self) -> Option<f64>;
    fn signals(&self) -> Option<Signals>;
    fn is_costly(&self, changes: usize, weight: u64) -> bool;
}

trait AnyTable<Req: ?Sized>: Send + Sync {
    fn pick(&self, request: &Req, turn: &Turn<'_>) -> Choice;
    fn claim(&self, request: &Req, open: &dyn Fn(usize) -> bool) -> Claim;
    fn table(&self) -> &dyn Any;
}

/// A policy beside its table, so that a pick needs no downcast.
struct Bound<P: Policy> {
    policy: Arc<P>,
    table: P::Table,
}

impl<Req: ?Sized + 'static> BoxPolicy<Req> {
    /// Boxes a policy.
    pub fn new<P: Pick<Req>>(policy: P) -> Self {
        Self(Box::new(Arc::new(policy)))
    }
}

impl<Req: ?Sized, P: Pick<Req>> AnyPolicy<Req> for Arc<P> {
    fn compile(&self, view: &View<'_>, previous: Option<&dyn Any>) -> Box<dyn AnyTable<Req>> {
        let previous = previous.and_then(<dyn Any>::downcast_ref);
        let table = P::compile(self, view, previous);
        Box::new(Bound { policy: Self::clone(self), table })
    }

    fn bound(&self) -> Option<f64> {
        P::bound(self)
    }

    fn signals(&self) -> Option<Signals> {
        P::signals(self)
    }

    fn is_costly(&self, changes: usize, weight: u64) -> bool {
        P::is_costly(self, changes, weight)
    }
}

impl<Req: ?Sized, P: Pick<Req>> AnyTable<Req> for Bound<P> {
    fn pick(&self, request: &Req, turn: &Turn<'_>) -> Choice {
        self.policy.pick(&self.table, request, turn)
    }

    fn claim(&self, request: &Req, open: &dyn Fn(usize) -> bool) -> Claim {
        self.policy.claim(&self.table, request, open)
    }

    fn table(&self) -> &dyn Any {
        &self.table
    }
}

impl<Req: ?Sized + 'static> Policy for BoxPolicy<Req> {
    type Table = BoxTable<Req>;

    fn compile(&self, view: &View<'_>, previous: Option<&Self::Table>) -> Self::Table {
        BoxTable(self.0.compile(view, previous.map(|table| table.0.table())))
    }

    fn bound(&self) -> Option<f64> {
        self.0.bound()
    }

    fn signals(&self) -> Option<Signals> {
        self.0.signals()
    }

    fn is_costly(&self, changes: usize, weight: u64) -> bool {
        self.0.is_costly(changes, weight)
    }
}

impl<Req: ?Sized + 'static> Pick<Req> for BoxPolicy<Req> {
    fn pick(&self, table: &Self::Table, request: &Req, turn: &Turn<'_>) -> Choice {
        table.0.pick(request, turn)
    }

    fn claim(&self, table: &Self::Table, request: &Req, open: &dyn Fn(usize) -> bool) -> Claim {
        table.0.claim(request, open)
    }
}

impl<Req: ?Sized> fmt::Debug for BoxPolicy<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoxPolicy").finish_non_exhaustive()
    }
}

impl<Req: ?Sized> fmt::Debug for BoxTable<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoxTable").finish_non_exhaustive()
    }
}
