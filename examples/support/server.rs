//! HTTP servers on the loopback interface that can hang, slow down, fail and stop.

use std::{
    convert::Infallible,
    future::pending,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use counterpoise::http::Origin;
use http_body_util::Full;
use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    header::{HeaderValue, RETRY_AFTER},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::oneshot,
    task::{JoinHandle, JoinSet},
    time::sleep,
};

/// An HTTP server that answers every request with its name.
#[derive(Debug)]
pub(crate) struct Server {
    name: &'static str,
    address: SocketAddr,
    manner: Arc<Manner>,
    /// While it serves, which ends when the sender is dropped.
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    /// While it does not serve: bound, so that no other process gets the port, but not listening, so
    /// connections are refused.
    port: Option<TcpSocket>,
}

/// How a server answers.
#[derive(Debug)]
struct Manner {
    hung: AtomicBool,
    delay_ms: AtomicU64,
    status: AtomicU16,
}

impl Default for Manner {
    fn default() -> Self {
        Self {
            hung: false.into(),
            delay_ms: 0.into(),
            status: 200.into(),
        }
    }
}

impl Server {
    /// Starts a server on a free port of 127.0.0.1.
    pub(crate) fn start(name: &'static str) -> io::Result<Self> {
        let socket = bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let address = socket.local_addr()?;
        let mut server = Self {
            name,
            address,
            manner: Arc::default(),
            running: None,
            port: Some(socket),
        };
        server.come_back()?;
        Ok(server)
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the URL of the server as a target.
    pub(crate) fn origin(&self) -> Origin {
        format!("http://{}", self.address)
            .parse()
            .expect("an address makes an origin")
    }

    /// Accepts requests from now on without an answer.
    pub(crate) fn hang(&self) {
        self.manner.hung.store(true, Ordering::Relaxed);
    }

    /// Delays each answer from now on.
    pub(crate) fn slow_down(&self, delay: Duration) {
        self.manner
            .delay_ms
            .store(delay.as_millis() as u64, Ordering::Relaxed);
    }

    /// Answers with this status from now on; 429 comes with a `Retry-After` of one second.
    pub(crate) fn answer_with(&self, status: u16) {
        self.manner.status.store(status, Ordering::Relaxed);
    }

    /// Closes the listener and all connections, as the end of a process does.
    pub(crate) async fn die(&mut self) -> io::Result<()> {
        if let Some((stop, task)) = self.running.take() {
            drop(stop);
            task.await?;
            self.port = Some(bind(self.address)?);
        }
        Ok(())
    }

    /// Serves again, on the same port.
    pub(crate) fn come_back(&mut self) -> io::Result<()> {
        if let Some(port) = self.port.take() {
            let listener = port.listen(1024)?;
            let (stop, stopped) = oneshot::channel();
            let manner = Arc::clone(&self.manner);
            let task = tokio::spawn(accept(listener, self.name, manner, stopped));
            self.running = Some((stop, task));
        }
        Ok(())
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Accepts connections until `stopped`, then closes them.
async fn accept(
    listener: TcpListener,
    name: &'static str,
    manner: Arc<Manner>,
    mut stopped: oneshot::Receiver<()>,
) {
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => break,
            },
            _ = &mut stopped => break,
        };
        connections.spawn(serve(stream, name, Arc::clone(&manner)));
        while connections.try_join_next().is_some() {}
    }
    connections.shutdown().await;
}

/// Serves one connection to its end.
async fn serve(stream: TcpStream, name: &'static str, manner: Arc<Manner>) {
    let answer = service_fn(async |_: Request<Incoming>| {
        if manner.hung.load(Ordering::Relaxed) {
            pending::<()>().await;
        }
        let delay = Duration::from_millis(manner.delay_ms.load(Ordering::Relaxed));
        if !delay.is_zero() {
            sleep(delay).await;
        }
        let status = manner.status.load(Ordering::Relaxed);
        let mut response = Response::new(Full::new(Bytes::from_static(name.as_bytes())));
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
        if status == 429 {
            response
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        Ok::<_, Infallible>(response)
    });
    // An error of the connection also ends it.
    let _ended = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}
