//! A policy that is chosen at run time.

use std::{any::Any, fmt};

use super::{Candidates, Members, Needs, PickContext, PickResult, Picker, Policy};

/// Any policy for requests of type `Req`, behind one type.
///
/// Cost per pick and per build: those of the policy inside and a virtual call, for a build an
/// allocation too.
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

/// The picker of a [`BoxPolicy`]: picks as the picker inside does.
#[allow(
    unnameable_types,
    reason = "users name it as `<BoxPolicy<Req> as Policy>::Picker`"
)]
pub struct BoxPicker<Req: ?Sized + 'static>(Box<dyn AnyPicker<Req>>);

/// A policy whose pickers are boxed. The methods have other names than those of [`Policy`], so that
/// calls are not ambiguous.
trait AnyPolicy<Req: ?Sized>: Send + Sync {
    fn build_boxed(&self, members: &Members<'_>, previous: Option<&dyn Any>) -> BoxPicker<Req>;

    fn needs_inside(&self) -> Needs;
}

/// A picker that a later build can downcast to its type.
trait AnyPicker<Req: ?Sized>: Picker<Req> + Any + Send + Sync {}

impl<Req: ?Sized, K: Picker<Req> + Any + Send + Sync> AnyPicker<Req> for K {}

impl<Req: ?Sized, P> AnyPolicy<Req> for P
where
    P: Policy,
    P::Picker: Picker<Req>,
{
    fn build_boxed(&self, members: &Members<'_>, previous: Option<&dyn Any>) -> BoxPicker<Req> {
        BoxPicker(Box::new(
            self.build(members, previous.and_then(<dyn Any>::downcast_ref)),
        ))
    }

    fn needs_inside(&self) -> Needs {
        self.needs()
    }
}

impl<Req: ?Sized + 'static> BoxPolicy<Req> {
    /// Boxes a policy.
    pub fn new<P>(policy: P) -> Self
    where
        P: Policy,
        P::Picker: Picker<Req>,
    {
        Self(Box::new(policy))
    }
}

impl<Req: ?Sized + 'static> Policy for BoxPolicy<Req> {
    type Picker = BoxPicker<Req>;

    fn build(&self, members: &Members<'_>, previous: Option<&Self::Picker>) -> Self::Picker {
        self.0
            .build_boxed(members, previous.map(|picker| &*picker.0 as &dyn Any))
    }

    fn needs(&self) -> Needs {
        self.0.needs_inside()
    }
}

impl<Req: ?Sized + 'static> Picker<Req> for BoxPicker<Req> {
    fn pick(&self, request: &Req, cx: &PickContext<'_>) -> PickResult {
        self.0.pick(request, cx)
    }

    fn candidates(&self, request: &Req, cx: &PickContext<'_>, skip: usize, out: &mut Candidates) {
        self.0.candidates(request, cx, skip, out);
    }
}

impl<Req: ?Sized> fmt::Debug for BoxPolicy<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoxPolicy").finish_non_exhaustive()
    }
}

impl<Req: ?Sized> fmt::Debug for BoxPicker<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoxPicker").finish_non_exhaustive()
    }
}
