//! Statuses, bodies and real servers.

mod adversary;
mod bodies;
mod clients;
mod grpc;
mod grpc_streams;
pub(crate) mod statuses;
mod streams;
