//! Checks by the standard gRPC health service.

use std::{future::Future, pin::Pin};

use tonic::{
    body::Body,
    client::GrpcService,
    codegen::{Body as HttpBody, Bytes, StdError},
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use super::Probe;
use crate::{endpoint::Target, error::BoxError};

/// Returns a probe that passes if `grpc.health.v1.Health` reports a service as `SERVING`.
///
/// The empty name stands for the whole server. The probe is for targets that hold their own channel,
/// such as [`Direct`](crate::Direct). Source: the gRPC health checking protocol.
///
/// ```
/// use counterpoise::checks::{grpc_health, Checks};
///
/// let checks = Checks::new(grpc_health("helloworld.Greeter"));
/// ```
#[must_use]
pub fn grpc_health(service: &str) -> GrpcHealth {
    GrpcHealth {
        service: service.to_owned(),
    }
}

/// The probe that [`grpc_health()`] returns.
#[derive(Debug, Clone)]
pub struct GrpcHealth {
    service: String,
}

impl<T> Probe<T> for GrpcHealth
where
    T: Target<()>,
    T::Service: GrpcService<Body> + Send + 'static,
    <T::Service as GrpcService<Body>>::Error: Into<StdError>,
    <T::Service as GrpcService<Body>>::Future: Send,
    <T::Service as GrpcService<Body>>::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <<T::Service as GrpcService<Body>>::ResponseBody as HttpBody>::Error: Into<StdError> + Send,
{
    type Future = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;

    fn probe(&self, _name: &str, target: &T) -> Self::Future {
        let mut client = HealthClient::new(target.attach(&()));
        let request = HealthCheckRequest {
            service: self.service.clone(),
        };
        Box::pin(async move {
            match client.check(request).await?.into_inner().status() {
                ServingStatus::Serving => Ok(()),
                status => Err(format!("the health service reports {status:?}").into()),
            }
        })
    }
}
