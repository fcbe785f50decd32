//! Affinity by a header keeps each user with one server, while a server stops and starts again.
//!
//! Run it with `cargo run --example affinity`. First it prints, without any server, which keys a
//! fourth server would move. Then it sends the requests of a hundred users to three real servers.
//! One of them stops and starts again: only its users move, and they return.

mod support;

use std::{collections::BTreeMap, time::Duration};

use counterpoise::{
    AttemptsLayer, BoxError, Builder, Endpoint, Health, discover, http::key::Header,
    policy::affinity::RingHash,
};
use reqwest::{Method, Request};
use support::{retries::Retries, server::Server};
use tower::{Service, ServiceBuilder, ServiceExt};

const USERS: usize = 100;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    print_map();
    let mut servers = [
        Server::start("amber")?,
        Server::start("birch")?,
        Server::start("cedar")?,
    ];
    let endpoints = servers
        .iter()
        .map(|server| (server.name(), Endpoint::new(server.origin())));
    let health = Health::new()
        .consecutive_failures(2)
        .base_ejection(Duration::from_millis(500));
    let policy = RingHash::by_header("x-user");
    let balance = Builder::new()
        .health(health)
        .layer(discover::list(endpoints), policy)?;
    let client = ServiceBuilder::new()
        .layer(AttemptsLayer::new())
        .retry(Retries(2))
        .map_err(BoxError::from)
        .layer(balance)
        .service(reqwest::Client::builder().no_proxy().build()?);

    let before = send_all(&client).await?;
    servers[0].die().await?;
    let without = send_all(&client).await?;
    report("amber has stopped", &before, &without);
    servers[0].come_back()?;
    // After its ejection, the trial of amber is a request of one of its own users.
    let mut after = send_all(&client).await?;
    for _ in 0..100 {
        if after == before {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        after = send_all(&client).await?;
    }
    report("amber serves again", &before, &after);
    Ok(())
}

/// Prints the shares of three servers, and what a fourth would move.
fn print_map() {
    let policy = RingHash::<Header>::by_header("x-user");
    let three = policy.map([("amber", 1), ("birch", 1), ("cedar", 1)]);
    let four = policy.map([("amber", 1), ("birch", 1), ("cedar", 1), ("dune", 1)]);
    println!("shares of three: {:.3?}", three.shares());
    println!(
        "user-7 goes to {:?}, in this order",
        three.owners(b"user-7")
    );
    println!(
        "a fourth would move {:.1} % of all users\n",
        100.0 * three.moved(&four)
    );
}

/// Sends a request of each user; returns the server that answered it.
async fn send_all<S>(client: &S) -> Result<BTreeMap<usize, String>, BoxError>
where
    S: Service<Request, Response = reqwest::Response, Error = BoxError> + Clone,
{
    let mut answers = BTreeMap::new();
    for user in 0..USERS {
        let mut request = Request::new(Method::GET, "http://forest/".parse()?);
        request
            .headers_mut()
            .insert("x-user", format!("user-{user}").parse()?);
        let response = client.clone().oneshot(request).await?;
        answers.insert(user, response.text().await?);
    }
    Ok(answers)
}

fn report(what: &str, before: &BTreeMap<usize, String>, now: &BTreeMap<usize, String>) {
    let moved = before
        .iter()
        .filter(|(user, server)| now.get(user) != Some(server));
    let from_amber = moved
        .clone()
        .filter(|(_, server)| *server == "amber")
        .count();
    let owned = before.values().filter(|server| *server == "amber").count();
    println!(
        "{what}: {} of {USERS} users are elsewhere, {from_amber} of amber's {owned}",
        moved.count()
    );
}
