//! Tickets: the counter that numbers the picks.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::util::{padded::Padded, random::splitmix64};

/// A wrapping 64-bit counter of picks, which no change of the set resets.
#[derive(Debug)]
pub(crate) struct Tickets {
    next: Padded<AtomicU64>,
    /// Numbers the calls that read candidates, which draw no ticket.
    seeds: AtomicU64,
    seed: u64,
}

impl Tickets {
    pub(crate) const fn new(first: u64, seed: u64) -> Self {
        Self {
            next: Padded(AtomicU64::new(first)),
            seeds: AtomicU64::new(0),
            seed,
        }
    }

    /// Draws the next ticket. Cost: one `fetch_add`.
    #[inline]
    pub(crate) fn draw(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Draws a seed for one call's order of candidates.
    pub(crate) fn draw_seed(&self) -> u64 {
        splitmix64(self.seeds.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the balancer's seed.
    pub(crate) const fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the random number of a ticket.
    #[inline]
    pub(crate) const fn random(&self, ticket: u64) -> u64 {
        splitmix64(ticket ^ self.seed)
    }
}
