//! When a call is over and what its result means: the judges, and the response future.

pub(crate) mod attempts;
pub(crate) mod deadline;
pub(crate) mod exclusions;
pub(crate) mod future;
pub(crate) mod guard;
pub(crate) mod judge;
pub(crate) mod pick;
pub(crate) mod sequence;
mod trial;
mod unready;
mod view;
pub(crate) mod wait;

pub use attempts::AttemptsService;
pub use future::ResponseFuture;
pub use judge::{AtHead, Implied, Judge};
