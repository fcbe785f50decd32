//! The behaviour of the crate, through its public API: one module per subject.
//!
//! Tests named `b01_…` are cases that went wrong in other load balancers.

mod basics;
mod support;

mod contract;
mod discovery;
mod lifetime;
mod probes;
mod snapshots;
