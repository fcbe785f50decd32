//! A balancer over real servers sends thousands of requests, none of which fails when servers do.
//!
//! Run it with `cargo run --example quickstart`. It starts three HTTP servers on 127.0.0.1
//! and spreads the requests of ten concurrent callers over them. Meanwhile one server stops
//! answering, one stops and starts again, and a fourth joins. It ends after about ten seconds.

mod support;

use std::{
    io,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use counterpoise::{
    AttemptsLayer, BalanceLayer, BoxError, Builder, ConfigError, Endpoint, Health,
    discover::{self, Changes, Handle},
    http::Origin,
    policy::RoundRobin,
};
use reqwest::{Method, Request, Response};
use support::{retries::Retries, server::Server, table::Table};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{interval, sleep, timeout},
};
use tower::{Service, ServiceBuilder, ServiceExt};

const CALLERS: u32 = 10;
const REQUESTS_EACH: u32 = 600;

/// How long one attempt may take before the request is sent to another server.
const ATTEMPT: Duration = Duration::from_millis(250);

/// The limit of the whole run, which takes about ten seconds.
const LONGEST: Duration = Duration::from_secs(15);

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    let servers = [
        Server::start("amber")?,
        Server::start("birch")?,
        Server::start("cedar")?,
    ];

    // Discovery: the handle announces servers, and the balancer follows.
    let (discovery, changes) = discover::channel();
    for server in &servers {
        discovery.insert(server.name(), Endpoint::new(server.origin()));
    }
    let balance = balance(changes)?;
    let client = client(balance.clone())?;

    let tally = Arc::new(Tally::default());
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        callers.spawn(call(client.clone(), Arc::clone(&tally)));
    }
    let (scene, latest) = watch::channel("all servers answer");
    let scenes = tokio::spawn(play(servers, discovery, scene));
    let screen = tokio::spawn(show(balance.clone(), latest, Arc::clone(&tally)));

    timeout(LONGEST, callers.join_all()).await?;
    let _servers = scenes.await??;
    screen.await??;
    println!("\n{}", balance.stats());
    Ok(tally.report())
}

/// Spreads calls over the servers that discovery announces.
fn balance(
    changes: Changes<&'static str, Origin>,
) -> Result<BalanceLayer<Origin, RoundRobin>, ConfigError> {
    let health = Health::new()
        .consecutive_failures(3)
        .base_ejection(Duration::from_millis(500))
        // Ejections grow while trials fail; short ones suit a short example.
        .max_ejection(Duration::from_secs(1))
        // A timeout above drops the call, which counts as a failure if the call was at least this
        // old: so no more than the timeout.
        .drop_counts_after(ATTEMPT);
    Builder::new()
        .health(health)
        .layer(changes, RoundRobin::new())
}

/// Builds the client of all callers. A request passes the layers from top to bottom.
fn client(
    balance: BalanceLayer<Origin, RoundRobin>,
) -> Result<impl Client<Future: Send>, reqwest::Error> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    Ok(ServiceBuilder::new()
        // Remembers the servers of a request, so that a retry goes to another.
        .layer(AttemptsLayer::new())
        .retry(Retries(3))
        // Below the retry, so that each attempt has a timeout of its own.
        .timeout(ATTEMPT)
        .layer(balance)
        .service(client))
}

/// The client of a caller: any service from request to response.
trait Client: Service<Request, Response = Response, Error = BoxError> + Clone + Send + 'static {}

impl<S> Client for S where
    S: Service<Request, Response = Response, Error = BoxError> + Clone + Send + 'static
{
}

/// Sends one caller's requests.
async fn call(client: impl Client<Future: Send>, tally: Arc<Tally>) {
    let mut pace = interval(Duration::from_millis(15));
    for _ in 0..REQUESTS_EACH {
        pace.tick().await;
        tally.note(get(client.clone()).await);
    }
}

/// Sends a request. The balancer replaces the host in the URL with the server's address, and keeps
/// path and query.
async fn get(client: impl Client) -> Result<String, BoxError> {
    let request = Request::new(Method::GET, "http://forest/tree?age=7".parse()?);
    let response = client.oneshot(request).await?.error_for_status()?;
    Ok(response.text().await?)
}

/// Changes the servers while the callers send. Returns them, so that they go on serving.
async fn play(
    [amber, mut birch, cedar]: [Server; 3],
    discovery: Handle<&'static str, Origin>,
    scene: watch::Sender<&'static str>,
) -> io::Result<[Server; 4]> {
    let pause = Duration::from_millis(1_500);
    sleep(pause).await;
    scene.send_replace("amber hangs: it accepts requests and answers none");
    amber.hang();
    sleep(pause).await;
    scene.send_replace("birch stops: its listener and its connections are closed");
    birch.die().await?;
    sleep(pause).await;
    scene.send_replace("dune is announced by discovery");
    let dune = Server::start("dune")?;
    discovery.insert(dune.name(), Endpoint::new(dune.origin()));
    sleep(pause).await;
    scene.send_replace("birch serves again");
    birch.come_back()?;
    Ok([amber, birch, cedar, dune])
}

/// Prints the balancer's statistics until all requests are done.
async fn show(
    balance: BalanceLayer<Origin, RoundRobin>,
    scene: watch::Receiver<&'static str>,
    tally: Arc<Tally>,
) -> io::Result<()> {
    let mut table = Table::new();
    let mut frame = interval(Duration::from_millis(100));
    while tally.sent() < CALLERS * REQUESTS_EACH {
        frame.tick().await;
        let headline = format!("{:>5} requests, {}", tally.sent(), *scene.borrow());
        table.draw(&headline, &balance.stats())?;
    }
    Ok(())
}

/// Counts the requests that succeeded and failed.
#[derive(Debug, Default)]
struct Tally {
    succeeded: AtomicU32,
    failed: AtomicU32,
}

impl Tally {
    fn note(&self, result: Result<String, BoxError>) {
        let counter = match result {
            Ok(_) => &self.succeeded,
            Err(error) => {
                eprintln!("a request failed: {error}");
                &self.failed
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn sent(&self) -> u32 {
        self.succeeded.load(Ordering::Relaxed) + self.failed.load(Ordering::Relaxed)
    }

    fn report(&self) -> ExitCode {
        match self.failed.load(Ordering::Relaxed) {
            0 => {
                println!("All {} requests succeeded.", self.sent());
                ExitCode::SUCCESS
            }
            failed => {
                println!("{failed} of {} requests failed.", self.sent());
                ExitCode::FAILURE
            }
        }
    }
}
