//! The policies that keep keys.

mod attacks;
pub(crate) mod bounded;
pub(crate) mod bounded_exact;
mod cases;
mod golden;
mod health;
mod properties;
mod shares;
mod sockets;
mod walk;
