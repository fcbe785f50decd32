//! Numbers that fade exponentially.

use std::sync::atomic::{AtomicI64, Ordering};

use super::approx::{exp, ln};

/// A positive number that fades exponentially, in one atomic.
///
/// It holds the instant at which the number will have faded to one. So a read needs no write, the
/// greater of two numbers is the later instant, and no lock is needed.
#[derive(Debug)]
pub(crate) struct Fading(AtomicI64);

/// The speed at which numbers fade.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decay {
    /// The time in nanoseconds in which a number fades to 1/e.
    time: f64,
    /// 1 / time, because a multiplication is faster than a division.
    rate: f64,
}

impl Decay {
    pub(crate) const fn new(nanos: f64) -> Self {
        Self {
            time: nanos,
            rate: 1.0 / nanos,
        }
    }

    pub(crate) const fn time(self) -> f64 {
        self.time
    }

    /// Returns what is left of one after `age` nanoseconds.
    #[inline]
    pub(crate) fn left(self, age: f64) -> f64 {
        exp(-age * self.rate)
    }
}

/// The representation of zero.
const ZERO: i64 = i64::MIN;

/// The greatest instant in nanoseconds, 146 years: sums of two do not overflow.
const BOUND: f64 = (1_u64 << 62) as f64;

/// The difference of logarithms from which on a number is written: about a sixteenth of the number.
const FAR: f64 = 1.0 / 16.0;

impl Default for Fading {
    fn default() -> Self {
        Self(AtomicI64::new(ZERO))
    }
}

impl Fading {
    /// Returns the number at an instant in nanoseconds; it begins at zero.
    #[inline]
    pub(crate) fn at(&self, now: u64, decay: Decay) -> f64 {
        decode(self.0.load(Ordering::Relaxed), now, decay)
    }

    #[inline]
    pub(crate) fn is_zero(&self) -> bool {
        self.0.load(Ordering::Relaxed) == ZERO
    }

    /// Returns whether the number is greater than `other` at an instant.
    #[inline]
    pub(crate) fn exceeds(&self, other: f64, at: f64, decay: Decay) -> bool {
        self.0.load(Ordering::Relaxed) as f64 > at + decay.time * ln(other)
    }

    /// Raises the number to `to`, if that is greater.
    pub(crate) fn raise(&self, to: f64, now: u64, decay: Decay) {
        self.0.fetch_max(encode(to, now, decay), Ordering::Relaxed);
    }

    /// Raises the number to `to`, if that is greater by about a sixteenth. So of many similar numbers
    /// few are written.
    #[inline]
    pub(crate) fn raise_by_far(&self, to: f64, now: u64, decay: Decay) {
        let word = encode(to, now, decay);
        let least = self
            .0
            .load(Ordering::Relaxed)
            .saturating_add((decay.time * FAR) as i64);
        if word > least {
            self.0.fetch_max(word, Ordering::Relaxed);
        }
    }

    /// Replaces the number by `next` of it.
    pub(crate) fn update(&self, now: u64, decay: Decay, next: impl Fn(f64) -> f64) {
        let step = |word| Some(encode(next(decode(word, now, decay)), now, decay));
        let _never_fails = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
    }
}

fn decode(word: i64, now: u64, decay: Decay) -> f64 {
    if word == ZERO {
        return 0.0;
    }
    decay.left(now as f64 - word as f64)
}

fn encode(value: f64, now: u64, decay: Decay) -> i64 {
    if value > 0.0 {
        (now as f64 + decay.time * ln(value)).clamp(-BOUND, BOUND) as i64
    } else {
        ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: u64 = 10_000_000_000;
    const DECAY: Decay = Decay::new(TIME as f64);

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-6 * b.abs()
    }

    #[test]
    fn fades_by_e_in_the_decay_time() {
        let fading = Fading::default();
        assert!(fading.is_zero());
        assert_eq!(fading.at(5, DECAY), 0.0);
        fading.raise(5e9, 1_000, DECAY);
        assert!(near(fading.at(1_000, DECAY), 5e9));
        assert!(near(
            fading.at(1_000 + TIME, DECAY),
            5e9 / std::f64::consts::E
        ));
        assert!(
            fading.at(u64::MAX / 4, DECAY) < 1e-300,
            "and never rises again"
        );
    }

    #[test]
    fn the_greater_stays_whatever_the_order() {
        for order in [[2.0, 7.0], [7.0, 2.0]] {
            let fading = Fading::default();
            order
                .iter()
                .for_each(|&value| fading.raise(value, 9, DECAY));
            assert!(near(fading.at(9, DECAY), 7.0));
        }
    }

    #[test]
    fn sums_fade_together() {
        let fading = Fading::default();
        let add = |now| fading.update(now, DECAY, |left| left + 1.0);
        add(0);
        add(TIME);
        assert!(near(fading.at(TIME, DECAY), 1.0 + exp(-1.0)));
        fading.update(0, DECAY, |_| 0.0);
        assert!(fading.is_zero());
    }
}
