//! Sources of endpoints.
//!
//! A source is any tower [`Discover`](tower::discover::Discover): a stream of
//! [`Change`](tower::discover::Change)s that insert or remove endpoints by key. This module has
//! two: [`list()`], a fixed set, and [`channel()`], a set that the program changes through a
//! handle.

mod channel;
pub(crate) mod driver;
mod list;
mod source;

pub use crate::endpoint::Labels;
pub use channel::{Changes, Handle, channel};
pub use driver::Driver;
pub use list::{List, list};
pub use source::Source;
