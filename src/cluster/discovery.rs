//! The state of discovery.

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

/// The state of discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Discovery {
    /// No change was published yet.
    Starting,
    /// The driver applies the changes of the stream.
    Following,
    /// The stream has ended; the set stays unchanged.
    Ended,
    /// The driver was dropped before the stream ended, or panicked; the set stays unchanged.
    Stopped,
}

/// The progress of discovery. The driver writes it; calls that wait read it.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    state: AtomicU8,
    updated: AtomicBool,
    errors: AtomicU64,
    policy_panics: AtomicU64,
    /// The last build of a picker panicked, so the snapshot is older than the set.
    unbuilt: AtomicBool,
    messages: Mutex<Messages>,
}

/// How far discovery has come. A snapshot that is read after the flags is at least as new as they
/// are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProgressFlags {
    /// A first update was published.
    pub(crate) updated: bool,
    /// No update will follow.
    pub(crate) finished: bool,
}

#[derive(Debug, Default)]
struct Messages {
    /// The last error of discovery since the last change.
    error: Option<SharedError>,
    /// The message of the last panic of the policy.
    panic: Option<String>,
}

impl Progress {
    /// Records that changes were applied and published.
    pub(crate) fn updated(&self) {
        self.updated.store(true, Ordering::Release);
        lock(&self.messages).error = None;
    }

    pub(crate) fn failed(&self, error: Arc<dyn StdError + Send + Sync>) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        lock(&self.messages).error = Some(SharedError(error));
    }

    pub(crate) fn finish(&self, stopped: bool) {
        self.state.store(1 + u8::from(stopped), Ordering::Release);
    }

    pub(crate) fn policy_panicked(&self, payload: &(dyn Any + Send)) {
        let text = payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        self.policy_panics.fetch_add(1, Ordering::Relaxed);
        self.unbuilt.store(true, Ordering::Release);
        lock(&self.messages).panic = Some(text.unwrap_or_else(|| "no message".to_owned()));
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
            _ => self.running(),
        }
    }

    fn running(&self) -> Discovery {
        if self.has_updated() {
            Discovery::Following
        } else {
            Discovery::Starting
        }
    }

    pub(crate) fn flags(&self) -> ProgressFlags {
        ProgressFlags {
            updated: self.has_updated(),
            finished: self.has_finished(),
        }
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

    /// Returns the last error of discovery since the last change.
    pub(crate) fn last_error(&self) -> Option<BoxError> {
        lock(&self.messages).error.clone().map(Into::into)
    }

    pub(crate) fn last_panic(&self) -> Option<String> {
        lock(&self.messages).panic.clone()
    }
}

/// An error that is the cause of the errors of many calls.
#[derive(Debug, Clone)]
struct SharedError(Arc<dyn StdError + Send + Sync>);

impl fmt::Display for SharedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for SharedError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // The inner error itself is the source, so that callers can downcast it.
        Some(&*self.0)
    }
}
