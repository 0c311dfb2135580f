//! The state that the loop and the upstream thread share: commands one way, events the other.
//!
//! Each queue is locked once per batch, never per call.

use crate::threads::counters::{SocketBytes, count};
use crate::threads::descriptors::Descriptors;
use crate::threads::flow::{Flow, Pending};
use crate::threads::outbox::Outbox;
use crate::threads::wakeup::Wakeup;
use crate::tls::client::TlsSettings;
use crate::upstream::status::End;
use bytes::Bytes;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderName, HeaderValue};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Memory that a waiting event costs besides its bytes.
const OVERHEAD_BYTES: usize = 256;

/// The settings of `kvorum.network.edge.upstream.UpstreamSettings`, where each is documented.
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

/// A call that has not started.
pub struct NewCall {
    pub number: u64,
    pub head: Head,
    pub kind: CallKind,
}

/// A call's path and metadata.
pub struct Head {
    pub path: PathAndQuery,
    pub metadata: Vec<(HeaderName, HeaderValue)>,
}

pub enum CallKind {
    /// The call's message, framed.
    Unary(Bytes),
    Stream(Arc<Pending>),
}

pub struct Target {
    pub address: String,
    pub authority: Authority,
    pub tls: Option<TlsSettings>,
}

/// A command of the loop to the upstream thread.
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
    /// The loop polled a stream's message; the server may send as many bytes again.
    Release {
        call: u64,
        bytes: usize,
    },
    /// The endpoint has few enough bytes queued to read on.
    Resume,
    Disconnect,
}

pub enum Detail {
    Connected,
    Disconnected(String),
    Answered(Bytes),
    /// The bytes, and how much of the HTTP/2 window to return when the loop polls them.
    Message(Bytes, usize),
    Ended(End),
    Writable,
    Leaving,
}

pub struct Event {
    /// The number of the endpoint or of the call.
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

/// The bytes of one connection that wait to be polled.
#[derive(Default)]
/// The events of one pass over a connection.
struct Batch {
    endpoint: u64,
    flow: Arc<Flow>,
    events: VecDeque<Event>,
}

/// The events that the loop has not polled.
#[derive(Default)]
pub struct Inbox {
    batches: Mutex<VecDeque<Batch>>,
}

impl Inbox {
    pub fn is_empty(&self) -> bool {
        self.batches.lock().is_empty()
    }

    /// Takes at most `events_max` events and about `bytes_left` bytes; returns also the connections
    /// that may be read again.
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
            if batch.flow.take(cost, || queued_bytes_max) {
                resumed.push(batch.endpoint);
            }
            if batch.events.is_empty() {
                batches.pop_front();
            }
        }
        (taken, resumed)
    }
}

/// The counters of `kvorum.network.edge.upstream.UPSTREAM_COUNTERS`; the loop's side counts the calls.
#[derive(Default)]
pub struct Counters {
    pub messages_sent: AtomicU64,
    pub messages_received: AtomicU64,
    pub bytes: Arc<SocketBytes>,
    pub connections_made: AtomicU64,
    pub connections_failed: AtomicU64,
}

pub struct Shared {
    pub settings: Settings,
    pub inbox: Inbox,
    pub outbox: Outbox<Command>,
    pub wakeup: Wakeup,
    pub counters: Counters,
    pub descriptors: Arc<Descriptors>,
}

impl Shared {
    /// Queues events under one lock; the thread wakes the loop at the end of its pass.
    pub fn publish(&self, endpoint: u64, flow: &Arc<Flow>, events: VecDeque<Event>) {
        if events.is_empty() {
            return;
        }
        let is_message = |event: &&Event| matches!(event.detail, Detail::Message(..));
        let is_answer = |event: &&Event| matches!(event.detail, Detail::Answered(_));
        let messages = events.iter().filter(|event| is_message(event) || is_answer(event)).count();
        flow.add(events.iter().map(Event::cost).sum());
        self.inbox.batches.lock().push_back(Batch { endpoint, flow: flow.clone(), events });
        count(&self.counters.messages_received, messages);
        self.wakeup.note();
    }
}
