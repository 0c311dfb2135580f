//! The open sockets of a network thread, so that a forked child can close its copies.
//!
//! A fork happens on the loop's thread. The list must not change meanwhile, since no other thread lives
//! in the child to finish the change.

use parking_lot::Mutex;
use std::collections::HashSet;
use std::os::fd::RawFd;
use std::sync::Arc;

#[derive(Default)]
pub struct Descriptors(Mutex<HashSet<RawFd>>);

impl Descriptors {
    pub fn insert(&self, descriptor: RawFd) {
        self.0.lock().insert(descriptor);
    }

    pub fn remove(&self, descriptor: RawFd) {
        self.0.lock().remove(&descriptor);
    }

    /// Holds the lock on the list while the process forks.
    pub fn before_fork(&self) {
        std::mem::forget(self.0.lock());
    }

    pub fn after_fork_in_parent(&self) {
        // SAFETY: `before_fork` took the lock on this thread and forgot its guard.
        unsafe { self.0.force_unlock() };
    }

    /// Closes the child's copies of the sockets.
    pub fn after_fork_in_child(&self) {
        self.after_fork_in_parent();
        for descriptor in self.0.lock().drain() {
            // SAFETY: no thread that uses the socket runs in the child.
            unsafe { libc::close(descriptor) };
        }
    }
}

/// Keeps a socket in the list; its owner drops it after the socket.
pub struct Registered {
    descriptors: Arc<Descriptors>,
    pub descriptor: RawFd,
}

impl Registered {
    pub fn new(descriptors: &Arc<Descriptors>, descriptor: RawFd) -> Registered {
        descriptors.insert(descriptor);
        Registered { descriptors: descriptors.clone(), descriptor }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.descriptors.remove(self.descriptor);
    }
}
