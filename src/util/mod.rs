//! Small helpers that are independent of load balancing.

pub(crate) mod fraction;
pub(crate) mod hash;
pub(crate) mod padded;
pub(crate) mod random;
pub(crate) mod time;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Frees most of the spare memory of a list that was much longer before.
pub(crate) fn trim<T>(list: &mut Vec<T>) {
    if is_roomy(list.len(), list.capacity()) {
        list.shrink_to(2 * list.len());
    }
}

/// Returns whether a collection has more than eight times the memory that it needs.
///
/// Both numbers are choices: up to 64 entries there is little to free, and with a factor of eight a
/// collection that grows and shrinks is rarely reallocated.
pub(crate) const fn is_roomy(len: usize, capacity: usize) -> bool {
    capacity > 64 && capacity / 8 > len
}

/// Drops a value of a user's type. The panic hook has reported a panic of its drop, which is
/// otherwise ignored.
pub(crate) fn drop_users<T>(value: T) {
    let _panicked = catch_unwind(AssertUnwindSafe(|| drop(value)));
}

/// Locks a mutex whose data is valid at every step, and so ignores that it is poisoned.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
