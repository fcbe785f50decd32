//! Spawns the driver, and ends it with the last balancer.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{runtime::Handle, sync::oneshot};

use crate::util::lock;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Spawns the driver, at the first call if there is no runtime before.
pub(crate) struct Spawner {
    has_task: AtomicBool,
    task: Mutex<Option<Task>>,
    /// Dropped with the balancer; that ends the driver.
    _alive: oneshot::Sender<()>,
}

impl Spawner {
    /// Creates a spawner, and a receiver that ends when the balancer is dropped.
    pub(crate) fn new() -> (Self, oneshot::Receiver<()>) {
        let (alive, closed) = oneshot::channel();
        let task = Mutex::new(None);
        (
            Self {
                has_task: AtomicBool::new(false),
                task,
                _alive: alive,
            },
            closed,
        )
    }

    /// Spawns the driver inside a runtime; outside, keeps it for [`spawn_pending`](Self::spawn_pending).
    pub(crate) fn start(&self, driver: impl Future<Output = ()> + Send + 'static) {
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(driver)),
            Err(_) => {
                *lock(&self.task) = Some(Box::pin(driver));
                self.has_task.store(true, Ordering::Release);
            }
        }
    }

    /// Spawns a driver that [`start`](Self::start) has kept. Cost: one load if there is none.
    #[inline]
    pub(crate) fn spawn_pending(&self) {
        if self.has_task.load(Ordering::Acquire) {
            self.spawn_task();
        }
    }

    #[cold]
    fn spawn_task(&self) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if let Some(driver) = lock(&self.task).take() {
            self.has_task.store(false, Ordering::Release);
            drop(runtime.spawn(driver));
        }
    }
}

impl fmt::Debug for Spawner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spawner")
            .field("has_task", &self.has_task)
            .finish_non_exhaustive()
    }
}
