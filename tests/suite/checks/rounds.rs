//! Active checks beside the calls, in paused time.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use counterpoise::{
    BoxError, Builder, Direct, Event, Health,
    checks::{Checks, Probe},
    discover,
    health::PanicMode,
    observe::EndpointState,
};
use futures::future::{BoxFuture, FutureExt};
use tokio::time::{Instant, advance, sleep};

use crate::{
    bed::{Bed, SECOND, eject3, share},
    support::{Act, Site, settle},
};

/// What a probe finds, by the name of the endpoint; those that are not named are well.
#[derive(Debug, Clone, Default)]
struct Doctor {
    ills: Arc<Mutex<HashMap<&'static str, Ill>>>,
    asked: Arc<Mutex<Vec<(String, Instant)>>>,
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ill {
    Error,
    Hangs,
    Panics,
    PanicsAtOnce,
    Takes(Duration),
}

impl Doctor {
    fn finds(&self, name: &'static str, ill: Option<Ill>) {
        let mut ills = self.ills.lock().unwrap();
        match ill {
            Some(ill) => ills.insert(name, ill),
            None => ills.remove(name),
        };
    }

    fn finds_all(&self, ill: Ill) {
        for name in ["a", "b", "c"] {
            self.finds(name, Some(ill));
        }
    }

    fn asked(&self, name: &str) -> Vec<Instant> {
        let asked = self.asked.lock().unwrap();
        asked
            .iter()
            .filter(|(other, _)| other == name)
            .map(|(_, at)| *at)
            .collect()
    }

    /// Counts checks that run.
    fn enter(&self) -> impl Drop + use<> {
        struct Leave(Arc<AtomicUsize>);
        impl Drop for Leave {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        Leave(Arc::clone(&self.running))
    }
}

impl Probe<Direct<Site>> for Doctor {
    type Future = BoxFuture<'static, Result<(), BoxError>>;

    fn probe(&self, name: &str, _target: &Direct<Site>) -> Self::Future {
        self.asked
            .lock()
            .unwrap()
            .push((name.to_owned(), Instant::now()));
        let (inside, ill) = (self.enter(), self.ills.lock().unwrap().get(name).copied());
        assert!(ill != Some(Ill::PanicsAtOnce), "a probe panics at once");
        async move {
            let _inside = inside;
            match ill {
                None => Ok(()),
                Some(Ill::Error) => Err("ill".into()),
                Some(Ill::Hangs) => std::future::pending().await,
                Some(Ill::Takes(time)) => {
                    sleep(time).await;
                    Ok(())
                }
                Some(Ill::Panics | Ill::PanicsAtOnce) => panic!("a probe panics"),
            }
        }
        .boxed()
    }
}

/// Every second exactly; two of three results turn the tide.
fn checks(doctor: &Doctor) -> Checks<Doctor> {
    Checks::new(doctor.clone())
        .interval(SECOND)
        .jitter(0.0)
        .rise(2)
        .fall(3)
}

async fn bed(health: Health, checks: impl FnOnce(&Doctor) -> Checks<Doctor>) -> (Bed, Doctor) {
    let (bed, doctor) = (Bed::new(&["a", "b", "c"], health).await, Doctor::default());
    tokio::spawn(bed.balance.check(checks(&doctor)).unwrap());
    (bed, doctor)
}

/// Lets so many seconds pass, in small steps, so that everything happens in its time.
async fn pass(seconds: u32) {
    for _ in 0..seconds * 20 {
        advance(SECOND / 20).await;
        settle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_falls_and_rises_without_any_call() {
    let (mut bed, doctor) = bed(eject3(), checks).await;
    pass(2).await;
    doctor.finds("b", Some(Ill::Error));
    pass(2).await;
    assert_eq!(
        bed.state("b"),
        EndpointState::Serving,
        "not before the third"
    );
    pass(2).await;
    let stats = bed.stats("b");
    assert_eq!(
        (stats.state, stats.checked_out),
        (EndpointState::Ejected, true)
    );
    assert_eq!((stats.returns_in, stats.effective_weight), (None, 0.0));
    assert_eq!(share(&bed.route(10).await, "b"), 0);
    pass(60).await;
    assert_eq!(share(&bed.route(10).await, "b"), 0, "and no call tries it");
    doctor.finds("b", None);
    pass(1).await;
    assert_eq!(
        bed.state("b"),
        EndpointState::Ejected,
        "not before the second"
    );
    pass(2).await;
    assert_eq!(bed.state("b"), EndpointState::Serving);
    assert_eq!(share(&bed.route(9).await, "b"), 3);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_hangs_or_panics_has_failed() {
    for ill in [
        Ill::Hangs,
        Ill::Panics,
        Ill::PanicsAtOnce,
        Ill::Takes(2 * SECOND),
    ] {
        let (bed, doctor) = bed(eject3(), |doctor| checks(doctor).timeout(SECOND / 2)).await;
        doctor.finds("b", Some(ill));
        pass(8).await;
        assert_eq!(bed.state("b"), EndpointState::Ejected, "{ill:?}");
        assert_eq!(bed.state("a"), EndpointState::Serving, "{ill:?}");
        doctor.finds("b", None);
        pass(4).await;
        assert_eq!(bed.state("b"), EndpointState::Serving, "{ill:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn intervals_are_kept_and_no_more_run_than_may() {
    let (bed, doctor) = bed(eject3(), |doctor| {
        checks(doctor).concurrency(2).timeout(SECOND)
    })
    .await;
    for name in ["a", "b", "c"] {
        doctor.finds(name, Some(Ill::Takes(SECOND / 4)));
    }
    pass(20).await;
    assert_eq!(doctor.most.load(Ordering::SeqCst), 2);
    for name in ["a", "b", "c"] {
        let asked = doctor.asked(name);
        assert!((14..=20).contains(&asked.len()), "{name}: {}", asked.len());
        assert!(
            asked.windows(2).all(|pair| pair[1] - pair[0] >= SECOND),
            "{name}"
        );
        assert_eq!(bed.state(name), EndpointState::Serving);
    }
}

#[tokio::test(start_paused = true)]
async fn checks_that_pass_do_not_shorten_an_ejection() {
    let (mut bed, doctor) = bed(eject3(), checks).await;
    bed.eject("b").await;
    pass(9).await;
    assert!(doctor.asked("b").len() >= 8);
    assert_eq!(
        share(&bed.route(10).await, "b"),
        0,
        "its period is not over"
    );
    pass(1).await;
    assert_eq!(share(&bed.route(1).await, "b"), 1, "its trial decides");
    assert_eq!(bed.state("b"), EndpointState::Serving);
}

#[tokio::test(start_paused = true)]
async fn both_have_to_agree() {
    let (mut bed, doctor) = bed(eject3(), checks).await;
    bed.eject("b").await;
    doctor.finds("b", Some(Ill::Error));
    pass(15).await;
    assert_eq!(
        share(&bed.route(10).await, "b"),
        0,
        "no trial while checks fail"
    );
    doctor.finds("b", None);
    pass(4).await;
    bed.sites["b"].act(Act::Err);
    assert_eq!(
        share(&bed.route(10).await, "b"),
        1,
        "then the trial, which fails"
    );
    assert_eq!(bed.state("b"), EndpointState::Ejected);
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_is_overtaken_by_checks_says_nothing() {
    let (mut bed, doctor) = bed(eject3(), checks).await;
    bed.eject("b").await;
    pass(10).await;
    bed.sites["b"].act(Act::After(6 * SECOND));
    let trial = tokio::spawn(bed.start());
    settle().await;
    assert_eq!(bed.state("b"), EndpointState::OnTrial);
    doctor.finds("b", Some(Ill::Error));
    pass(4).await;
    assert_eq!(bed.state("b"), EndpointState::Ejected);
    pass(3).await;
    assert!(trial.await.unwrap().is_ok());
    assert_eq!(
        bed.state("b"),
        EndpointState::Ejected,
        "a straggler brings nobody back"
    );
    doctor.finds("b", None);
    bed.sites["b"].act(Act::Ok);
    pass(4).await;
    assert_eq!(share(&bed.route(1).await, "b"), 1, "it is tried anew");
    assert_eq!(bed.state("b"), EndpointState::Serving);
}

#[tokio::test(start_paused = true)]
async fn limits_and_panic_hold_for_both() {
    let (mut bed, doctor) = bed(eject3().max_ejected(0.34), checks).await;
    bed.eject("a").await;
    doctor.finds("b", Some(Ill::Error));
    pass(5).await;
    assert_eq!(
        bed.state("b"),
        EndpointState::Serving,
        "one of three may be out"
    );

    let (mut bed, doctor) = self::bed(eject3().panic_mode(PanicMode::Fail), checks).await;
    doctor.finds_all(Ill::Error);
    pass(5).await;
    assert_eq!(bed.balance.stats().counts.ejected, 3);
    assert!(bed.call().await.unwrap_err().is_unavailable());

    let (mut bed, doctor) = self::bed(eject3(), checks).await;
    doctor.finds_all(Ill::Error);
    pass(5).await;
    assert_eq!(bed.route(9).await.len(), 9, "health is ignored");
    assert_eq!(
        bed.balance.stats().counts.ejected,
        3,
        "calls bring nobody back"
    );
    doctor.finds("b", None);
    pass(3).await;
    assert_eq!(bed.route(3).await, "bbb");
}

#[tokio::test(start_paused = true)]
async fn newcomers_are_checked_and_leavers_are_not() {
    let (bed, doctor) = bed(eject3(), checks).await;
    pass(3).await;
    bed.handle.remove(&"c");
    bed.handle.insert("d", Site::new("d").endpoint());
    doctor.finds("d", Some(Ill::Error));
    settle().await;
    let asked = doctor.asked("c").len();
    pass(5).await;
    assert_eq!(doctor.asked("c").len(), asked);
    assert_eq!(bed.state("d"), EndpointState::Ejected);
    assert!(doctor.asked("a").len() >= 7);
}

#[tokio::test(start_paused = true)]
async fn events_tell_of_checks() {
    let events = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&events);
    let builder = Builder::new().health(eject3()).on_event(move |event| {
        if let Event::Ejected { .. } | Event::Recovered { .. } = event {
            heard.lock().unwrap().push(format!("{event:?}"));
        }
    });
    let (bed, doctor) = (Bed::build(&["a", "b"], builder).await, Doctor::default());
    tokio::spawn(bed.balance.check(checks(&doctor)).unwrap());
    doctor.finds("b", Some(Ill::Error));
    pass(5).await;
    doctor.finds("b", None);
    pass(5).await;
    let want = [
        r#"Ejected { endpoint: "b", returns_in: None, cause: Checks }"#,
        r#"Recovered { endpoint: "b" }"#,
    ];
    assert_eq!(*events.lock().unwrap(), want);
}

#[tokio::test(start_paused = true)]
async fn the_checker_ends_with_the_balancer() {
    let (bed, doctor) = (Bed::new(&["a", "b"], eject3()).await, Doctor::default());
    let checker = tokio::spawn(bed.balance.check(checks(&doctor)).unwrap());
    doctor.finds("a", Some(Ill::Hangs));
    pass(3).await;
    assert!(!checker.is_finished());
    let Bed {
        sites,
        handle,
        balance,
    } = bed;
    drop(balance);
    settle().await;
    assert!(checker.is_finished());
    assert!(handle.is_closed());
    drop(doctor);
    settle().await;
    assert_eq!(sites["a"].instances(), 1, "nothing is kept alive");
}

#[tokio::test(start_paused = true)]
async fn closures_are_probes_and_nonsense_is_refused() {
    let site = Site::new("a");
    let list = discover::list([("a", site.endpoint()), ("b", Site::new("b").endpoint())]);
    let balance = Builder::new()
        .balance(list, counterpoise::policy::RoundRobin::new())
        .unwrap();
    let probe = |name: &str, _target: &Direct<Site>| {
        let well = name == "a";
        async move { if well { Ok(()) } else { Err("not a".into()) } }
    };
    let refused = |checks| {
        balance
            .check(checks)
            .err()
            .map(|error: counterpoise::ConfigError| error.field())
    };
    assert_eq!(
        refused(Checks::new(probe).interval(Duration::ZERO)),
        Some("interval")
    );
    assert_eq!(
        refused(Checks::new(probe).timeout(Duration::ZERO)),
        Some("timeout")
    );
    assert_eq!(refused(Checks::new(probe).jitter(f64::NAN)), Some("jitter"));
    assert_eq!(refused(Checks::new(probe).rise(0)), Some("rise"));
    assert_eq!(refused(Checks::new(probe).fall(0)), Some("fall"));
    assert_eq!(
        refused(Checks::new(probe).concurrency(0)),
        Some("concurrency")
    );
    tokio::spawn(balance.check(Checks::new(probe)).unwrap());
    pass(30).await;
    assert_eq!(
        balance.stats().endpoint("b").unwrap().state,
        EndpointState::Ejected
    );
}
