//! Bounded load: how many calls run at each endpoint, and how many may.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use crate::util::lock;

/// The calls that run under a bound.
///
/// The bound compares two numbers that change together, so one lock for starts and ends keeps it
/// exact.
#[derive(Debug)]
pub(crate) struct Bounded(Mutex<Held>);

/// The number of running calls, in total and at each endpoint.
#[derive(Debug)]
pub(crate) struct Held {
    factor: f64,
    total: u64,
    by_id: HashMap<u64, u64>,
}

/// One running call under the bound. Its drop ends the call.
#[derive(Debug)]
pub(crate) struct Permit {
    bounded: Arc<Bounded>,
    id: u64,
}

/// Keeps products like 1.1 × 10 from exceeding a whole number by rounding. It is above the rounding
/// error of a double, and below one call in a million million.
const ROUNDING: f64 = 1.0 - 1e-12;

impl Bounded {
    pub(crate) fn new(factor: f64) -> Self {
        Self(Mutex::new(Held {
            factor,
            total: 0,
            by_id: HashMap::new(),
        }))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Held> {
        lock(&self.0)
    }
}

impl Held {
    /// Returns whether an endpoint with this share of the load may take one more call.
    ///
    /// An endpoint without a share may take one call.
    pub(crate) fn has_room(&self, id: u64, share: f64) -> bool {
        let held = self.by_id.get(&id).copied().unwrap_or(0);
        if share == 0.0 {
            return held == 0;
        }
        let bound = self.factor * (self.total + 1) as f64 * share;
        (held + 1) as f64 <= (bound * ROUNDING).ceil()
    }

    /// Counts a call until its permit is dropped.
    pub(crate) fn start(&mut self, bounded: &Arc<Bounded>, id: u64) -> Permit {
        self.total += 1;
        *self.by_id.entry(id).or_default() += 1;
        Permit {
            bounded: Arc::clone(bounded),
            id,
        }
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
