//! Calls that wait, are retried and end.

pub(crate) mod attacks;
