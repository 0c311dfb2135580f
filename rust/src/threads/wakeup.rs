//! Wakes the loop from the native threads: one eventfd, written only while the loop sleeps.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

pub struct Wakeup {
    /// -1 once it is closed.
    descriptor: AtomicI32,
    /// The loop has announced that it sleeps, and no thread has woken it yet.
    sleeping: AtomicBool,
    /// Writes to the descriptor that the loop has not read; counted before they are made, so that a
    /// loop which counts none has nothing to read.
    rings: AtomicU64,
    /// Something was queued since the loop last announced sleep.
    noted: AtomicBool,
}

impl Wakeup {
    pub fn new() -> io::Result<Wakeup> {
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Wakeup {
            descriptor: AtomicI32::new(descriptor),
            sleeping: AtomicBool::new(false),
            rings: AtomicU64::new(0),
            noted: AtomicBool::new(false),
        })
    }

    pub fn descriptor(&self) -> RawFd {
        self.descriptor.load(Ordering::SeqCst)
    }

    /// Closes the descriptor. No thread may use it any more.
    pub fn close(&self) {
        let descriptor = self.descriptor.swap(-1, Ordering::SeqCst);
        if descriptor >= 0 {
            unsafe { libc::close(descriptor) };
        }
    }

    /// Notes that something was queued; `ring` then wakes a sleeping loop.
    pub fn note(&self) {
        self.noted.store(true, Ordering::SeqCst);
    }

    /// Wakes the loop if it sleeps and something was noted.
    pub fn ring(&self) {
        if self.noted.load(Ordering::SeqCst) && self.sleeping.swap(false, Ordering::SeqCst) {
            self.rings.fetch_add(1, Ordering::SeqCst);
            let one = 1u64;
            // A full counter (EAGAIN) means that the loop is being woken already.
            unsafe { libc::write(self.descriptor(), (&raw const one).cast(), 8) };
        }
    }

    /// Announces sleep unless something waits.
    ///
    /// A thread queues before it checks whether the loop sleeps; the loop checks the queues after
    /// it has announced its sleep. Therefore at least one of the two sees the other.
    pub fn announce_sleep(&self, something_waits: impl FnOnce() -> bool) -> bool {
        self.noted.store(false, Ordering::SeqCst);
        self.sleeping.store(true, Ordering::SeqCst);
        if something_waits() {
            self.awake();
            return false;
        }
        true
    }

    pub fn awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
        if self.rings.load(Ordering::SeqCst) > 0 {
            // The count stays zero if the write is still to come.
            let mut count = 0u64;
            unsafe { libc::read(self.descriptor(), (&raw mut count).cast(), 8) };
            self.rings.fetch_sub(count, Ordering::SeqCst);
        }
    }
}

impl Drop for Wakeup {
    fn drop(&mut self) {
        self.close();
    }
}
