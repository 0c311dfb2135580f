//! The log writer: a thread that writes and syncs in order, so that the loop need not wait.
//!
//! The thread starts with the first write. It calls `notify` after each write, and the owner then
//! fetches the results.

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

struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    notify: Box<dyn Fn() + Send + Sync>,
}

pub struct LogWriter {
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl LogWriter {
    pub fn new(notify: impl Fn() + Send + Sync + 'static) -> LogWriter {
        let notify = Box::new(notify);
        let queue = Queue { state: Mutex::default(), changed: Condvar::new(), notify };
        LogWriter { queue: Arc::new(queue), thread: Mutex::default() }
    }

    /// Queues a write and returns its number.
    pub fn submit(&self, descriptor: RawFd, offset: i64, data: Vec<u8>, sync: bool) -> u64 {
        let mut state = self.queue.state.lock();
        state.numbers += 1;
        let number = state.numbers;
        state.submitted.push_back(Write { number, descriptor, offset, data, sync });
        drop(state);
        self.queue.changed.notify_one();
        self.thread.lock().get_or_insert_with(|| {
            let queue = self.queue.clone();
            thread::Builder::new()
                .name("kvorum-log".to_owned())
                .spawn(move || run(&queue))
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

fn run(queue: &Queue) {
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
        (queue.notify)();
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::sync::mpsc;

    #[test]
    fn writes_end_in_order_and_none_starts_after_a_failure() {
        let (tell, told) = mpsc::channel();
        let writer = LogWriter::new(move || tell.send(()).unwrap());
        let path = std::env::temp_dir().join(format!("kvorum-log-writer-{}", std::process::id()));
        let (written, readable) = (File::create(&path).unwrap(), File::open("/dev/null").unwrap());
        let outcome = |descriptor, offset, data: &[u8], sync| {
            let number = writer.submit(descriptor, offset, data.to_vec(), sync);
            told.recv().unwrap();
            assert!(writer.has_finished());
            let finished = writer.take_finished();
            assert!(!writer.has_finished());
            let [(finished, error, _, _)] = finished[..] else { panic!("{finished:?}") };
            assert_eq!(finished, number);
            (number, error)
        };
        assert_eq!(outcome(written.as_raw_fd(), 4, b"last", true), (1, 0));
        assert_eq!(outcome(written.as_raw_fd(), 0, b"fore", false), (2, 0));
        assert_eq!(outcome(readable.as_raw_fd(), 0, b"lost", true), (3, libc::EBADF));
        assert_eq!(outcome(written.as_raw_fd(), 0, b"late", true), (4, libc::ECANCELED));
        writer.stop();
        assert_eq!(std::fs::read(&path).unwrap(), b"forelast");
        std::fs::remove_file(path).unwrap();
    }
}
