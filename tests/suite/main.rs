//! The behaviour of the crate, through its public API: one module per subject.
//!
//! Tests named `b01_…` are cases that went wrong in other load balancers.

mod basics;
mod bed;
mod defaults;
mod health;
mod limits;
mod numbers;
mod overflow;
mod panics;
mod rotation;
mod scripts;
mod support;
mod trials;
mod weights;
