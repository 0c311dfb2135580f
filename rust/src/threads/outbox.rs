//! The outbox: commands of the loop to a network thread, which a task on that thread dispatches.
//!
//! Either thread locks the outbox once per batch, never per command. The loop wakes the network thread
//! only if that sleeps.

use crate::threads::runtime::TaskWaker;
use parking_lot::Mutex;
use std::cell::Cell;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

/// Commands of the loop that the network thread has not taken.
pub struct Outbox<C> {
    commands: Mutex<Vec<C>>,
    filled: AtomicBool,
    /// The network thread is about to wait for its sockets.
    network_asleep: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl<C> Default for Outbox<C> {
    fn default() -> Self {
        Outbox {
            commands: Mutex::default(),
            filled: AtomicBool::new(false),
            network_asleep: AtomicBool::new(false),
            waker: Mutex::default(),
        }
    }
}

impl<C> Outbox<C> {
    /// Hands over a batch; wakes the network thread only if it sleeps.
    pub fn push(&self, batch: impl IntoIterator<Item = C>) {
        self.commands.lock().extend(batch);
        self.filled.store(true, Ordering::SeqCst);
        if self.network_asleep.swap(false, Ordering::SeqCst)
            && let Some(waker) = &*self.waker.lock()
        {
            waker.wake_by_ref();
        }
    }

    pub fn take(&self) -> Vec<C> {
        if !self.filled.load(Ordering::Relaxed) || !self.filled.swap(false, Ordering::SeqCst) {
            return Vec::new();
        }
        std::mem::take(&mut self.commands.lock())
    }

    /// Dispatches the last commands of a pass, and announces that the network thread sleeps.
    pub fn announce_sleep(&self, dispatch: impl Fn()) {
        loop {
            dispatch();
            self.network_asleep.store(true, Ordering::SeqCst);
            // Commands that came before the loop could see this thread sleep must not wait.
            if !self.filled.load(Ordering::SeqCst) {
                return;
            }
            self.awake();
        }
    }

    /// Notes that the network thread runs again.
    pub fn awake(&self) {
        self.network_asleep.store(false, Ordering::SeqCst);
    }
}

/// The task of a network thread that runs whenever the loop has woken the thread for its commands.
#[derive(Default)]
pub struct Dispatcher {
    waker: TaskWaker,
    stopping: Cell<bool>,
}

impl Dispatcher {
    /// Dispatches commands until `stop`.
    pub async fn run<C>(&self, outbox: &Outbox<C>, dispatch: impl Fn()) {
        poll_fn(|cx| {
            // Set only a new waker: a thread that wakes this one may still hold the old one's lock.
            if self.waker.set(cx.waker()) {
                *outbox.waker.lock() = Some(cx.waker().clone());
            }
            dispatch();
            if self.stopping.get() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    pub fn stop(&self) {
        self.stopping.set(true);
        self.waker.wake();
    }

    /// Drops the wakers, which keep the runtime's descriptors open.
    pub fn clear<C>(&self, outbox: &Outbox<C>) {
        *outbox.waker.lock() = None;
        self.waker.clear();
    }
}
