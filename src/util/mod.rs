//! Small helpers that know nothing of load balancing.

pub(crate) mod fraction;
pub(crate) mod hash;
pub(crate) mod padded;
pub(crate) mod random;
pub(crate) mod time;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Gives memory back that a list needed once, and no longer by far.
pub(crate) fn trim<T>(list: &mut Vec<T>) {
    if is_roomy(list.len(), list.capacity()) {
        list.shrink_to(2 * list.len());
    }
}

/// Returns whether a collection has much more room than it needs.
pub(crate) const fn is_roomy(len: usize, capacity: usize) -> bool {
    capacity > 64 && capacity / 8 > len
}

/// Drops what belongs to the user. A panic there has been reported by the panic hook, and is
/// no reason to stop.
pub(crate) fn drop_users<T>(value: T) {
    let _panicked = catch_unwind(AssertUnwindSafe(|| drop(value)));
}

/// Locks a mutex whose data is valid at every step, so that poison means nothing.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
