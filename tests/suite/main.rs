//! The behaviour of the crate, through its public API: a folder for each room of the crate.
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
use call::attacks as adversary_waiting;
use health::{limits, slow_start};
use http::statuses as http_bodies;
use observe::event_attacks as adversary_events;
use policy::affinity::{bounded as keyed_bounded, bounded_exact as keyed_bounded_exact};
use support::{bed, body_bed, fleet, keyed_bed, numbers, outlier_bed, probes, servers, table};
