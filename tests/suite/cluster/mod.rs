//! The set that all clones share: snapshots, builds, lifetimes.

mod build_attacks;
mod builds;
mod lifetime;
mod lifetime_attacks;
mod panics;
mod snapshots;
mod startup;
