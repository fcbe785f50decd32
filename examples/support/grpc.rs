//! Servers of the standard gRPC health service, on the loopback interface.

use std::net::SocketAddr;

use counterpoise::BoxError;
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{self, Server};
use tonic_health::{
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};

/// A server that runs.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) health: HealthReporter,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), transport::Error>>,
}

/// Serves gRPC health on a free port.
pub(crate) async fn serve() -> Result<Running, BoxError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let health = HealthReporter::new();
    let service = HealthServer::new(HealthService::from_health_reporter(health.clone()));
    let (stop, stopped) = oneshot::channel();
    let server = Server::builder()
        .add_service(service)
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), async {
            // Also ends when the sender is dropped.
            let _stopped = stopped.await;
        });
    Ok(Running {
        address,
        health,
        stop,
        task: tokio::spawn(server),
    })
}

impl Running {
    /// Closes the listener, and the connections once their calls have ended.
    pub(crate) async fn stop(self) -> Result<(), BoxError> {
        let _already_stopped = self.stop.send(());
        Ok(self.task.await??)
    }
}
