//! How discovery is doing.

use std::{
    any::Any,
    error::Error as StdError,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
};

use crate::{error::BoxError, util::lock};

/// How discovery is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Discovery {
    /// No change has been seen yet.
    Starting,
    /// Changes are applied as they come.
    Following,
    /// The stream has ended; the set stays as it is.
    Ended,
    /// The driver was dropped before the stream ended, or panicked; the set stays as it is.
    Stopped,
}

/// Shared by the driver, which writes it, and the calls, which read it while they wait.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    state: AtomicU8,
    updated: AtomicBool,
    errors: AtomicU64,
    policy_panics: AtomicU64,
    /// The last compile panicked: the snapshot is older than the set.
    unbuilt: AtomicBool,
    /// The error since the last change, and what a policy last panicked with.
    words: Mutex<Words>,
}

/// How far discovery has come. Whoever reads it, and then the snapshot, sees a snapshot that
/// is at least as new.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    /// A first update was published.
    pub(crate) updated: bool,
    /// No other will be.
    pub(crate) finished: bool,
}

#[derive(Debug, Default)]
struct Words {
    error: Option<Shared>,
    panic: Option<String>,
}

impl Progress {
    /// Notes that changes were applied and published.
    pub(crate) fn updated(&self) {
        self.updated.store(true, Ordering::Release);
        lock(&self.words).error = None;
    }

    pub(crate) fn failed(&self, error: Arc<dyn StdError + Send + Sync>) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        lock(&self.words).error = Some(Shared(error));
    }

    pub(crate) fn finish(&self, stopped: bool) {
        self.state.store(1 + u8::from(stopped), Ordering::Release);
    }

    pub(crate) fn policy_panicked(&self, payload: &(dyn Any + Send)) {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        self.policy_panics.fetch_add(1, Ordering::Relaxed);
        self.unbuilt.store(true, Ordering::Release);
        lock(&self.words).panic = Some(text.unwrap_or_else(|| "no message".to_owned()));
    }

    pub(crate) fn picker_built(&self) {
        self.unbuilt.store(false, Ordering::Release);
    }

    pub(crate) fn is_unbuilt(&self) -> bool {
        self.unbuilt.load(Ordering::Acquire)
    }

    pub(crate) fn discovery(&self) -> Discovery {
        match self.state.load(Ordering::Acquire) {
            1 => Discovery::Ended,
            2 => Discovery::Stopped,
            _ if self.has_updated() => Discovery::Following,
            _ => Discovery::Starting,
        }
    }

    pub(crate) fn told(&self) -> Told {
        Told { updated: self.has_updated(), finished: self.has_finished() }
    }

    fn has_updated(&self) -> bool {
        self.updated.load(Ordering::Acquire)
    }

    pub(crate) fn has_finished(&self) -> bool {
        self.state.load(Ordering::Acquire) != 0
    }

    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    pub(crate) fn policy_panics(&self) -> u64 {
        self.policy_panics.load(Ordering::Relaxed)
    }

    /// Returns the error that came after the last change.
    pub(crate) fn last_error(&self) -> Option<BoxError> {
        lock(&self.words).error.clone().map(Into::into)
    }

    pub(crate) fn last_panic(&self) -> Option<String> {
        lock(&self.words).panic.clone()
    }
}

/// An error that many calls may fail with.
#[derive(Debug, Clone)]
struct Shared(Arc<dyn StdError + Send + Sync>);

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for Shared {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // The shared error is itself a link, so that it can be found by its type.
        Some(&*self.0)
    }
}
