//! A gRPC endpoint that brings its own channel.

use crate::{
    endpoint::Target,
    http::{AtBodyEnd, Grpc},
};

/// A gRPC endpoint that brings its own channel, such as tonic's `Channel`, and ignores the shared
/// client.
///
/// Like [`Direct`](crate::Direct), but judged by [`Grpc`] statuses, in the head or in the trailers:
/// `UNAVAILABLE`, for example, is a failure. A generated client takes the balancer in place of a
/// channel. Each call clones the channel, which must be `Send` and `Sync`.
///
/// ```
/// use counterpoise::{discover, http::GrpcChannel, policy::RoundRobin, Balance, Endpoint};
/// use tonic::transport::Channel;
///
/// # fn run() {
/// let channels = ["http://10.0.0.1:50051", "http://10.0.0.2:50051"]
///     .map(|uri| (uri, Endpoint::new(GrpcChannel(Channel::from_static(uri).connect_lazy()))));
/// let channel = Balance::new(discover::list(channels), RoundRobin::new());
/// // let greeter = GreeterClient::new(channel);
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a transparent wrapper by intent")]
pub struct GrpcChannel<S>(pub S);

#[diagnostic::do_not_recommend]
impl<S: Clone, C> Target<C> for GrpcChannel<S> {
    type Service = S;
    type Judge = AtBodyEnd<Grpc>;

    fn attach(&self, _client: &C) -> S {
        self.0.clone()
    }
}
