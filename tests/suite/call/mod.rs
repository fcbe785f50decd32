//! Calls that wait, are retried and end.

mod adversary;
pub(crate) mod attacks;
mod panics;
mod preferences;
mod readiness;
mod refusals;
mod retries;
mod spinning_attacks;
mod waiting;
mod waiting_changes;
