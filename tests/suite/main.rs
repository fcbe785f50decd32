//! The behaviour of the crate, through its public API: a folder for each module of the crate.
//!
//! Tests named `b01_…` are cases that went wrong in other load balancers: `tests/CASES.md` lists
//! them.

mod balance;
mod call;
mod cases;
mod checks;
mod cluster;
mod discover;
mod health;
mod http;
mod load;
mod observe;
mod policy;
mod support;

// Short paths to what many tests share.
use support::{bed, body_bed, fleet, keyed_bed, probes, servers, table};
