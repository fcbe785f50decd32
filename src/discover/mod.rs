//! Where endpoints come from: the write side.
//!
//! Any tower [`Discover`](tower::discover::Discover) will do: a stream of
//! [`Change`](tower::discover::Change)s that insert or remove endpoints by key. This module
//! has two ready-made ones: a fixed [`list()`] and a [`channel()`] with a handle.

mod channel;
pub(crate) mod driver;
mod list;
mod source;

pub use crate::endpoint::Labels;
pub use channel::{Changes, Handle, channel};
pub use driver::Driver;
pub use list::{List, list};
pub use source::Source;
