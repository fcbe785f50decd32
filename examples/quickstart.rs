//! Real servers, a few thousand requests, and three mishaps that no caller notices.
//!
//! Run it with `cargo run --example quickstart`. It starts three HTTP servers on 127.0.0.1
//! and spreads the requests of a few concurrent callers over them. Meanwhile one server
//! stops answering, one dies and comes back, and a fourth joins. It ends by itself.

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

/// If the show takes longer, something is wrong.
const LONGEST: Duration = Duration::from_secs(15);

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    let servers = [Server::start("amber")?, Server::start("birch")?, Server::start("cedar")?];

    // Discovery: whoever holds the handle announces servers, and the balancer follows.
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
    let (news, latest) = watch::channel("all is well");
    let story = tokio::spawn(story(servers, discovery, news));
    let screen = tokio::spawn(show(balance.clone(), latest, Arc::clone(&tally)));

    timeout(LONGEST, callers.join_all()).await?;
    let _servers = story.await??;
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
        // Periods grow while a server stays away. Short ones suit a short show.
        .max_ejection(Duration::from_secs(1))
        // A timeout reaches the balancer as a call that was dropped. It counts as a failure
        // if the call was at least this old, so this must not exceed the timeout.
        .drop_counts_after(ATTEMPT);
    Builder::new().health(health).layer(changes, RoundRobin::new())
}

/// One client for all callers. Read from top to bottom, as a request passes through it.
fn client(
    balance: BalanceLayer<Origin, RoundRobin>,
) -> Result<impl Client<Future: Send>, reqwest::Error> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    Ok(ServiceBuilder::new()
        // Remembers where a request has been, so that a retry goes elsewhere.
        .layer(AttemptsLayer::new())
        .retry(Retries(3))
        // Below the retry: each attempt has its own time, not all of them together.
        .timeout(ATTEMPT)
        .layer(balance)
        .service(client))
}

/// The client that callers see: any service from request to response.
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

/// Sends a request. The host in the URL is only a name: the balancer puts the server's
/// address in its place, and keeps path and query.
async fn get(client: impl Client) -> Result<String, BoxError> {
    let request = Request::new(Method::GET, "http://forest/tree?age=7".parse()?);
    let response = client.oneshot(request).await?.error_for_status()?;
    Ok(response.text().await?)
}

/// What happens to the servers while the callers go on. Returns them, so that they live on.
async fn story(
    [amber, mut birch, cedar]: [Server; 3],
    discovery: Handle<&'static str, Origin>,
    news: watch::Sender<&'static str>,
) -> io::Result<[Server; 4]> {
    let scene = Duration::from_millis(1_500);
    sleep(scene).await;
    news.send_replace("amber hangs: it accepts requests and answers none");
    amber.hang();
    sleep(scene).await;
    news.send_replace("birch dies: its listener and its connections are closed");
    birch.die().await?;
    sleep(scene).await;
    news.send_replace("dune is announced by discovery");
    let dune = Server::start("dune")?;
    discovery.insert(dune.name(), Endpoint::new(dune.origin()));
    sleep(scene).await;
    news.send_replace("birch comes back");
    birch.come_back()?;
    Ok([amber, birch, cedar, dune])
}

/// Shows the balancer's view of the servers until all requests are done.
async fn show(
    balance: BalanceLayer<Origin, RoundRobin>,
    news: watch::Receiver<&'static str>,
    tally: Arc<Tally>,
) -> io::Result<()> {
    let mut table = Table::new();
    let mut frame = interval(Duration::from_millis(100));
    while tally.sent() < CALLERS * REQUESTS_EACH {
        frame.tick().await;
        let headline = format!("{:>5} requests, {}", tally.sent(), *news.borrow());
        table.draw(&headline, &balance.stats())?;
    }
    Ok(())
}

/// How the callers fared.
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
