//! The balancer as a whole: one call, what tower asks of it, its defaults.

mod basics;
mod defaults;
mod tower;
