//! Real HTTP servers on the loopback interface, with a few ways to misbehave.

use std::{
    convert::Infallible,
    future::pending,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use counterpoise::http::Origin;
use http_body_util::Full;
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    task::{JoinHandle, JoinSet},
};

/// An HTTP server that answers every request with its name.
#[derive(Debug)]
pub(crate) struct Server {
    name: &'static str,
    address: SocketAddr,
    hung: Arc<AtomicBool>,
    state: State,
}

#[derive(Debug)]
enum State {
    Up(JoinHandle<()>),
    /// Bound, so that nobody else gets the port, but not listening: connections are refused.
    Down(Option<TcpSocket>),
}

impl Server {
    /// Starts a server on a free port of 127.0.0.1.
    pub(crate) fn start(name: &'static str) -> io::Result<Self> {
        let socket = bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let address = socket.local_addr()?;
        let state = State::Down(Some(socket));
        let mut server = Self { name, address, hung: Arc::default(), state };
        server.come_back()?;
        Ok(server)
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns where the server is, as a target for a balancer.
    pub(crate) fn origin(&self) -> Origin {
        format!("http://{}", self.address).parse().expect("an address makes an origin")
    }

    /// From now on accepts requests and never answers them.
    pub(crate) fn hang(&self) {
        self.hung.store(true, Ordering::Relaxed);
    }

    /// Closes the listener and all connections, as a process that dies does.
    pub(crate) async fn die(&mut self) -> io::Result<()> {
        if let State::Up(task) = &mut self.state {
            task.abort();
            // Cancelled, as wanted. From here on the sockets are closed.
            let _cancelled = task.await;
            self.state = State::Down(Some(bind(self.address)?));
        }
        Ok(())
    }

    /// Serves again, on the same port.
    pub(crate) fn come_back(&mut self) -> io::Result<()> {
        if let State::Down(socket) = &mut self.state
            && let Some(socket) = socket.take()
        {
            let listener = socket.listen(1024)?;
            let task = tokio::spawn(accept(listener, self.name, Arc::clone(&self.hung)));
            self.state = State::Up(task);
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let State::Up(task) = &self.state {
            task.abort();
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Accepts connections, and owns them: when this ends, they are closed.
async fn accept(listener: TcpListener, name: &'static str, hung: Arc<AtomicBool>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(serve(stream, name, Arc::clone(&hung)));
        while connections.try_join_next().is_some() {}
    }
}

/// Serves one connection to its end.
async fn serve(stream: TcpStream, name: &'static str, hung: Arc<AtomicBool>) {
    let answer = service_fn(async |_: Request<Incoming>| {
        if hung.load(Ordering::Relaxed) {
            pending::<()>().await;
        }
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(name.as_bytes()))))
    });
    // How a connection ends is the client's business.
    let _ended = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
}
