//! Passive health: ejections, trials, limits, push-back, slow start.

mod capacity_attacks;
mod comparisons;
mod ejection;
mod envoy_outliers;
mod envoy_rates;
mod limit_attacks;
pub(crate) mod limits;
mod overload;
mod retried_trials;
mod scripts;
pub(crate) mod slow_start;
mod slow_start_shares;
mod trials;
