//! What the loop's side and the calling thread share: commands one way, events the other.
//!
//! Each queue is locked once per batch, never per call.

use crate::shared::{Outbox, Pending, count};
use crate::upstream_status::End;
use crate::upstream_tls::TlsSettings;
use crate::wakeup::Wakeup;
use bytes::Bytes;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderName, HeaderValue};
use parking_lot::Mutex;
use std::collections::{HashSet, VecDeque};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// What an event costs while it waits, besides its bytes.
const OVERHEAD_BYTES: usize = 256;

/// The settings of `kvorum.edge.upstream.UpstreamSettings`, where each is documented.
pub struct Settings {
    pub message_bytes_max: usize,
    pub connect_max: Duration,
    /// Interval and timeout of pings.
    pub pings: Option<(Duration, Duration)>,
    pub pings_without_calls: bool,
    pub stream_queued_bytes_max: u32,
    pub connection_queued_bytes_max: usize,
    pub writable_bytes: usize,
}

/// A call that has not begun.
pub struct NewCall {
    pub number: u64,
    pub head: Head,
    pub kind: CallKind,
}

/// What a call begins with.
pub struct Head {
    pub path: PathAndQuery,
    pub metadata: Vec<(HeaderName, HeaderValue)>,
}

pub enum CallKind {
    /// Its message, framed.
    Unary(Bytes),
    Stream(Arc<Pending>),
}

pub struct Target {
    pub address: String,
    pub authority: Authority,
    pub tls: Option<TlsSettings>,
}

/// A command of the loop to the calling thread.
pub enum Command {
    Connect(u64, Box<Target>),
    /// For the endpoint with this number.
    At(u64, ToEndpoint),
    Stop,
}

pub enum ToEndpoint {
    Begin(NewCall),
    Send {
        call: u64,
        data: Bytes,
    },
    HalfClose {
        call: u64,
    },
    Cancel {
        call: u64,
    },
    /// A stream's message was taken; the server may send as many bytes again.
    Release {
        call: u64,
        bytes: usize,
    },
    /// What it has queued is little enough to read on.
    Resume,
    Disconnect,
}

pub enum Detail {
    Connected,
    Disconnected(String),
    Answered(Bytes),
    /// The bytes, and how much of the HTTP/2 window to give back when they are taken.
    Message(Bytes, usize),
    Ended(End),
    Writable,
    Leaving,
}

pub struct Event {
    /// The endpoint's or the call's.
    pub number: u64,
    pub detail: Detail,
}

impl Event {
    pub fn bytes(&self) -> usize {
        match &self.detail {
            Detail::Answered(data) | Detail::Message(data, _) => data.len(),
            Detail::Ended(end) => end.text.len(),
            _ => 0,
        }
    }

    fn cost(&self) -> usize {
        self.bytes() + OVERHEAD_BYTES
    }
}

/// How much of one connection waits to be polled.
#[derive(Default)]
pub struct Flow {
    queued: AtomicUsize,
    /// Reading stopped because of the limit; `poll` has to say when it may go on.
    paused: AtomicBool,
}

impl Flow {
    /// Whether the limit forbids reading; if so, `poll` will resume it.
    pub fn is_paused(&self, bytes_max: usize) -> bool {
        if self.queued.load(Ordering::SeqCst) <= bytes_max {
            return false;
        }
        self.paused.store(true, Ordering::SeqCst);
        // Whoever took bytes off the queue meanwhile may not have seen the flag.
        self.queued.load(Ordering::SeqCst) > bytes_max
    }

    /// Takes bytes off; true if reading has to be resumed.
    fn take(&self, bytes: usize, bytes_max: usize) -> bool {
        let left = self.queued.fetch_sub(bytes, Ordering::SeqCst) - bytes;
        self.paused.load(Ordering::SeqCst)
            && left <= bytes_max
            && self.paused.swap(false, Ordering::SeqCst)
    }
}

/// What one pass over a connection found.
struct Batch {
    endpoint: u64,
    flow: Arc<Flow>,
    events: VecDeque<Event>,
}

/// What happened and was not polled.
#[derive(Default)]
pub struct Inbox {
    batches: Mutex<VecDeque<Batch>>,
}

impl Inbox {
    pub fn is_empty(&self) -> bool {
        self.batches.lock().is_empty()
    }

    /// Takes at most so many events and about so many bytes; returns the connections that may be
    /// read from again, too.
    pub fn take(
        &self,
        events_max: usize,
        bytes_left: &mut usize,
        queued_bytes_max: usize,
    ) -> (Vec<Event>, Vec<u64>) {
        let (mut taken, mut resumed) = (Vec::new(), Vec::new());
        let mut batches = self.batches.lock();
        while taken.len() < events_max
            && *bytes_left > 0
            && let Some(batch) = batches.front_mut()
        {
            let mut cost = 0;
            while taken.len() < events_max
                && *bytes_left > 0
                && let Some(event) = batch.events.pop_front()
            {
                cost += event.cost();
                *bytes_left = bytes_left.saturating_sub(event.bytes());
                taken.push(event);
            }
            if batch.flow.take(cost, queued_bytes_max) {
                resumed.push(batch.endpoint);
            }
            if batch.events.is_empty() {
                batches.pop_front();
            }
        }
        (taken, resumed)
    }
}

/// The counters of `kvorum.edge.upstream.UPSTREAM_COUNTERS`; the loop's side knows its calls.
#[derive(Default)]
pub struct Counters {
    pub messages_sent: AtomicU64,
    pub messages_received: AtomicU64,
    pub bytes_read: AtomicU64,
    pub bytes_written: AtomicU64,
    pub connections_made: AtomicU64,
    pub connections_failed: AtomicU64,
}

pub struct Shared {
    pub settings: Settings,
    pub inbox: Inbox,
    pub outbox: Outbox<Command>,
    pub wakeup: Wakeup,
    pub counters: Counters,
    /// Every socket, so that a forked child can close its copies.
    pub descriptors: Mutex<HashSet<RawFd>>,
}

impl Shared {
    /// Queues what happened, under one lock; the end of the thread's pass wakes the loop.
    pub fn publish(&self, endpoint: u64, flow: &Arc<Flow>, events: VecDeque<Event>) {
        if events.is_empty() {
            return;
        }
        let is_message = |event: &&Event| matches!(event.detail, Detail::Message(..));
        let is_answer = |event: &&Event| matches!(event.detail, Detail::Answered(_));
        let messages = events.iter().filter(|event| is_message(event) || is_answer(event)).count();
        flow.queued.fetch_add(events.iter().map(Event::cost).sum(), Ordering::SeqCst);
        self.inbox.batches.lock().push_back(Batch { endpoint, flow: flow.clone(), events });
        count(&self.counters.messages_received, messages);
        self.wakeup.note();
    }
}
