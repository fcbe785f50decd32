//! Errors of settings.

use std::{error::Error as StdError, fmt};

/// A setting whose value is not accepted, found when the balancer is built.
///
/// The message names the setting and the accepted values. The request path never returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    field: &'static str,
    problem: &'static str,
}

impl ConfigError {
    pub(crate) const fn new(field: &'static str, problem: &'static str) -> Self {
        Self { field, problem }
    }

    /// Returns an error about a setting, unless its value is accepted.
    pub(crate) fn require(
        accepted: bool,
        field: &'static str,
        problem: &'static str,
    ) -> Result<(), Self> {
        if accepted {
            Ok(())
        } else {
            Err(Self::new(field, problem))
        }
    }

    /// Returns the name of the setting's setter.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        self.field
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.field, self.problem)
    }
}

impl StdError for ConfigError {}
