//! Small helpers that know nothing of load balancing.

pub(crate) mod hash;
pub(crate) mod padded;
pub(crate) mod random;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex whose data is valid at every step, so that poison means nothing.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
