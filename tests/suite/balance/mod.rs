//! The balancer as a whole: one call, what tower asks of it, its defaults.

mod basics;
mod contract;
mod defaults;
