//! The policies: order, shares, weights.

pub(crate) mod affinity;
mod distribution;
mod misbehaving;
mod overflow;
mod rotation;
mod smooth_weighted;
mod weight_attacks;
mod weights;
