//! Counters that network threads increase and the loop reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of all sockets of one side.
#[derive(Default)]
pub struct SocketBytes {
    pub read: AtomicU64,
    pub written: AtomicU64,
}

pub fn count(counter: &AtomicU64, number: usize) {
    counter.fetch_add(number as u64, Ordering::Relaxed);
}

pub fn uncount(counter: &AtomicU64, number: usize) {
    counter.fetch_sub(number as u64, Ordering::Relaxed);
}
