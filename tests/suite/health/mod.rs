//! Passive health: ejections, trials, limits, push-back, slow start.

mod adversary;
mod capacity_attacks;
mod comparisons;
mod ejection;
mod envoy;
mod limit_attacks;
pub(crate) mod limits;
mod membership;
mod overload;
mod panic_mode;
mod retried_trials;
mod scripts;
pub(crate) mod slow_start;
mod slow_start_shares;
mod trials;
mod unready_trials;
