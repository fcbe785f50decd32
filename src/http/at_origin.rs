//! A client that sends requests to one origin.

use std::task::{Context, Poll};

use http::Request;
use tower_service::Service;

use super::{Origin, Status};
use crate::{call::AtHead, endpoint::Target};

#[diagnostic::do_not_recommend]
impl<C: Clone> Target<C> for Origin {
    type Service = AtOrigin<C>;
    type Judge = AtHead<Status>;

    fn attach(&self, client: &C) -> AtOrigin<C> {
        AtOrigin {
            origin: self.clone(),
            client: client.clone(),
        }
    }
}

/// A client that sends each request to an [`Origin`]: the service of that target.
#[derive(Debug, Clone)]
pub struct AtOrigin<C> {
    pub(super) origin: Origin,
    pub(super) client: C,
}

pub(super) mod sealed {
    use std::{
        future::Future,
        task::{Context, Poll},
    };

    use tower_service::Service;

    /// A client under the balancer that takes these requests.
    #[allow(unnameable_types, reason = "it exists for the compiler's message")]
    #[diagnostic::on_unimplemented(
        message = "`{Self}` is not a client for requests of type `{Req}`",
        label = "an `http::Origin` needs a client under the balancer",
        note = "an `http::Origin` is reached through the client that `BalanceLayer` wraps: use `BalanceLayer`, not `Balance::new`",
        note = "clients of `http::Request` need counterpoise's feature `http`, `reqwest::Client` the feature `reqwest`"
    )]
    pub trait Client<Req> {
        type Response;
        type Error;
        type Future: Future<Output = Result<Self::Response, Self::Error>>;

        fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>>;

        fn call(&mut self, request: Req) -> Self::Future;
    }

    #[diagnostic::do_not_recommend]
    impl<C: Service<Req>, Req> Client<Req> for C {
        type Response = C::Response;
        type Error = C::Error;
        type Future = C::Future;

        fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
            Service::poll_ready(self, cx)
        }

        fn call(&mut self, request: Req) -> C::Future {
            Service::call(self, request)
        }
    }
}

impl<C, B> Service<Request<B>> for AtOrigin<C>
where
    C: sealed::Client<Request<B>>,
{
    type Response = C::Response;
    type Error = C::Error;
    type Future = C::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
        self.client.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> C::Future {
        // Fails only for a path beyond the length limit of a URI. The URI then has no authority,
        // so clients refuse the request, and it goes to no other server.
        let _too_long = self.origin.redirect(&mut request);
        self.client.call(request)
    }
}
