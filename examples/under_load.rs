//! A balancer over servers that are slow, broken, overloaded or new.
//!
//! Run it with `cargo run --example under_load`. It starts four HTTP servers on 127.0.0.1 and prints,
//! scene by scene, the shares of the requests and the events. It ends after about 15 seconds.

mod support;

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use counterpoise::{
    AttemptsLayer, BalanceLayer, BoxError, Builder, Endpoint, Event, Health,
    checks::{self, Checks},
    discover::{self, Changes},
    health::{OutlierDetection, Overload, SlowStart},
    http::Origin,
    policy::PeakEwma,
};
use reqwest::{Method, Request, Response};
use support::{retries::Retries, server::Server, table::Table};
use tokio::{
    task::JoinSet,
    time::{Instant, interval, sleep},
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

type Balance = BalanceLayer<Origin, PeakEwma>;

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    let names = ["amber", "birch", "cedar", "dune"];
    let servers = names.map(Server::start);
    let [amber, birch, cedar, mut dune] = servers.map(|server| server.expect("a free port"));
    let (discovery, changes) = discover::channel();
    discovery.set([&amber, &birch, &cedar].map(entry));
    let balance = balance(changes)?;
    let plain = reqwest::Client::builder().no_proxy().build()?;
    let probe = checks::reqwest_get(plain.clone(), "/health");
    let quick = Checks::new(probe).interval(Duration::from_millis(200));
    tokio::spawn(balance.check(quick)?);
    balance.ready_when(3).await?;

    let failed = Arc::new(AtomicU32::new(0));
    let mut table = Table::new();
    let mut scene = async |what: &str| play(what, &balance, &plain, &failed, &mut table).await;
    scene("all servers answer").await?;
    amber.slow_down(Duration::from_millis(40));
    scene("amber takes 40 ms: it gets fewer requests").await?;
    amber.slow_down(Duration::ZERO);
    birch.answer_with(500);
    scene("birch answers 500 at once: it is ejected").await?;
    birch.answer_with(200);
    cedar.answer_with(429);
    scene("cedar answers 429: its capacity is reduced").await?;
    cedar.answer_with(200);
    discovery.insert(dune.name(), Endpoint::new(dune.origin()));
    scene("dune joins: its share rises in slow start").await?;
    dune.die().await?;
    scene("dune stops: calls and checks fail").await?;

    println!("\n{}", balance.stats());
    let failed = failed.load(Ordering::Relaxed);
    println!("{failed} requests failed after all retries.");
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn entry(server: &Server) -> (&'static str, Endpoint<Origin>) {
    (server.name(), Endpoint::new(server.origin()))
}

/// Builds the balancer. The durations are shorter than the defaults, for a short example.
fn balance(changes: Changes<&'static str, Origin>) -> Result<Balance, BoxError> {
    let second = Duration::from_secs(1);
    let health = Health::new()
        .base_ejection(second)
        .overload(Overload::new().hold(second))
        .slow_start(SlowStart::new(2 * second))
        .outlier_detection(OutlierDetection::new())
        .interval(second);
    let builder = Builder::new().health(health).on_event(print);
    Ok(builder.layer(changes, PeakEwma::new().decay(second))?)
}

/// Prints an event.
fn print(event: &Event) {
    match event {
        Event::Ejected {
            endpoint, cause, ..
        } => println!("  - {endpoint} is ejected: {cause:?}"),
        Event::Recovered { endpoint, .. } => println!("  - {endpoint} has recovered"),
        Event::WeightChanged {
            endpoint,
            effective_weight,
            cause,
            ..
        } => {
            println!("  - {endpoint} counts as {effective_weight:.2}: {cause:?}");
        }
        Event::Joined { endpoint, .. } => println!("  - {endpoint} joins"),
        _ => {}
    }
}

/// Runs eight callers for a while and prints the shares of their requests.
async fn play(
    what: &str,
    balance: &Balance,
    plain: &reqwest::Client,
    failed: &Arc<AtomicU32>,
    table: &mut Table,
) -> Result<(), BoxError> {
    println!("\n{what}");
    let end = Instant::now() + Duration::from_millis(2_500);
    let mut callers = JoinSet::new();
    for _ in 0..8 {
        let client = ServiceBuilder::new()
            .layer(AttemptsLayer::new())
            .retry(Retries(2))
            .service(balance.layer(plain.clone()));
        callers.spawn(call(client, end, Arc::clone(failed)));
    }
    let mut frame = interval(Duration::from_millis(100));
    while Instant::now() < end {
        frame.tick().await;
        table.draw(what, &balance.stats())?;
    }
    callers.join_all().await;
    Ok(())
}

/// Sends one caller's requests, one after the other.
async fn call<S>(client: S, end: Instant, failed: Arc<AtomicU32>)
where
    S: Service<Request, Response = Response> + Clone,
{
    while Instant::now() < end {
        let url = "http://forest/tree".parse().expect("a URL");
        let response = client.clone().oneshot(Request::new(Method::GET, url)).await;
        if !response.is_ok_and(|response| response.status().is_success()) {
            failed.fetch_add(1, Ordering::Relaxed);
        }
        sleep(Duration::from_millis(2)).await;
    }
}
