//! What the examples need besides a balancer: servers to call, and something to look at.

#![allow(dead_code, reason = "each example uses a part of this")]

pub(crate) mod grpc;
pub(crate) mod retries;
pub(crate) mod server;
pub(crate) mod table;
