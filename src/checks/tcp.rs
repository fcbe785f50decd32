//! Checks whether a port is open.

use std::{future::Future, pin::Pin};

use tokio::net::TcpStream;

use crate::checks::Probe;
use crate::error::BoxError;

/// Passes if a TCP connection can be made; it is closed at once. The closure says where, as
/// `host:port`, from the endpoint's name and target.
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

/// See [`tcp()`].
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
