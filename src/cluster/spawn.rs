//! Has the driver spawned, now or later, and ended with the last balancer.

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

/// Holds a driver that could not be spawned yet: there was no runtime.
pub(crate) struct Spawner {
    has_task: AtomicBool,
    task: Mutex<Option<Task>>,
    /// Dropped with the balancer, which tells the driver to end.
    _alive: oneshot::Sender<()>,
}

impl Spawner {
    /// Creates a spawner, and what tells the driver that the balancer is gone.
    pub(crate) fn new() -> (Self, oneshot::Receiver<()>) {
        let (alive, closed) = oneshot::channel();
        let task = Mutex::new(None);
        (Self { has_task: AtomicBool::new(false), task, _alive: alive }, closed)
    }

    /// Spawns the driver, now if this runs inside a runtime, else at the next chance.
    pub(crate) fn start(&self, driver: impl Future<Output = ()> + Send + 'static) {
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(driver)),
            Err(_) => {
                *lock(&self.task) = Some(Box::pin(driver));
                self.has_task.store(true, Ordering::Release);
            }
        }
    }

    /// Spawns the driver if it still waits for that. Cost: one load if not.
    #[inline]
    pub(crate) fn spawn_pending(&self) {
        if self.has_task.load(Ordering::Acquire) {
            self.spawn_task();
        }
    }

    #[cold]
    fn spawn_task(&self) {
        let Ok(runtime) = Handle::try_current() else { return };
        if let Some(driver) = lock(&self.task).take() {
            self.has_task.store(false, Ordering::Release);
            drop(runtime.spawn(driver));
        }
    }
}

impl fmt::Debug for Spawner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spawner").field("has_task", &self.has_task).finish_non_exhaustive()
    }
}
