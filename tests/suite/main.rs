//! The behaviour of the crate, through its public API: one module per subject.
//!
//! Tests named `b01_…` are cases that went wrong in other load balancers.

mod basics;
mod smooth_weighted;
mod support;
mod table;

mod grpc_sockets;
mod http_sockets;
mod retried_trials;
mod servers;
mod startup;

mod contract;
mod discovery;
mod lifetime;
mod probes;
mod snapshots;
