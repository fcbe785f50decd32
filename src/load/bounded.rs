//! Bounded load: how many calls each endpoint holds, and how many it may.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use crate::util::lock;

/// The calls that run under a bound. One lock for admissions and ends keeps it exact.
#[derive(Debug)]
pub(crate) struct Loads(Mutex<Held>);

#[derive(Debug)]
pub(crate) struct Held {
    factor: f64,
    total: u64,
    by_id: HashMap<u64, u64>,
}

impl Loads {
    pub(crate) fn new(factor: f64) -> Self {
        Self(Mutex::new(Held { factor, total: 0, by_id: HashMap::new() }))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Held> {
        lock(&self.0)
    }

    /// Ends a call.
    pub(crate) fn release(&self, id: u64) {
        self.lock().remove(id);
    }
}

impl Held {
    /// Returns whether an endpoint of such a share may take one more call.
    pub(crate) fn has_room(&self, id: u64, share: f64) -> bool {
        let bound = self.factor * (self.total + 1) as f64 * share;
        let held = self.by_id.get(&id).copied().unwrap_or(0);
        // A little less, so that products like 1.1 × 10 do not rise above a whole number.
        (held + 1) as f64 <= (bound * (1.0 - 1e-12)).ceil()
    }

    pub(crate) fn is_idle(&self, id: u64) -> bool {
        !self.by_id.contains_key(&id)
    }

    pub(crate) fn add(&mut self, id: u64) {
        self.total += 1;
        *self.by_id.entry(id).or_default() += 1;
    }

    fn remove(&mut self, id: u64) {
        if let Some(held) = self.by_id.get_mut(&id) {
            self.total -= 1;
            *held -= 1;
            if *held == 0 {
                self.by_id.remove(&id);
            }
        }
    }
}
