//! The layer, its builder and the service.

mod builder;
mod connect;
mod layer;
mod service;

pub use builder::Builder;
pub use layer::BalanceLayer;
pub use service::Balance;
