//! What happens and how things stand, for the usual tools. Behind features.

#[cfg(feature = "metrics")]
pub(crate) mod metrics;
#[cfg(feature = "tracing")]
pub(crate) mod tracing;
