//! One endpoint's health: what counts, when it is ejected, how it comes back.
//!
//! Rules here are pure: time, chance and settings are arguments.

pub(crate) mod ejection;
mod outcome;
mod settings;
pub(crate) mod standing;

pub use outcome::Outcome;
pub use settings::{Health, Panic};
