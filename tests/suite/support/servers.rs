//! Real servers on the loopback interface that do what a test tells them.

use std::{
    convert::Infallible,
    fmt,
    future::{Future, pending},
    iter,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use counterpoise::{BoxError, Endpoint, http::Origin};
use futures::{Stream, StreamExt, stream};
use http_body_util::Full;
use hyper::{
    HeaderMap, Request, Response,
    body::{Body, Incoming},
    header::HOST,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::oneshot,
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use tonic::Status;
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_check_response::ServingStatus,
    health_server::{Health, HealthServer},
};

/// A server of one test.
pub(crate) struct Server {
    address: SocketAddr,
    manner: Arc<Manner>,
    start: Start,
    /// While it is up.
    running: Option<Running>,
    /// While it is down: bound, so that no other test gets the port, but not listening.
    /// Connections are refused.
    port: Option<TcpSocket>,
}

type Start = Box<dyn Fn(TcpListener, Arc<Manner>) -> Running + Send + Sync>;

/// What a server does with requests, and how many it has seen.
#[derive(Debug)]
struct Manner {
    name: &'static str,
    hung: AtomicBool,
    requests: AtomicUsize,
}

/// A task that accepts connections until the sender is dropped.
#[derive(Debug)]
struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// The address of a server that is to be told by the system.
const ANY: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

impl Server {
    /// Starts a server of HTTP/1 and HTTP/2 that answers with what it has seen.
    pub(crate) fn http(name: &'static str) -> Self {
        Self::new(name, |listener, manner| {
            let service = service_fn(move |request| answer(Arc::clone(&manner), request));
            Running::spawn(listener, service)
        })
    }

    /// Starts a server of the gRPC health service that names itself in the metadata.
    pub(crate) fn grpc(name: &'static str) -> Self {
        Self::new(name, |listener, manner| {
            let service = TowerToHyperService::new(HealthServer::new(Doctor(manner)));
            Running::spawn(listener, service)
        })
    }

    /// Starts a server of HTTP/1 and HTTP/2 that answers with this.
    pub(crate) fn answering<A, B>(name: &'static str, answer: A) -> Self
    where
        A: Fn() -> Response<B> + Clone + Send + Sync + 'static,
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        Self::new(name, move |listener, manner| {
            let answer = answer.clone();
            let service = service_fn(move |_request| {
                let (manner, answer) = (Arc::clone(&manner), answer.clone());
                async move {
                    manner.receive().await;
                    Ok::<_, Infallible>(answer())
                }
            });
            Running::spawn(listener, service)
        })
    }

    fn new(
        name: &'static str,
        start: impl Fn(TcpListener, Arc<Manner>) -> Running + Send + Sync + 'static,
    ) -> Self {
        let start = Box::new(start);
        let socket = bind(ANY.into());
        let address = socket.local_addr().unwrap();
        let manner = Manner {
            name,
            hung: false.into(),
            requests: 0.into(),
        };
        let manner = Arc::new(manner);
        let mut server = Self {
            address,
            manner,
            start,
            running: None,
            port: Some(socket),
        };
        server.restart();
        server
    }

    pub(crate) fn name(&self) -> &'static str {
        self.manner.name
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the server's URL, without a slash at its end.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn origin(&self) -> Origin {
        self.url().parse().unwrap()
    }

    /// Returns what discovery yields for this server.
    pub(crate) fn entry(&self) -> (&'static str, Endpoint<Origin>) {
        (self.name(), Endpoint::new(self.origin()))
    }

    /// Returns how many requests have come.
    pub(crate) fn requests(&self) -> usize {
        self.manner.requests.load(Ordering::SeqCst)
    }

    /// Sets whether requests that come from now on are left without an answer.
    pub(crate) fn hang(&self, hung: bool) {
        self.manner.hung.store(hung, Ordering::SeqCst);
    }

    /// Closes the listener and all connections. The port refuses connections until the
    /// server is [restarted](Self::restart).
    pub(crate) async fn kill(&mut self) {
        if let Some(Running { stop, task }) = self.running.take() {
            drop(stop);
            task.await.unwrap();
            self.port = Some(bind(self.address));
        }
    }

    /// Serves again, at the same port.
    pub(crate) fn restart(&mut self) {
        if let Some(port) = self.port.take() {
            let listener = port.listen(1024).unwrap();
            self.running = Some((self.start)(listener, Arc::clone(&self.manner)));
        }
    }
}

impl Manner {
    /// Notes a request, and never returns if it is to be left without an answer.
    async fn receive(&self) {
        self.requests.fetch_add(1, Ordering::SeqCst);
        if self.hung.load(Ordering::SeqCst) {
            pending::<()>().await;
        }
    }
}

fn bind(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

impl Running {
    fn spawn<S, B>(listener: TcpListener, service: S) -> Self
    where
        S: Service<Request<Incoming>, Response = Response<B>, Future: Send>,
        S: Clone + Send + 'static,
        S::Error: Into<BoxError>,
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel();
        Self {
            stop,
            task: tokio::spawn(accept(listener, service, stopped)),
        }
    }
}

/// Accepts connections, and owns them: when this ends, they are closed.
async fn accept<S, B>(listener: TcpListener, service: S, mut stopped: oneshot::Receiver<()>)
where
    S: Service<Request<Incoming>, Response = Response<B>, Future: Send, Error: Into<BoxError>>,
    S: Clone + Send + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted.unwrap().0,
            _ = &mut stopped => break,
        };
        let service = service.clone();
        connections.spawn(async move {
            let server = auto::Builder::new(TokioExecutor::new());
            // How a connection ends is the client's business.
            let _ended = server.serve_connection(TokioIo::new(stream), service).await;
        });
        while connections.try_join_next().is_some() {}
    }
    connections.shutdown().await;
}

async fn answer(
    manner: Arc<Manner>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    manner.receive().await;
    let host = request
        .headers()
        .get(HOST)
        .and_then(|host| host.to_str().ok());
    let response = Response::builder()
        .header("x-name", manner.name)
        .header(
            "x-path",
            request
                .uri()
                .path_and_query()
                .map_or("", |path| path.as_str()),
        )
        .header("x-host", host.unwrap_or_default());
    Ok(response.body(Full::from(manner.name)).unwrap())
}

/// What an HTTP server has seen of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) host: String,
}

impl Seen {
    /// Reads it from the headers of a response.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let text = |name: &str| headers[name].to_str().unwrap().to_owned();
        Self {
            name: text("x-name"),
            path: text("x-path"),
            host: text("x-host"),
        }
    }
}

/// The gRPC health service of a server.
#[derive(Debug, Clone)]
struct Doctor(Arc<Manner>);

impl Doctor {
    fn respond<T>(&self, message: T) -> tonic::Response<T> {
        let mut response = tonic::Response::new(message);
        response
            .metadata_mut()
            .insert("x-name", self.0.name.parse().unwrap());
        response
    }
}

fn report(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

#[tonic::async_trait]
impl Health for Doctor {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(
        &self,
        request: tonic::Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<HealthCheckResponse>, Status> {
        self.0.receive().await;
        match request.into_inner().service.as_str() {
            "" => Ok(self.respond(report(ServingStatus::Serving))),
            other => Err(Status::not_found(other)),
        }
    }

    /// Three messages, and then a stream that stays open.
    async fn watch(
        &self,
        _request: tonic::Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<Self::WatchStream>, Status> {
        self.0.receive().await;
        let messages = [
            ServingStatus::Serving,
            ServingStatus::NotServing,
            ServingStatus::Serving,
        ];
        let messages = stream::iter(messages.map(|status| Ok(report(status))));
        Ok(self.respond(Box::pin(messages.chain(stream::pending()))))
    }
}

/// Waits for what must come soon. A net against hanging tests, not a measurement.
pub(crate) async fn soon<F: Future>(future: F) -> F::Output {
    timeout(Duration::from_secs(60), future)
        .await
        .expect("something hangs")
}

/// Waits until something is so.
pub(crate) async fn until(so: impl Fn() -> bool) {
    let wait = async {
        while !so() {
            tokio::task::yield_now().await;
        }
    };
    soon(wait).await;
}

/// Returns the sources of an error, and itself first.
pub(crate) fn chain<'e>(
    error: &'e (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'e (dyn std::error::Error + 'static)> {
    iter::successors(Some(error), |error| error.source())
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("manner", &self.manner)
            .finish_non_exhaustive()
    }
}
