//! The settings of a balancer, except for its policy.

use std::time::Duration;

use crate::{
    error::ConfigError,
    event::Listener,
    health::settings::Health,
    util::{random, time::YEAR},
};

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) health: Health,
    pub(crate) wait_for_endpoints: Duration,
    pub(crate) wait_when_empty: bool,
    pub(crate) wait_for_ready: Duration,
    pub(crate) max_waiting: usize,
    pub(crate) keep_last: bool,
    pub(crate) seed: Option<u64>,
    pub(crate) starting_at: Option<u64>,
    pub(crate) listeners: Vec<Listener>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            health: Health::default(),
            wait_for_endpoints: Duration::from_secs(5),
            wait_when_empty: false,
            wait_for_ready: Duration::from_secs(30),
            max_waiting: 10_000,
            keep_last: false,
            seed: None,
            starting_at: None,
            listeners: Vec::new(),
        }
    }
}

impl Settings {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        self.health.validate()?;
        let waits = [
            ("wait_for_endpoints", self.wait_for_endpoints),
            ("wait_for_ready", self.wait_for_ready),
        ];
        match waits.iter().find(|(_, wait)| *wait > YEAR) {
            Some((field, _)) => Err(ConfigError::new(field, "must be at most a year")),
            None => Ok(()),
        }
    }

    /// Returns the seed and the first ticket of one balancer; those that are not set are random.
    pub(crate) fn draw(&self) -> (u64, u64) {
        let seed = self.seed.unwrap_or_else(random::entropy);
        (
            seed,
            self.starting_at.unwrap_or_else(|| random::splitmix64(seed)),
        )
    }
}
