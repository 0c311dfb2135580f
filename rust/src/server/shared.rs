//! The state that the loop and the network thread share: two queues, limits and counters.
//!
//! The inbox carries requests and events to the loop, the outbox carries the loop's commands. Each
//! is locked once per batch, never per request.

use crate::headers::Wanted;
use crate::server::direct::Direct;
use crate::server::inbox::Inbox;
use crate::server::incidents::Incidents;
use crate::server::room::{Account, Room};
use crate::threads::counters::SocketBytes;
use crate::threads::descriptors::Descriptors;
use crate::threads::flow::{Flow, Pending};
use crate::threads::outbox::Outbox;
use crate::threads::wakeup::Wakeup;
use bytes::Bytes;
use http::header::HOST;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Identifies one RPC or HTTP request by the numbers of its connection and its stream.
pub type Call = u64;

pub fn call_of(connection: u32, stream: u32) -> Call {
    u64::from(connection) << 32 | u64::from(stream)
}

pub fn connection_of(call: Call) -> u32 {
    (call >> 32) as u32
}

pub fn stream_of(call: Call) -> u32 {
    call as u32
}

/// How many `kvorum.network.edge.interface.ListenerKind`s there are.
pub const LISTENER_KINDS: usize = 3;

/// The limits of `kvorum.network.edge.interface.Limits`, where each is documented.
pub struct Limits {
    pub request_bytes_max: usize,
    pub streams_per_connection_max: u32,
    /// By kind of listener.
    pub connections_max: [usize; LISTENER_KINDS],
    pub header_list_bytes_max: u32,
    pub http_header_bytes_max: usize,
    pub http_calls_max: usize,
    pub handshake_max: Duration,
    pub header_read_max: Duration,
    pub http1_idle_max: Duration,
    pub http1_read_max: Duration,
    pub ping_min: Duration,
    /// Interval and timeout of pings to clients.
    pub keepalive: Option<(Duration, Duration)>,
    pub resets_per_second_max: usize,
    pub connection_partial_bytes_max: usize,
    pub connection_unread_bytes_max: usize,
    pub unread_bytes_max: usize,
    pub unread_max: Duration,
    pub stream_queued_bytes_max: u32,
    pub connection_queued_bytes_max: usize,
    pub queued_bytes_max: usize,
    pub stream_writable_bytes: usize,
}

#[derive(Clone, Copy)]
pub struct Method {
    pub number: u32,
    pub streaming: bool,
}

/// The RPCs that are served, by path.
pub struct Methods {
    pub by_path: FxHashMap<String, Method>,
    pub services: HashSet<String>,
}

/// Subscribed metadata of one request: (place among the subscribed keys, first value).
///
/// Values share memory with the header table: with a single byte a client may refer to a long
/// value, as often as it likes.
pub type Metadata = Option<Box<[(usize, HeaderValue)]>>;

pub fn metadata_bytes(metadata: &Metadata) -> usize {
    metadata.iter().flatten().map(|(_, value)| value.len()).sum()
}

pub type Pairs = Vec<(String, String)>;

pub struct Unary {
    pub call: Call,
    pub method: u32,
    pub payload: Bytes,
    pub metadata: Metadata,
}

pub enum EventDetail {
    Opened {
        method: u32,
        metadata: Metadata,
        pending: Arc<Pending>,
    },
    /// The bytes, and how much of the HTTP/2 window to return when the loop polls them.
    Message(Bytes, usize),
    HalfClosed,
    Ended,
    HttpOpened(Box<HttpRequest>),
    Writable,
}

pub struct HttpRequest {
    pub listener: usize,
    pub method: String,
    pub target: String,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub pending: Arc<Pending>,
    /// Lets the loop write the response itself; only at listeners for HTTP/1.1 alone.
    pub direct: Option<Arc<Direct>>,
}

impl HttpRequest {
    pub fn new(
        shared: &Shared,
        parts: &Parts,
        listener: usize,
        pending: Arc<Pending>,
    ) -> HttpRequest {
        let mut headers = shared.http_headers.of(&parts.headers);
        // HTTP/2 carries the host in its authority; the loop expects it in `host`.
        if shared.http_headers.includes(&HOST)
            && !parts.headers.contains_key(HOST)
            && let Some(authority) = parts.uri.authority()
            && let Ok(value) = HeaderValue::from_str(authority.as_str())
        {
            headers.push((HOST, value));
        }
        let target = parts.uri.path_and_query().map_or("*", |target| target.as_str());
        let target = target.bytes().map(char::from).collect();
        let method = parts.method.to_string();
        HttpRequest { listener, method, target, headers, pending, direct: None }
    }

    pub fn bytes(&self) -> usize {
        let sizes = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
        let headers = sizes.sum::<usize>() + HEADER_BYTES * self.headers.len();
        self.method.len() + self.target.len() + headers
    }
}

/// What a header costs besides its bytes, as HTTP/2 counts it.
const HEADER_BYTES: usize = 32;

/// The size of a request's headers, as HTTP/2 counts it.
pub fn header_list_bytes(target: usize, headers: &HeaderMap) -> usize {
    let sizes = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    target + sizes.sum::<usize>() + HEADER_BYTES * headers.len()
}

pub struct Event {
    pub call: Call,
    pub detail: EventDetail,
}

/// A command of the loop to a connection, or to all of them.
pub enum Command {
    Reply {
        call: Call,
        /// The prefix of a long message, which is sent from Python's own buffer.
        head: Option<Bytes>,
        result: Result<Bytes, (i32, String)>,
    },
    Send {
        call: Call,
        data: Bytes,
        is_http: bool,
    },
    Start {
        call: Call,
        metadata: Pairs,
    },
    Finish {
        call: Call,
        code: i32,
        text: String,
        trailers: Pairs,
    },
    Respond {
        call: Call,
        status: u16,
        headers: Pairs,
        body: Option<Bytes>,
    },
    MarkWaiting {
        call: Call,
    },
    /// The loop polled a stream's message; the client may send as many bytes again.
    Release {
        call: Call,
        bytes: usize,
    },
    /// Pause or resume reading a request's body.
    Hold {
        call: Call,
        is_held: bool,
    },
    /// End a connection that leaves too much unread.
    Expel {
        connection: u32,
    },
    /// The connection may read again, or has to finish a chunk that the loop wrote in part.
    Resume {
        connection: u32,
    },
    Listen(Box<crate::server::listener::BoundSocket>),
    /// Run an `Upstream` on the network thread as well.
    Host(Box<crate::upstream::network::Guest>),
    /// Relay calls to that upstream's endpoints.
    Relay(Arc<crate::server::relay::Shared>),
    Drain,
    Stop,
}

impl Command {
    pub fn call(&self) -> Option<Call> {
        match self {
            Command::Reply { call, .. }
            | Command::Send { call, .. }
            | Command::Start { call, .. }
            | Command::Finish { call, .. }
            | Command::Respond { call, .. }
            | Command::MarkWaiting { call }
            | Command::Release { call, .. }
            | Command::Hold { call, .. } => Some(*call),
            _ => None,
        }
    }

    /// Bytes that the command gives the client to take: in a response, and in a stream's messages.
    pub fn load(&self) -> (usize, usize) {
        match self {
            Command::Reply { result: Ok(message), .. } => (message.len(), 0),
            Command::Respond { body: Some(body), .. } => (body.len(), 0),
            Command::Send { data, is_http: true, .. } => (data.len(), 0),
            Command::Send { data, .. } => (0, data.len()),
            _ => (0, 0),
        }
    }
}

/// The state of a connection that the loop may access.
pub struct ConnectionShared {
    pub peer: String,
    /// The certificate that the client has shown, if one was asked for.
    pub certificate: OnceLock<Bytes>,
    pub flow: Flow,
    pub account: Account,
    /// HTTP requests that the loop has not answered; counted by the loop's thread alone.
    pub http_calls: AtomicUsize,
}

/// The counters of `kvorum.network.edge.interface.COUNTERS`.
#[derive(Default)]
pub struct Counters {
    pub connections_accepted: AtomicU64,
    pub connections_open: AtomicU64,
    pub calls_received: AtomicU64,
    pub calls_open: AtomicU64,
    pub messages_received: AtomicU64,
    pub messages_sent: AtomicU64,
    pub bytes: Arc<SocketBytes>,
    pub deadlines_exceeded: AtomicU64,
    pub requests_refused: AtomicU64,
    pub tls_handshakes: AtomicU64,
}

pub struct Shared {
    pub limits: Limits,
    pub methods: Methods,
    pub metadata_keys: Vec<HeaderName>,
    pub http_headers: Wanted,
    pub room: Room,
    pub inbox: Mutex<Inbox>,
    pub outbox: Outbox<Command>,
    pub wakeup: Wakeup,
    pub counters: Counters,
    pub incidents: Incidents,
    /// Sum of the connections' `Flow::queued`.
    pub queued: AtomicUsize,
    /// Bytes of incomplete messages on all connections.
    pub partial: AtomicUsize,
    pub descriptors: Arc<Descriptors>,
    pub draining: AtomicBool,
    /// HTTP/2 connections whose clients may still open calls.
    pub callers: AtomicUsize,
    pub drained: AtomicBool,
    /// Draining has made progress that the loop has not noticed yet.
    pub drain_news: AtomicBool,
}

impl Shared {
    /// Bytes that a connection may have queued: less while all connections together exceed their
    /// limit, so that those with few bytes queued are still served.
    pub fn queued_bytes_max(&self) -> usize {
        let limits = &self.limits;
        match self.queued.load(Ordering::SeqCst) > limits.queued_bytes_max {
            true => limits.connection_queued_bytes_max.min(self.share_of(limits.queued_bytes_max)),
            false => limits.connection_queued_bytes_max,
        }
    }

    /// One connection's equal share of a limit for all connections.
    pub fn share_of(&self, bytes: usize) -> usize {
        bytes / (self.counters.connections_open.load(Ordering::Relaxed).max(1) as usize)
    }
}
