//! A network thread: one single-threaded runtime, its tasks, and their wakers.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;

/// Starts a thread with a runtime, which `run` gets; `before_sleep` and `after_sleep` run on the thread
/// around each wait for its sockets.
pub fn start(
    name: &str,
    before_sleep: impl Fn() + Send + Sync + 'static,
    after_sleep: impl Fn() + Send + Sync + 'static,
    run: impl FnOnce(Runtime) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let (tell, told) = mpsc::channel();
    let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
        let built = Builder::new_current_thread()
            .enable_all()
            .on_thread_park(before_sleep)
            .on_thread_unpark(after_sleep)
            .build();
        match built {
            Ok(runtime) => {
                let _ = tell.send(Ok(()));
                run(runtime);
            }
            Err(error) => {
                let _ = tell.send(Err(error));
            }
        }
    })?;
    told.recv().map_err(io::Error::other)??;
    Ok(thread)
}

/// Makes a future `Send` although it stays on this thread.
struct Here<F>(F);

// A single-threaded runtime polls and drops its tasks on the thread that runs it.
unsafe impl<F> Send for Here<F> {}

impl<F: Future> Future for Here<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        unsafe { self.map_unchecked_mut(|here| &mut here.0) }.poll(cx)
    }
}

/// Starts a task on this thread, which must be a network thread.
pub fn spawn(future: impl Future<Output = ()> + 'static) -> AbortHandle {
    tokio::spawn(Here(future)).abort_handle()
}

/// The waker of a task, for others on the same thread.
#[derive(Default)]
pub struct TaskWaker(RefCell<Option<Waker>>);

impl TaskWaker {
    /// Keeps the waker of the task, which calls this whenever it runs; true if the waker is new.
    pub fn set(&self, waker: &Waker) -> bool {
        let mut current = self.0.borrow_mut();
        let is_new = current.as_ref().is_none_or(|current| !current.will_wake(waker));
        if is_new {
            *current = Some(waker.clone());
        }
        is_new
    }

    pub fn clear(&self) {
        self.0.take();
    }

    pub fn wake(&self) {
        if let Some(waker) = &*self.0.borrow() {
            waker.wake_by_ref();
        }
    }
}
