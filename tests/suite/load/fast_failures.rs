//! Failure is never fast: under peak EWMA, whoever fails at once looks worse than everybody who
//! answers, also where a few answers take long.

use std::time::Duration;

use counterpoise::{
    Balance, Builder, Health,
    policy::{LeastRequest, PeakEwma, Picker, Policy},
};
use futures::future::join_all;
use tokio::time::{Instant, sleep};
use tower::{Service, ServiceExt};

use crate::{
    bed::MILLISECOND,
    support::{Act, Sites, settle},
};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// The latencies of good endpoints are peaks for a while. A failure that counted as ten times the
/// *mean* was less than that: so this got up to 3,700 calls of 6,000.
///
/// Makes a call every ten milliseconds for a minute, one after the other. `b` fails at once; of the
/// answers of the others, one in so many takes so many milliseconds rather than one. Returns how
/// many calls `b` gets, of how many.
async fn share_of_failing(seed: u64, one_in: u64, peak: u32) -> (usize, usize) {
    let sites = Sites::new(&NAMES);
    let builder = Builder::new()
        .health(Health::off())
        .seed(seed)
        .starting_at(0);
    let mut balance = builder
        .balance(sites.list(&NAMES), PeakEwma::new())
        .unwrap();
    settle().await;
    sites["b"].act(Act::Err);
    let (calls, mut random) = (6_000, seed);
    for _ in 0..calls {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let peaks = (random >> 33) % one_in == 0;
        let took = if peaks {
            peak * MILLISECOND
        } else {
            MILLISECOND
        };
        ["a", "c"]
            .iter()
            .for_each(|name| sites[name].act(Act::After(took)));
        let _failed = balance.ready().await.unwrap().call(()).await;
        sleep(Duration::from_millis(10)).await;
    }
    (sites["b"].calls(), calls)
}

/// Has so many callers call without a pause for ten seconds; `b` fails at once, and the others
/// take five milliseconds. Returns how many calls `b` gets in a thousand.
async fn share_of_failing_under<P: Policy<Picker: Picker<()>>>(callers: usize, policy: P) -> usize {
    let sites = Sites::new(&NAMES);
    let builder = Builder::new().health(Health::off()).seed(7).starting_at(0);
    let balance = builder.balance(sites.list(&NAMES), policy).unwrap();
    settle().await;
    ["a", "c"]
        .iter()
        .for_each(|name| sites[name].act(Act::After(5 * MILLISECOND)));
    sites["b"].act(Act::FailAfter(MILLISECOND / 10));
    let end = Instant::now() + Duration::from_secs(10);
    let call = |mut balance: Balance<_, P>| async move {
        while Instant::now() < end {
            let _failed = balance.ready().await.unwrap().call(()).await;
        }
    };
    join_all((0..callers).map(|_| call(balance.clone()))).await;
    let all: usize = NAMES.iter().map(|name| sites[name].calls()).sum();
    1_000 * sites["b"].calls() / all
}

#[tokio::test(start_paused = true)]
async fn however_many_calls_the_others_hold_failure_attracts_nobody() {
    for callers in [1, 8, 32, 128] {
        let fewest = LeastRequest::new().penalty(Duration::from_secs(10));
        let ewma = share_of_failing_under(callers, PeakEwma::new()).await;
        let least = share_of_failing_under(callers, fewest).await;
        assert!(
            ewma < 30 && least < 30,
            "{ewma} and {least} of 1,000, {callers} callers"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_fails_at_once_gets_little_whatever_the_tail_of_the_others() {
    for (one_in, peak) in [
        (10_000, 1),
        (1_000, 20),
        (300, 20),
        (100, 20),
        (100, 50),
        (20, 100),
    ] {
        for seed in 0..3 {
            let (share, calls) = share_of_failing(seed, one_in, peak).await;
            let tail = format!("one in {one_in} takes {peak} ms; seed {seed}");
            assert!(
                (1..calls / 15).contains(&share),
                "{share} of {calls}: {tail}"
            );
        }
    }
}
