//! Calls that are polled by hand, and endpoints that they wait for.

use std::{
    future::{Future, poll_fn},
    pin::pin,
};

use counterpoise::{Balance, Builder, Direct, discover, policy::Pick};
use tokio_test::task;
use tower::{Service, ServiceExt};

use crate::{
    probes::{Gate, Probe, name},
    support::settle,
};

pub(crate) type Probes<P> = Balance<Direct<Probe>, P>;

/// Returns a balancer over probes that has seen them all.
pub(crate) async fn over<P: Pick<()>>(builder: Builder, probes: &[&Probe], policy: P) -> Probes<P> {
    let list = probes.iter().enumerate().map(|(i, probe)| (i, probe.endpoint()));
    let balance = builder.starting_at(0).balance(discover::list(list), policy).unwrap();
    settle().await;
    balance
}

/// Starts a call, which is then a future that nothing has polled.
pub(crate) fn start<S: Service<()> + Clone>(balance: &S) -> task::Spawn<S::Future> {
    let mut clone = balance.clone();
    assert!(task::spawn(clone.ready()).poll().is_ready());
    task::spawn(clone.call(()))
}

/// Waits for a call to end; returns its result and how often it was polled.
pub(crate) async fn polled<F: Future>(call: F) -> (F::Output, usize) {
    let (mut call, mut polls) = (pin!(call), 0);
    let result = poll_fn(|cx| {
        polls += 1;
        assert!(polls < 1_000, "a busy loop");
        call.as_mut().poll(cx)
    });
    (result.await, polls)
}

/// Polls a call that waits until it is quiet, which it must soon be.
pub(crate) fn rest<F: Future>(waiting: &mut task::Spawn<F>) {
    for _ in 0..4 {
        assert!(waiting.poll().is_pending());
        if !waiting.is_woken() {
            return;
        }
    }
    panic!("a busy loop");
}

pub(crate) fn probes<const N: usize>(gates: [Gate; N]) -> [Probe; N] {
    let mut number = 0;
    gates.map(|gate| {
        number += 1;
        Probe::gated(name("p", number), gate)
    })
}
