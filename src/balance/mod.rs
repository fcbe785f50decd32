//! Calls over the endpoints: the read side.

mod attempts;
mod avoid;
mod builder;
mod choose;
mod future;
mod layer;
mod look;
mod patience;
mod room;
mod service;
mod waiting;

pub use attempts::{Attempts, AttemptsLayer, AttemptsService};
pub use builder::Builder;
pub use future::ResponseFuture;
pub use layer::BalanceLayer;
pub use service::Balance;
