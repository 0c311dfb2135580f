//! The log writer: a thread that writes and syncs in order, so that the loop need not wait.

use crate::shared::Shared;
use crate::wakeup::Wakeup;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// A write's number, its errno, and the seconds that writing and syncing took.
pub type Written = (u64, i32, f64, f64);

struct Write {
    number: u64,
    descriptor: RawFd,
    offset: i64,
    data: Vec<u8>,
    sync: bool,
}

#[derive(Default)]
struct State {
    submitted: VecDeque<Write>,
    finished: Vec<Written>,
    numbers: u64,
    stopping: bool,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
pub struct LogWriter {
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl LogWriter {
    /// Queues a write and returns its number.
    pub fn submit(
        &self,
        shared: &Arc<Shared>,
        descriptor: RawFd,
        offset: i64,
        data: Vec<u8>,
        sync: bool,
    ) -> u64 {
        let mut state = self.queue.state.lock();
        state.numbers += 1;
        let number = state.numbers;
        state.submitted.push_back(Write { number, descriptor, offset, data, sync });
        drop(state);
        self.queue.changed.notify_one();
        self.thread.lock().get_or_insert_with(|| {
            let (queue, shared) = (self.queue.clone(), shared.clone());
            thread::Builder::new()
                .name("kvorum-log".to_owned())
                .spawn(move || run(&queue, &shared.wakeup))
                .expect("a thread can be started")
        });
        number
    }

    pub fn take_finished(&self) -> Vec<Written> {
        std::mem::take(&mut self.queue.state.lock().finished)
    }

    pub fn has_finished(&self) -> bool {
        !self.queue.state.lock().finished.is_empty()
    }

    /// Ends the thread after the write in progress; writes behind it do not start.
    pub fn stop(&self) {
        self.queue.state.lock().stopping = true;
        self.queue.changed.notify_one();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

fn run(queue: &Queue, wakeup: &Wakeup) {
    // After a failure the file's content is unknown, so later writes must not reach it.
    let mut failed = false;
    loop {
        let mut state = queue.state.lock();
        while state.submitted.is_empty() && !state.stopping {
            queue.changed.wait(&mut state);
        }
        if state.stopping {
            return;
        }
        let Some(write) = state.submitted.pop_front() else { continue };
        drop(state);
        let (began, mut written) = (Instant::now(), Instant::now());
        let error = if failed { libc::ECANCELED } else { perform(&write, &mut written) };
        failed |= error != 0;
        let seconds = (written - began).as_secs_f64();
        let finished = (write.number, error, seconds, written.elapsed().as_secs_f64());
        queue.state.lock().finished.push(finished);
        wakeup.note();
        wakeup.ring();
    }
}

/// Writes and syncs; returns 0 or the errno. `written` becomes the time at which the sync started.
fn perform(write: &Write, written: &mut Instant) -> i32 {
    let mut length = 0;
    while length < write.data.len() {
        let rest = &write.data[length..];
        let offset = write.offset + length as i64;
        let result =
            unsafe { libc::pwrite(write.descriptor, rest.as_ptr().cast(), rest.len(), offset) };
        match result {
            -1 if last_error() == libc::EINTR => {}
            -1 => return last_error(),
            0 => return libc::EIO,
            more => length += more as usize,
        }
    }
    *written = Instant::now();
    if write.sync && unsafe { libc::fdatasync(write.descriptor) } != 0 {
        return last_error();
    }
    0
}

fn last_error() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
