//! The counter at and across the places where counters break.

use std::any::type_name;

use counterpoise::{
    Builder,
    policy::{Picker, Policy},
};

use crate::table::{Numbers, each_rotation, tally};

/// Where counters of 31, 32, 63 and 64 bits wrap: the last one at zero.
const WRAPS: [u64; 4] = [1 << 31, 1 << 32, 1 << 63, 0];

/// What round robin over the numbers below `n` answers, with `first` as the first ticket.
fn rotation(n: usize, first: u64, calls: usize) -> Vec<usize> {
    let ticket = |call| first.wrapping_add(call as u64);
    (0..calls)
        .map(|call| (ticket(call) % n as u64) as usize)
        .collect()
}

async fn b01<P: Policy<Picker: Picker<()>>>(policy: impl Fn() -> P) {
    for first in [(1 << 31) - 2, (1 << 32) - 2, u64::MAX - 1] {
        let mut numbers = Numbers::below(3, policy(), first).await;
        let answers = numbers.take(12).await;
        assert_eq!(
            answers,
            rotation(3, first, 12),
            "{} from {first}",
            type_name::<P>()
        );
        assert!(
            tally(3, &answers)
                .iter()
                .all(|count| (3..=5).contains(count))
        );
    }
}

#[tokio::test]
async fn b01_the_counter_never_goes_negative() {
    each_rotation!(b01);
}

async fn b02<P: Policy<Picker: Picker<()>>>(policy: impl Fn() -> P) {
    for (n, wrap) in (1..=17).flat_map(|n| WRAPS.map(|wrap| (n, wrap))) {
        let first = wrap.wrapping_sub(4);
        let mut numbers = Numbers::below(n, policy(), first).await;
        let answers = numbers.take(4 + 4 * n).await;
        assert_eq!(
            answers,
            rotation(n, first, 4 + 4 * n),
            "{} at {wrap}",
            type_name::<P>()
        );
        assert!(tally(n, &answers).iter().all(|&count| count > 0));
    }
}

#[tokio::test]
async fn b02_every_size_keeps_its_order_across_every_wrap() {
    each_rotation!(b02);
}

async fn b04<P: Policy<Picker: Picker<()>>>(policy: impl Fn() -> P) {
    for n in [1, 2, 12] {
        let mut numbers = Numbers::new(policy(), Builder::new());
        numbers.set(0..n).await;
        let answers = numbers.take(3 * n).await;
        assert_eq!(
            tally(n, &answers),
            vec![3; n],
            "{} over {n}",
            type_name::<P>()
        );
    }
}

#[tokio::test]
async fn b04_no_endpoint_is_skipped_at_either_end() {
    each_rotation!(b04);
}

/// One endpoint is no choice, and draws no ticket.
fn drawn(n: usize, calls: usize) -> u64 {
    if n > 1 { calls as u64 } else { 0 }
}

async fn resize<P: Policy<Picker: Picker<()>>>(policy: impl Fn() -> P) {
    for wrap in WRAPS {
        for (n, m) in (1..=17).flat_map(|n| (1..=17).map(move |m| (n, m))) {
            let first = wrap.wrapping_sub(drawn(n, n));
            let mut numbers = Numbers::below(n, policy(), first).await;
            let what = format!("{} from {n} to {m} at {wrap}", type_name::<P>());
            assert_eq!(numbers.take(n).await, rotation(n, first, n), "{what}");
            numbers.set(0..m).await;
            assert_eq!(
                numbers.take(m + 1).await,
                rotation(m, wrap, m + 1),
                "{what}"
            );
        }
    }
}

#[tokio::test]
async fn a_resize_exactly_at_a_wrap_keeps_the_order() {
    each_rotation!(resize);
}

async fn resize_around<P: Policy<Picker: Picker<()>>>(policy: impl Fn() -> P) {
    for wrap in WRAPS {
        for size in 2..=17 {
            let (mut ticket, other) = (wrap.wrapping_sub(6), 19 - size);
            let mut numbers = Numbers::below(size, policy(), ticket).await;
            for n in [size, other, size, other, size] {
                numbers.set(0..n).await;
                let what = format!("{} over {n} near {wrap}", type_name::<P>());
                assert_eq!(numbers.take(3).await, rotation(n, ticket, 3), "{what}");
                ticket = ticket.wrapping_add(3);
            }
        }
    }
}

#[tokio::test]
async fn resizes_on_both_sides_of_a_wrap_keep_the_position() {
    each_rotation!(resize_around);
}
