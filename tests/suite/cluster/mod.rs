//! The set that all clones share: snapshots, builds, lifetimes.

mod adversary;
mod build_attacks;
mod builds;
mod drivers;
mod lifetime_attacks;
mod memory;
mod panics;
mod snapshots;
mod startup;
