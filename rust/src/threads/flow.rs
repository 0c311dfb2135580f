//! Flow control between the loop and a network thread, in both directions, without a lock.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Bytes of one call that the loop has sent and the network thread has not passed on.
#[derive(Default)]
pub struct Pending {
    pub bytes: AtomicUsize,
    /// The bytes reached the threshold; the loop gets WRITABLE when they fall below it.
    pub reached_mark: AtomicBool,
}

impl Pending {
    /// Counts bytes that the loop sends.
    pub fn add(&self, bytes: usize, mark: usize) {
        if self.bytes.fetch_add(bytes, Ordering::SeqCst) + bytes >= mark {
            self.reached_mark.store(true, Ordering::SeqCst);
        }
    }

    /// Counts bytes that left. Those of a unary call's response were never added.
    pub fn sent(&self, bytes: usize) {
        let less = |pending: usize| Some(pending.saturating_sub(bytes));
        let _ = self.bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }

    /// Whether to report WRITABLE: the bytes had reached the threshold and are below it again.
    pub fn is_writable_again(&self, mark: usize) -> bool {
        self.bytes.load(Ordering::SeqCst) < mark
            && self.reached_mark.load(Ordering::SeqCst)
            && self.reached_mark.swap(false, Ordering::SeqCst)
    }
}

/// Bytes of one connection that the network thread has received and the loop has not polled.
///
/// The limit is a function because it may change at any time: each side reads it after its own change.
#[derive(Default)]
pub struct Flow {
    queued: AtomicUsize,
    /// Reading stopped because of the limit; the loop's `poll` has to resume it.
    paused: AtomicBool,
}

impl Flow {
    pub fn queued(&self) -> usize {
        self.queued.load(Ordering::SeqCst)
    }

    /// Counts bytes that the network thread queues.
    pub fn add(&self, bytes: usize) {
        self.queued.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Whether the limit forbids reading; if so, the loop's `poll` resumes it.
    pub fn is_paused(&self, bytes_max: impl Fn() -> usize) -> bool {
        if self.queued() <= bytes_max() {
            return false;
        }
        self.paused.store(true, Ordering::SeqCst);
        // The loop may have taken bytes off the queue before it could see the flag.
        self.queued() > bytes_max()
    }

    /// Counts bytes that the loop polled; true if reading has to be resumed.
    pub fn take(&self, bytes: usize, bytes_max: impl Fn() -> usize) -> bool {
        let left = self.queued.fetch_sub(bytes, Ordering::SeqCst) - bytes;
        self.paused.load(Ordering::SeqCst)
            && left <= bytes_max()
            && self.paused.swap(false, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn reading_resumes_once_below_a_limit_that_moves() {
        let (flow, limit) = (Flow::default(), Cell::new(10));
        let bytes_max = || limit.get();
        flow.add(10);
        assert!(!flow.is_paused(bytes_max) && !flow.take(0, bytes_max));
        flow.add(5);
        assert!(flow.is_paused(bytes_max));
        assert!(!flow.take(4, bytes_max));
        assert!(flow.take(1, bytes_max) && !flow.take(1, bytes_max));
        limit.set(2);
        assert!(flow.is_paused(bytes_max) && !flow.take(6, bytes_max));
        limit.set(3);
        assert!(flow.take(0, bytes_max) && flow.queued() == 3);
    }

    #[test]
    fn a_call_is_writable_once_below_the_mark() {
        let pending = Pending::default();
        pending.add(63, 64);
        assert!(!pending.is_writable_again(64));
        pending.add(1, 64);
        assert!(!pending.is_writable_again(64));
        pending.sent(1);
        assert!(pending.is_writable_again(64) && !pending.is_writable_again(64));
        pending.sent(1000);
        assert_eq!(pending.bytes.load(Ordering::SeqCst), 0);
    }
}
