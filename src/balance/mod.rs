//! What users hold: the layer, its builder, the service.

mod builder;
mod connect;
mod layer;
mod service;

pub use builder::Builder;
pub use layer::BalanceLayer;
pub use service::Balance;
