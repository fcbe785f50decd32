//! Bounded load: how many calls each endpoint holds, and how many it may.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use crate::util::lock;

/// The calls that run under a bound. One lock for starts and ends keeps the bound exact, since it
/// compares two numbers that change together.
#[derive(Debug)]
pub(crate) struct Bounded(Mutex<Held>);

/// How many calls run, and how many of them at each endpoint.
#[derive(Debug)]
pub(crate) struct Held {
    factor: f64,
    total: u64,
    by_id: HashMap<u64, u64>,
}

/// One call's place under the bound; dropping it gives the place back.
#[derive(Debug)]
pub(crate) struct Permit {
    bounded: Arc<Bounded>,
    id: u64,
}

impl Bounded {
    pub(crate) fn new(factor: f64) -> Self {
        Self(Mutex::new(Held { factor, total: 0, by_id: HashMap::new() }))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Held> {
        lock(&self.0)
    }
}

impl Held {
    /// Returns whether an endpoint with this share of the load may take one more call; an
    /// endpoint without a share, if it holds none.
    pub(crate) fn has_room(&self, id: u64, share: f64) -> bool {
        let held = self.by_id.get(&id).copied().unwrap_or(0);
        if share == 0.0 {
            return held == 0;
        }
        let bound = self.factor * (self.total + 1) as f64 * share;
        // A little less, so that products like 1.1 × 10 do not rise above a whole number.
        (held + 1) as f64 <= (bound * (1.0 - 1e-12)).ceil()
    }

    /// Starts a call.
    pub(crate) fn start(&mut self, bounded: &Arc<Bounded>, id: u64) -> Permit {
        self.total += 1;
        *self.by_id.entry(id).or_default() += 1;
        Permit { bounded: Arc::clone(bounded), id }
    }

    fn end(&mut self, id: u64) {
        if let Some(held) = self.by_id.get_mut(&id) {
            self.total -= 1;
            *held -= 1;
            if *held == 0 {
                self.by_id.remove(&id);
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.bounded.lock().end(self.id);
    }
}
