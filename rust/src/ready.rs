//! Records which streams of a connection are ready: each stream's waker notes the stream's number.
//!
//! A connection may carry thousands of idle watches; visiting each of them on every pass would be
//! far too slow.

use parking_lot::Mutex;
use std::sync::Arc;
use std::task::{Wake, Waker};

#[derive(Default)]
pub struct Ready {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    streams: Vec<u32>,
    task: Option<Waker>,
    /// The connection's task is running and will take `streams` before it returns.
    running: bool,
}

impl Ready {
    pub fn begin_pass(&self, task: &Waker) {
        let mut state = self.state.lock();
        state.running = true;
        if state.task.as_ref().is_none_or(|current| !current.will_wake(task)) {
            state.task = Some(task.clone());
        }
    }

    /// Ends the pass and returns true, unless a stream became ready in it.
    pub fn end_pass(&self) -> bool {
        let mut state = self.state.lock();
        state.running = !state.streams.is_empty();
        !state.running
    }

    pub fn take(&self) -> Vec<u32> {
        std::mem::take(&mut self.state.lock().streams)
    }

    pub fn push(&self, stream: u32) {
        let mut state = self.state.lock();
        state.streams.push(stream);
        // Waking a running task would only make it run once more in vain.
        if !state.running
            && let Some(task) = &state.task
        {
            task.wake_by_ref();
        }
    }
}

struct StreamWaker {
    stream: u32,
    ready: Arc<Ready>,
}

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        self.ready.push(self.stream);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.push(self.stream);
    }
}

pub fn stream_waker(ready: &Arc<Ready>, stream: u32) -> Waker {
    Arc::new(StreamWaker { stream, ready: ready.clone() }).into()
}
