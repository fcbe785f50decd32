//! HTTP and gRPC: targets, classifiers, and judges of response bodies.
//!
//! An [`Origin`] is a scheme and an authority, with an optional base path. Its service puts them into
//! the URL of each request before the shared client sends it; path and query stay.
//!
//! # TLS
//!
//! A client checks the TLS certificate against the name in the URL. For `http://`, and for
//! endpoints with certificates of their own names, use one shared client and an `Origin` per
//! endpoint. For several IP addresses behind *one* TLS name the URL must keep the name: give each
//! endpoint a client of its own, in which the name resolves to that address, with
//! [`Direct`](crate::Direct). By itself `Direct` counts only errors as failures; the classifier
//! [`Status`] adds 5xx and push-back:
//!
//! ```
//! # #[cfg(feature = "reqwest")]
//! # fn endpoints() -> Result<(), Box<dyn std::error::Error>> {
//! use counterpoise::{discover, http::Status, policy::RoundRobin, Builder, Direct, Endpoint};
//! use std::net::SocketAddr;
//!
//! let addresses = [SocketAddr::from(([10, 0, 0, 1], 443)), SocketAddr::from(([10, 0, 0, 2], 443))];
//! let mut endpoints = Vec::new();
//! for address in addresses {
//!     let client = reqwest::Client::builder().resolve("api.example.com", address).build()?;
//!     endpoints.push((address, Endpoint::new(Direct(client))));
//! }
//! // Requests to https://api.example.com/ are spread over both addresses.
//! let builder = Builder::new().classify(Status::new());
//! let client = builder.balance(discover::list(endpoints), RoundRobin::new())?;
//! # Ok(())
//! # }
//! ```

mod at_origin;
mod body;
mod channel;
mod classify;
mod grpc;
pub mod key;
mod origin;
#[cfg(feature = "reqwest")]
mod reqwest;
mod status;
#[cfg(feature = "tower-http")]
mod tower_http;

pub use at_origin::AtOrigin;
pub use body::{AtBodyEnd, AtFirstData, Tracked};
pub use channel::GrpcChannel;
pub use classify::{ClassifyBody, ClassifyEnd, GoodHead, Head};
pub use grpc::Grpc;
pub use origin::{Origin, OriginError};
pub use status::Status;
#[cfg(feature = "tower-http")]
pub use tower_http::{ByTowerHttp, TowerHttpEnd};
