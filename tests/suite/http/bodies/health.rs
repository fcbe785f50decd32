//! What bodies say about their endpoints, and when.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use counterpoise::{
    Builder, Health, Outcome,
    http::{AtBodyEnd, GoodHead, Grpc, Status, Tracked},
    observe::EndpointState,
};
use hyper::Response;
use tokio::time::advance;

use crate::{
    bed::{SECOND, eject1, eject3},
    body_bed::{BodyBed, Script, endings, poll, reply},
    support::Broken,
};

type Followed = Tracked<Script, GoodHead>;
type Bed<K = Status> = BodyBed<AtBodyEnd<K>>;

async fn bed(names: &[&'static str], health: Health) -> Bed {
    let builder = Builder::new()
        .health(health)
        .judge(AtBodyEnd::new(Status::new()));
    Bed::new(names, builder).await
}

fn poll_times(body: &mut Followed, polls: usize) {
    for _ in 0..polls {
        poll(body);
    }
}

impl Bed {
    /// Ejects the first of two endpoints, by one failure at its turn, and waits its period out.
    async fn make_due(&mut self) {
        self.fail::<Followed>().await;
        assert_eq!(self.state("a"), EndpointState::Ejected);
        advance(10 * SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_in_the_head_is_told_at_once_and_in_flight_to_the_end() {
    for script in ["dd", "d!", "dp", ""] {
        let mut bed = bed(&["a", "b"], eject1()).await;
        let mut body: Followed = bed.call(reply(500, Script::new(script))).await.unwrap();
        assert_eq!(bed.state("a"), EndpointState::Ejected, "{script}");
        assert_eq!(
            (bed.in_flight("a"), endings(&bed.stats("a")).as_str()),
            (1, ""),
            "{script}"
        );
        while !['$', '!', 'p'].contains(&poll(&mut body)) {}
        drop(body);
        let stats = bed.stats("a");
        assert_eq!(
            (stats.in_flight, endings(&stats).as_str()),
            (0, "F"),
            "{script}"
        );
        assert_eq!(stats.ejections, 1, "{script}");
    }
}

/// An outcome is told once: what follows a head that was judged says no more.
#[tokio::test(start_paused = true)]
async fn what_follows_a_judged_head_says_nothing() {
    for (script, polls) in [
        ("dd", 0),
        ("dd", 3),
        ("d!", 2),
        ("dp", 2),
        ("p", 1),
        ("=", 0),
    ] {
        for (status, failures, ending) in [(500, 1, "F"), (429, 0, "O")] {
            let mut bed = bed(&["a"], eject3()).await;
            let mut body: Followed = bed.call(reply(status, Script::new(script))).await.unwrap();
            poll_times(&mut body, polls);
            drop(body);
            let stats = bed.stats("a");
            let said = (stats.consecutive_failures, endings(&stats));
            assert_eq!(
                said,
                (failures, ending.to_owned()),
                "{status} {script} {polls}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn success_is_told_at_the_end_only_and_a_broken_body_is_a_failure() {
    let mut bed = bed(&["a"], eject3()).await;
    bed.fail::<Followed>().await;
    let mut body: Followed = bed.open("d.dt").await;
    for frame in ['d', '.', 'd'] {
        assert_eq!((poll(&mut body), bed.failures("a")), (frame, 1));
    }
    assert_eq!((poll(&mut body), bed.failures("a")), ('t', 0));
    for failures in 1..4 {
        let mut body: Followed = bed.open("d!").await;
        poll(&mut body);
        assert_eq!(bed.failures("a"), failures - 1);
        assert_eq!((poll(&mut body), bed.failures("a")), ('!', failures));
    }
    assert_eq!(endings(&bed.stats("a")), "SFFFF");
}

#[tokio::test(start_paused = true)]
async fn broken_bodies_eject() {
    let mut bed = bed(&["a", "b"], eject3()).await;
    let mut bodies: Vec<Followed> = Vec::new();
    for _ in 0..6 {
        bodies.push(bed.open("!").await);
    }
    for (broken, body) in bodies.iter_mut().step_by(2).enumerate() {
        assert_eq!(bed.state("a"), EndpointState::Serving, "after {broken}");
        poll(body);
    }
    assert_eq!(bed.state("a"), EndpointState::Ejected);
    assert_eq!(bed.state("b"), EndpointState::Serving);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_body_neither_raises_nor_clears_the_count_at_any_age() {
    let mut bed = bed(&["a"], eject3().drop_counts_after(Duration::ZERO)).await;
    bed.fail::<Followed>().await;
    for age in [0, 1, 3600] {
        for polls in 0..2 {
            let mut body: Followed = bed.open("ddd").await;
            advance(age * SECOND).await;
            poll_times(&mut body, polls);
            drop(body);
            assert_eq!(
                (bed.failures("a"), bed.in_flight("a")),
                (1, 0),
                "{age} s, {polls} polls"
            );
        }
    }
    assert_eq!(endings(&bed.stats("a")), "FDDDDDD");
}

#[tokio::test(start_paused = true)]
async fn a_trial_lasts_until_its_body_ends() {
    for (script, polls, state) in [
        ("d.dt", 4, EndpointState::Serving),
        ("=dd", 2, EndpointState::Serving),
        ("=", 0, EndpointState::Serving),
        ("dd", 0, EndpointState::Serving),
        ("dd", 1, EndpointState::Serving),
        ("d!", 2, EndpointState::Ejected),
        ("dp", 2, EndpointState::Ejected),
    ] {
        let mut bed = bed(&["a", "b"], eject1()).await;
        bed.make_due().await;
        let mut body: Followed = bed.open(script).await;
        let picks = bed.stats("a").picks;
        assert_eq!(picks, 2, "{script}");
        for _ in 1..polls {
            assert_eq!(bed.state("a"), EndpointState::OnTrial, "{script}");
            poll(&mut body);
        }
        advance(9 * SECOND).await;
        for _ in 0..5 {
            bed.open::<Followed>("=").await;
        }
        if script != "=" {
            assert_eq!(
                bed.stats("a").picks,
                picks,
                "{script}: tried by nobody else"
            );
        }
        poll(&mut body);
        drop(body);
        assert_eq!(bed.state("a"), state, "{script}, polled {polls} times");
        let ejections = if state == EndpointState::Serving {
            1
        } else {
            2
        };
        assert_eq!(bed.stats("a").ejections, ejections, "{script}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_trial_whose_body_takes_long_holds_its_place_for_a_base_period() {
    for (first, second, state) in [
        ("", ".", EndpointState::Serving),
        ("!", ".", EndpointState::Ejected),
        (".", "", EndpointState::Serving),
        (".", "!", EndpointState::Ejected),
    ] {
        let mut bed = bed(&["a", "b"], eject1()).await;
        bed.make_due().await;
        let mut trials: Vec<Followed> = vec![bed.open(first).await];
        advance(10 * SECOND).await;
        trials.push(bed.open(second).await);
        assert_eq!(
            (bed.state("a"), bed.in_flight("a")),
            (EndpointState::OnTrial, 2)
        );
        bed.open::<Followed>("=").await;
        assert_eq!(bed.in_flight("a"), 2, "one more place, and no more");
        trials.iter_mut().for_each(|trial| poll_times(trial, 1));
        assert_eq!(bed.state("a"), state, "{first} {second}");
        let ejections = bed.stats("a").ejections;
        drop(trials);
        let stats = bed.stats("a");
        assert_eq!(
            (stats.state, stats.ejections, stats.in_flight),
            (state, ejections, 0)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_trial_with_a_bad_head_is_over_at_once() {
    for (status, pause) in [(500, 20_000), (429, 10_000)] {
        let mut bed = bed(&["a", "b"], eject1()).await;
        bed.make_due().await;
        let body: Followed = bed.call(reply(status, Script::new("dd"))).await.unwrap();
        let stats = bed.stats("a");
        assert_eq!(
            (stats.state, stats.in_flight),
            (EndpointState::Ejected, 1),
            "{status}"
        );
        assert_eq!(
            stats.returns_in,
            Some(Duration::from_millis(pause)),
            "{status}"
        );
        advance(Duration::from_millis(pause)).await;
        // Tried anew, although the body of the former trial is held still.
        let trial: Followed = bed.open("dd").await;
        assert_eq!(
            (bed.state("a"), bed.in_flight("a")),
            (EndpointState::OnTrial, 2)
        );
        drop(body);
        assert_eq!(
            bed.state("a"),
            EndpointState::OnTrial,
            "its end says nothing"
        );
        drop(trial);
        assert_eq!(bed.state("a"), EndpointState::Serving);
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_good_bodies_make_up_trials_in_a_row() {
    let mut bed = bed(&["a", "b"], eject1().trial_successes(2)).await;
    bed.make_due().await;
    drop(bed.open::<Followed>("dd").await);
    assert_eq!(bed.state("a"), EndpointState::Ejected);
    drop(bed.open::<Followed>("dd").await);
    assert_eq!(bed.state("a"), EndpointState::Serving);
    assert_eq!(endings(&bed.stats("a")), "FDD");
}

#[tokio::test(start_paused = true)]
async fn a_status_that_never_comes_leaves_a_trial_open() {
    let builder = Builder::new()
        .health(eject1())
        .judge(AtBodyEnd::new(Grpc::new()));
    let mut bed = BodyBed::new(&["a", "b"], builder).await;
    bed.fail::<Tracked<Script, Grpc>>().await;
    for (body, pause) in [("dd", true), ("dt", false)] {
        advance(10 * SECOND).await;
        let mut body = bed.call(reply(200, Script::grpc(body, "5"))).await.unwrap();
        while poll(&mut body) == 'd' {}
        let state = if pause {
            EndpointState::Ejected
        } else {
            EndpointState::Serving
        };
        assert_eq!(bed.state("a"), state);
    }
    assert_eq!(endings(&bed.stats("a")), "SFN");
}

#[tokio::test(start_paused = true)]
async fn push_back_in_the_head_lowers_the_capacity_at_once() {
    for script in ["dd", "!", "d!", "p", "="] {
        let mut bed = bed(&["a", "b"], eject1()).await;
        let mut body: Followed = bed.call(reply(429, Script::new(script))).await.unwrap();
        assert_eq!(bed.stats("a").effective_weight, 0.5, "{script}");
        poll_times(&mut body, 3);
        drop(body);
        let stats = bed.stats("a");
        assert_eq!(
            (stats.state, stats.effective_weight),
            (EndpointState::Serving, 0.5)
        );
        assert_eq!((stats.overloads, stats.failures), (1, 0), "{script}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outcome_counts_in_the_period_of_its_call_only() {
    let mut bed = bed(&["a", "b"], eject3()).await;
    let mut old: Vec<Followed> = Vec::new();
    for script in ["!", "", "d", "!", "", "d"] {
        old.push(bed.open(script).await);
        bed.open::<Followed>("=").await;
    }
    for _ in 0..3 {
        bed.fail::<Followed>().await;
        bed.open::<Followed>("=").await;
    }
    assert_eq!(bed.state("a"), EndpointState::Ejected);
    let later = old.split_off(3);
    for (mut body, ended) in old.into_iter().zip(["!", "$", "d"]) {
        assert_eq!(poll(&mut body).to_string(), ended);
        drop(body);
        assert_eq!(
            (bed.state("a"), bed.failures("a")),
            (EndpointState::Ejected, 0)
        );
    }
    advance(10 * SECOND).await;
    bed.open::<Followed>("=").await;
    assert_eq!(bed.state("a"), EndpointState::Serving);
    while bed.failures("a") == 0 {
        bed.fail::<Followed>().await;
    }
    for mut body in later {
        poll(&mut body);
        drop(body);
        assert_eq!(
            (bed.state("a"), bed.failures("a")),
            (EndpointState::Serving, 1)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_good_end_in_panic_brings_the_endpoint_back_and_a_drop_does_not() {
    let mut bed = bed(&["a", "b"], eject1()).await;
    for _ in 0..2 {
        bed.fail::<Followed>().await;
    }
    assert!(bed.balance.stats().panic);
    let [mut first, second] = [
        bed.open::<Followed>("d").await,
        bed.open::<Followed>("d").await,
    ];
    assert_eq!(
        (bed.state("a"), bed.state("b")),
        (EndpointState::Ejected, EndpointState::Ejected)
    );
    drop(second);
    assert_eq!((poll(&mut first), poll(&mut first)), ('d', '$'));
    let states = [bed.state("a"), bed.state("b")];
    assert_eq!(
        states
            .iter()
            .filter(|&&state| state == EndpointState::Serving)
            .count(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn a_closure_judges_the_head_once() {
    let asked = Arc::new(Mutex::new(0));
    let classify = {
        let asked = Arc::clone(&asked);
        move |result: Result<&Response<Script>, &Broken>| {
            *asked.lock().unwrap() += 1;
            match result {
                Ok(response) if response.status() == 503 => Outcome::Neutral,
                Ok(_) => Outcome::Success,
                Err(_) => Outcome::Failure,
            }
        }
    };
    let builder = Builder::new().judge(AtBodyEnd::new(classify));
    let mut bed = BodyBed::new(&["a"], builder).await;
    for (status, script) in [(200, "ddt"), (503, "ddt"), (200, "="), (200, "!")] {
        let mut body: Followed = bed.call(reply(status, Script::new(script))).await.unwrap();
        poll_times(&mut body, 4);
    }
    assert_eq!(
        (*asked.lock().unwrap(), endings(&bed.stats("a")).as_str()),
        (4, "SSFN")
    );
}
