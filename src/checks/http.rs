//! Checks by HTTP requests.

use std::{future::Future, marker::PhantomData, pin::Pin};

use http::{Request, Response, StatusCode};
use tower_service::Service;

use super::Probe;
use crate::{endpoint::Target, error::BoxError};

/// Returns a probe that passes if the response to `GET path` has a status from 200 to 299, or 429.
///
/// 429 passes because an endpoint that pushes back works. The body is dropped unread.
///
/// The client is a service of
/// [`http::Request`](https://docs.rs/http/1/http/request/struct.Request.html), and the body of the
/// request is `B::default()`. With a client of their own, the checks share no connections with the
/// calls.
///
/// ```
/// use counterpoise::checks::{self, Checks};
/// use counterpoise::discover;
/// use counterpoise::policy::RoundRobin;
/// use counterpoise::BalanceLayer;
/// use counterpoise::Endpoint;
/// use counterpoise::http::Origin;
/// use http::{Request, Response};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let origin = Origin::try_from("http://10.0.0.1:8080")?;
/// let layer = BalanceLayer::new(discover::list([("a", Endpoint::new(origin))]), RoundRobin::new());
/// // Any service of requests, for example hyper's client.
/// let client = tower::service_fn(async |_request: Request<String>| {
///     Ok::<_, std::io::Error>(Response::new(String::new()))
/// });
/// tokio::spawn(layer.check(Checks::new(checks::http_get(client, "/health")))?);
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn http_get<C, B>(client: C, path: &str) -> HttpGet<C, B> {
    HttpGet {
        client,
        path: path.to_owned(),
        body: PhantomData,
    }
}

/// The probe that [`http_get()`] returns.
#[derive(Debug, Clone)]
pub struct HttpGet<C, B> {
    client: C,
    path: String,
    body: PhantomData<fn() -> B>,
}

type Checking = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;

impl<T, C, B, D> Probe<T> for HttpGet<C, B>
where
    T: Target<C>,
    T::Service: Service<Request<B>, Response = Response<D>> + Send + 'static,
    <T::Service as Service<Request<B>>>::Future: Send,
    <T::Service as Service<Request<B>>>::Error: Into<BoxError>,
    C: Send + Sync + 'static,
    B: Default + Send + 'static,
    D: Send,
{
    type Future = Checking;

    fn probe(&self, _name: &str, target: &T) -> Checking {
        let (service, path) = (target.attach(&self.client), self.path.clone());
        Box::pin(async move {
            let request = Request::get(path).body(B::default())?;
            let response = call(service, request).await?;
            judge(response.status())
        })
    }
}

/// Returns the same probe as [`http_get()`], for a `reqwest::Client`.
///
/// ```
/// use counterpoise::checks::{self, Checks};
/// use counterpoise::discover;
/// use counterpoise::policy::RoundRobin;
/// use counterpoise::BalanceLayer;
/// use counterpoise::Endpoint;
/// use counterpoise::http::Origin;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let origin = Origin::try_from("http://10.0.0.1:8080")?;
/// let layer = BalanceLayer::new(discover::list([("a", Endpoint::new(origin))]), RoundRobin::new());
/// let probe = checks::reqwest_get(reqwest::Client::new(), "/health");
/// tokio::spawn(layer.check(Checks::new(probe))?);
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "reqwest")]
#[must_use]
pub fn reqwest_get(client: reqwest::Client, path: &str) -> ReqwestGet {
    ReqwestGet {
        client,
        path: path.to_owned(),
    }
}

/// The probe that [`reqwest_get()`] returns.
#[cfg(feature = "reqwest")]
#[derive(Debug, Clone)]
pub struct ReqwestGet {
    client: reqwest::Client,
    path: String,
}

#[cfg(feature = "reqwest")]
impl<T> Probe<T> for ReqwestGet
where
    T: Target<reqwest::Client>,
    T::Service: Service<reqwest::Request, Response = reqwest::Response> + Send + 'static,
    <T::Service as Service<reqwest::Request>>::Future: Send,
    <T::Service as Service<reqwest::Request>>::Error: Into<BoxError>,
{
    type Future = Checking;

    fn probe(&self, _name: &str, target: &T) -> Checking {
        // The origin replaces this scheme and authority by its own.
        let url = reqwest::Url::parse("http://endpoint/").and_then(|base| base.join(&self.path));
        let service = target.attach(&self.client);
        Box::pin(async move {
            let request = reqwest::Request::new(reqwest::Method::GET, url?);
            judge(call(service, request).await?.status())
        })
    }
}

fn judge(status: StatusCode) -> Result<(), BoxError> {
    if status.is_success() || status == StatusCode::TOO_MANY_REQUESTS {
        return Ok(());
    }
    Err(format!("the status of the check was {status}").into())
}

/// Waits until a service is ready, and calls it.
async fn call<S, Req>(mut service: S, request: Req) -> Result<S::Response, BoxError>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
{
    std::future::poll_fn(|cx| service.poll_ready(cx))
        .await
        .map_err(Into::into)?;
    service.call(request).await.map_err(Into::into)
}
