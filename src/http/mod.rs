//! HTTP targets: one shared client, pointed at the endpoint that was picked.
//!
//! An [`Origin`] is a scheme and an authority, with an optional base path. Attached to a
//! client it redirects each request there: path and query are kept, and the base path is
//! put in front.
//!
//! # TLS
//!
//! The name in the URL is also what a TLS certificate is checked against. For `http://`, and
//! for endpoints that have certificates of their own names, one shared client and an
//! `Origin` per endpoint is all it takes. For several IP addresses behind *one* TLS name,
//! pointing the URL at an address would ask for the wrong certificate: give each endpoint a
//! client of its own instead, in which the name resolves to that address, with
//! [`Direct`](crate::Direct):
//!
//! ```
//! # #[cfg(feature = "reqwest")]
//! # fn endpoints() -> Result<(), reqwest::Error> {
//! use counterpoise::{discover, policy::RoundRobin, Balance, Direct, Endpoint};
//! use std::net::SocketAddr;
//!
//! let addresses = [SocketAddr::from(([10, 0, 0, 1], 443)), SocketAddr::from(([10, 0, 0, 2], 443))];
//! let mut endpoints = Vec::new();
//! for address in addresses {
//!     let client = reqwest::Client::builder().resolve("api.example.com", address).build()?;
//!     endpoints.push((address, Endpoint::new(Direct(client))));
//! }
//! // Requests to https://api.example.com/ are spread over both addresses.
//! let client = Balance::new(discover::list(endpoints), RoundRobin::new());
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
