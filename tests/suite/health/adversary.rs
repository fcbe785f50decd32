//! Attacks on evidence that comes late: from a former period, a former member or a former service.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
};

use counterpoise::{
    Attempts, Builder, Event, Health, discover,
    health::PanicMode,
    observe::EndpointState,
    policy::{Members, PickContext, PickResult, Picker, Policy, RoundRobin},
};
use tokio::time::advance;
use tokio_test::task;
use tower::Service;

use crate::{
    bed::{Bed, SECOND, eject1, eject3},
    call::attacks::{attend, over},
    probes::{Gate, Probe, call, name},
    support::{Act, Site, settle},
};

#[tokio::test(start_paused = true)]
async fn late_ends_from_before_an_ejection_touch_neither_ejection_nor_recovery() {
    for late in [Act::FailAfter(15 * SECOND), Act::After(5 * SECOND)] {
        let mut bed = Bed::new(&["a", "b"], eject3()).await;
        bed.sites["b"].act(late);
        let mut calls: Vec<_> = (0..12).map(|_| task::spawn(bed.start())).collect();
        calls.retain_mut(|call| call.poll().is_pending());
        assert_eq!(calls.len(), 6);
        bed.eject("b").await;
        advance(6 * SECOND).await;
        if let Act::After(_) = late {
            for call in &mut calls {
                assert!(call.poll().is_ready());
            }
            // Successes of calls that began before the ejection end no ejection.
            assert_eq!(bed.state("b"), EndpointState::Ejected);
            assert_eq!(bed.stats("b").returns_in, Some(4 * SECOND));
            continue;
        }
        advance(5 * SECOND).await;
        assert!(bed.route(2).await.contains('b'), "the trial");
        assert_eq!(bed.state("b"), EndpointState::Serving);
        advance(5 * SECOND).await;
        let mut failed = 0;
        for call in &mut calls {
            if let Poll::Ready(result) = call.poll() {
                failed += usize::from(result.is_err());
            }
        }
        assert_eq!(failed, 6);
        let stats = bed.stats("b");
        assert_eq!(stats.state, EndpointState::Serving);
        assert_eq!((stats.consecutive_failures, stats.ejections), (0, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn late_failures_of_a_former_member_do_not_touch_its_successor() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.sites["b"].act(Act::FailAfter(SECOND));
    let mut calls: Vec<_> = (0..12).map(|_| task::spawn(bed.start())).collect();
    calls.retain_mut(|call| call.poll().is_pending());
    assert_eq!(calls.len(), 6);
    bed.remove("b").await;
    bed.sites["b"].act(Act::Ok);
    bed.announce("b", 1).await;
    let generation = bed.balance.stats().generation;
    advance(2 * SECOND).await;
    for call in &mut calls {
        assert!(call.poll().is_ready());
    }
    let stats = bed.stats("b");
    assert_eq!((stats.consecutive_failures, stats.failures), (0, 0));
    assert_eq!(stats.state, EndpointState::Serving);
    assert_eq!(
        bed.balance.stats().generation,
        generation,
        "nothing to publish"
    );
}

/// A service that is replaced keeps the record of its endpoint: the count of failures, and the
/// period of an ejection.
#[tokio::test(start_paused = true)]
async fn a_replaced_service_keeps_count_and_ejection() {
    let mut bed = Bed::new(&["a", "b"], eject3()).await;
    bed.sites["b"].act(Act::Err);
    let _ = bed.route(4).await;
    assert_eq!(bed.stats("b").consecutive_failures, 2);
    bed.announce("b", 1).await;
    assert_eq!(bed.stats("b").consecutive_failures, 2);
    let _ = bed.route(2).await;
    assert_eq!(bed.state("b"), EndpointState::Ejected);
    advance(3 * SECOND).await;
    bed.announce("b", 7).await;
    assert_eq!(bed.stats("b").returns_in, Some(7 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_ejections_is_exact_at_every_size() {
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    for n in 2..=names.len() {
        for share in [0.0, 0.1, 0.34, 0.5, 0.75, 1.0] {
            let health = eject1().max_ejected(share).panic_mode(PanicMode::Fail);
            let mut bed = Bed::new(&names[..n], health).await;
            for name in &names[..n] {
                bed.sites[name].act(Act::Err);
            }
            for _ in 0..3 * n {
                let _failed = bed.route(1).await;
            }
            let most = match share {
                0.0 => 0,
                _ => ((share * n as f64 + 1e-6) as usize).clamp(1, n),
            };
            assert_eq!(bed.balance.stats().counts.ejected, most, "{share} of {n}");

            // The set shrinks to two: one that is ejected beyond the limit is back at once.
            for name in &names[2..n] {
                bed.remove(name).await;
            }
            let most = match share {
                0.0 => 0,
                _ => ((share * 2.0 + 1e-6) as usize).clamp(1, 2),
            };
            assert!(bed.balance.stats().counts.ejected <= most, "{share} of {n}");
        }
    }
}

/// Rotates, and counts the picks of one call.
#[derive(Clone, Default)]
struct Counted(Arc<AtomicUsize>);

impl Policy for Counted {
    type Picker = Self;

    fn build(&self, _members: &Members<'_>, _previous: Option<&Self>) -> Self {
        self.clone()
    }
}

impl Picker<()> for Counted {
    fn pick(&self, _request: &(), cx: &PickContext<'_>) -> PickResult {
        self.0.fetch_add(1, Ordering::SeqCst);
        PickResult::Member(cx.eligible()[0] as usize)
    }
}

/// In a large set an ejected endpoint stays in the snapshot for a moment, and gets no call.
#[tokio::test(start_paused = true)]
async fn what_is_gathered_gets_no_call_and_is_published_in_time() {
    let sites: Vec<Site> = (0..300).map(|i| Site::new(name("s", i))).collect();
    let list = discover::list(
        sites
            .iter()
            .map(|site| (site.name(), site.endpoint()))
            .collect::<Vec<_>>(),
    );
    let builder = Builder::new().health(eject1());
    let policy = Counted::default();
    let mut balance = builder.balance(list, policy.clone()).unwrap();
    balance.ready_when(300).await.unwrap();
    advance(SECOND).await;
    let generation = balance.stats().generation;
    for site in &sites[..20] {
        site.act(Act::Err);
        policy.0.store(0, Ordering::SeqCst);
        let attempts = Attempts::new();
        attempts.prefer(site.name());
        let error = attempts.scope(call(&mut balance)).await.unwrap_err();
        assert_eq!(error.endpoint(), Some(site.name()));
        // Of those that are out none gets a call, though the picker still picks the first.
        let answer = call(&mut balance).await.unwrap();
        assert_ne!(answer.name(), site.name());
        assert!(policy.0.load(Ordering::SeqCst) <= 2);
    }
    let stats = balance.stats();
    assert_eq!(stats.counts.ejected, 20);
    // The first was published at once; the others are gathered, until they are due.
    assert_eq!(stats.generation, generation + 1);
    advance(SECOND / 100).await;
    call(&mut balance).await.unwrap();
    assert_eq!(balance.stats().generation, generation + 2);
    for _ in 0..20 {
        call(&mut balance).await.unwrap();
    }
    assert_eq!(
        balance.stats().generation,
        generation + 2,
        "nothing is left to publish"
    );
}

/// Waiting calls are woken by each publication: one that found all ejected is served by the first
/// endpoint that is back, also if that came by another call.
#[tokio::test(start_paused = true)]
async fn a_publication_wakes_the_calls_that_wait() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&log);
    let builder = Builder::new()
        .health(Health::off())
        .wait_when_empty(true)
        .on_event(move |event| {
            if let Event::Joined { endpoint, .. } | Event::WeightChanged { endpoint, .. } = event {
                noted.lock().unwrap().push(endpoint.to_string());
            }
        });
    let site = Probe::gated("a", Gate::Shut);
    let other = Probe::new("b");
    let (handle, mut balance) = over(&[("a", &site)], builder, RoundRobin::new()).await;
    let mut waiting = task::spawn(balance.call(()));
    assert!(attend(&mut waiting).await.is_none());
    handle.insert("b", other.endpoint().weight(0));
    settle().await;
    assert!(waiting.is_woken(), "by the members");
    assert!(attend(&mut waiting).await.is_none());
    let _ = balance.set_capacity("b", 0.5);
    assert!(attend(&mut waiting).await.is_none());
    handle.insert("b", other.endpoint());
    let answer = attend(&mut waiting).await;
    assert_eq!(answer.unwrap().unwrap().name(), "b");
    assert_eq!(log.lock().unwrap()[..2], ["a", "b"]);
}
