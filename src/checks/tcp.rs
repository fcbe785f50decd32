//! Checks by TCP connections.

use std::{future::Future, pin::Pin};

use tokio::net::TcpStream;

use super::Probe;
use crate::error::BoxError;

/// Returns a probe that passes if a TCP connection can be opened, and then closes it.
///
/// The closure returns the address as `host:port`, from the endpoint's name and target.
///
/// ```
/// use counterpoise::checks::{tcp, Checks};
///
/// // The endpoints' keys are socket addresses.
/// let checks = Checks::new(tcp(|name: &str, _: &counterpoise::Direct<()>| name.to_owned()));
/// ```
#[must_use]
pub const fn tcp<T, F>(address: F) -> Tcp<F>
where
    F: Fn(&str, &T) -> String + Send + Sync + 'static,
{
    Tcp(address)
}

/// The probe that [`tcp()`] returns.
#[derive(Debug, Clone, Copy)]
pub struct Tcp<F>(F);

impl<T, F> Probe<T> for Tcp<F>
where
    F: Fn(&str, &T) -> String + Send + Sync + 'static,
{
    type Future = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;

    fn probe(&self, name: &str, target: &T) -> Self::Future {
        let address = (self.0)(name, target);
        Box::pin(async move {
            TcpStream::connect(address).await?;
            Ok(())
        })
    }
}
