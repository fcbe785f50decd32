//! The behaviour of the crate, through its public API: one module per subject.
//!
//! Tests named `b01_…` are cases that went wrong in other load balancers.

mod adversary_affinity;
mod adversary_costly;
mod adversary_lifetime;
mod adversary_limits;
mod adversary_waiting;
mod adversary_weights;
mod basics;
mod bed;
mod contract;
mod costly;
mod defaults;
mod discovery;
mod envoy_outliers;
mod grpc_sockets;
mod health;
mod http_sockets;
mod keyed_bed;
mod keyed_bounded;
mod keyed_bounded_exact;
mod keyed_cases;
mod keyed_golden;
mod keyed_health;
mod keyed_properties;
mod keyed_shares;
mod keyed_sockets;
mod keyed_walk;
mod lifetime;
mod limits;
mod numbers;
mod outlier_bed;
mod overflow;
mod panics;
mod probes;
mod retried_trials;
mod rotation;
mod scripts;
mod servers;
mod smooth_weighted;
mod snapshots;
mod startup;
mod support;
mod table;
mod trials;
mod weights;
