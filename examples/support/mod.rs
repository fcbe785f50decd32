//! Servers, a retry policy and a table for the examples.

#![allow(dead_code, reason = "each example uses a part of this")]

pub(crate) mod grpc;
pub(crate) mod retries;
pub(crate) mod server;
pub(crate) mod table;
