//! `Upstream`: the Python class that calls other servers. No other upstream module touches Python.
//!
//! `kvorum.network.edge.upstream` documents what each method promises. The loop's side knows which calls
//! are paused or cancelled: `poll` holds back or drops the events of such calls that were already
//! queued. A paused stream's messages keep their bytes of the window, so that the server has to
//! wait.

use crate::attributes::{file, seconds, window_bytes};
use crate::grpc::{self, INTERNAL};
use crate::server::python::NativeEdge;
use crate::server::relay::{self, Rule, Tally};
use crate::server::shared;
use crate::threads::flow::Pending;
use crate::threads::wakeup::Wakeup;
use crate::tls::client::TlsSettings;
use crate::upstream::network::{self, Guest};
use crate::upstream::shared::{
    CallKind, Command, Counters, Detail, Event, Head, Inbox, NewCall, Settings, Shared, Target,
    ToEndpoint,
};
use crate::upstream::status::End;
use bytes::Bytes;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderName, HeaderValue};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

/// Values of `kvorum.network.edge.upstream.UpstreamEventKind`.
const CONNECTED: u8 = 1;
const DISCONNECTED: u8 = 2;
const ANSWERED: u8 = 3;
const MESSAGE: u8 = 4;
const ENDED: u8 = 5;
const WRITABLE: u8 = 6;
const LEAVING: u8 = 7;

/// Parsed paths that are kept; there are no more RPCs than that.
const PATHS_MAX: usize = 1024;

/// A call whose end the loop has not polled.
struct OpenCall {
    endpoint: u64,
    stream: Option<Box<OpenStream>>,
}

#[derive(Default)]
struct OpenStream {
    pending: Arc<Pending>,
    is_paused: bool,
    /// Events held back until the stream is resumed.
    held: VecDeque<Event>,
}

/// The state that only the loop's thread uses.
#[derive(Default)]
struct Loop {
    calls: FxHashMap<u64, OpenCall>,
    calls_started: u64,
    /// Events that were held back and may be polled now.
    resumed: VecDeque<Event>,
    paths: FxHashMap<String, PathAndQuery>,
}

/// The thread that serves the connections.
enum Host {
    Own(JoinHandle<()>),
    /// The thread of an edge, which drops the sender when the upstream ends and sends nothing.
    Edge(mpsc::Receiver<()>),
}

impl Host {
    /// Waits until the thread has ended, or no longer serves the upstream.
    fn join(self) {
        match self {
            Host::Own(thread) => drop(thread.join()),
            Host::Edge(ended) => drop(ended.recv()),
        }
    }
}

#[pyclass(frozen, weakref, module = "kvorum.network.edge._native")]
pub struct Upstream {
    shared: Arc<Shared>,
    /// The edge's shared state, if the edge's thread serves the connections.
    edge: Option<Arc<shared::Shared>>,
    network: Mutex<Option<Host>>,
    state: Mutex<Loop>,
    closed: AtomicBool,
}

#[pymethods]
impl Upstream {
    #[new]
    #[pyo3(signature = (settings, edge = None))]
    fn new(
        settings: &Bound<'_, PyAny>,
        edge: Option<&Bound<'_, NativeEdge>>,
    ) -> PyResult<Upstream> {
        let edge = edge.map(|edge| edge.get().opened().cloned()).transpose()?;
        let shared = Arc::new(Shared {
            settings: read_settings(settings)?,
            inbox: Inbox::default(),
            outbox: Default::default(),
            wakeup: Wakeup::new()?,
            counters: Counters::default(),
            descriptors: Arc::default(),
        });
        let network = match &edge {
            None => Host::Own(network::start(shared.clone())?),
            Some(edge) => {
                let (ended, told) = mpsc::channel();
                let guest = Box::new(Guest { shared: shared.clone(), ended });
                edge.outbox.push([shared::Command::Host(guest)]);
                Host::Edge(told)
            }
        };
        Ok(Upstream {
            shared,
            edge,
            network: Mutex::new(Some(network)),
            state: Mutex::default(),
            closed: AtomicBool::new(false),
        })
    }

    #[pyo3(signature = (endpoint, address, authority, tls = None))]
    fn connect(
        &self,
        endpoint: u64,
        address: String,
        authority: &str,
        tls: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.check_open()?;
        let authority = authority.parse::<Authority>().map_err(|error| {
            PyValueError::new_err(format!("{authority:?} is no authority: {error}"))
        })?;
        let tls = tls.map(read_tls).transpose()?;
        let target = Box::new(Target { address, authority, tls });
        self.shared.outbox.push([Command::Connect(endpoint, target)]);
        Ok(())
    }

    fn disconnect(&self, endpoint: u64) -> PyResult<()> {
        self.check_open()?;
        self.shared.outbox.push([Command::At(endpoint, ToEndpoint::Disconnect)]);
        Ok(())
    }

    fn call(&self, batch: &Bound<'_, PyAny>) -> PyResult<()> {
        self.check_open()?;
        let mut begun = Vec::with_capacity(batch.len().unwrap_or(0));
        let mut state = self.state.lock();
        for item in batch.try_iter()? {
            let item = item?.cast_into::<PyTuple>()?;
            let number: u64 = item.get_borrowed_item(0)?.extract()?;
            let endpoint: u64 = item.get_borrowed_item(1)?.extract()?;
            let path = item.get_borrowed_item(2)?;
            let path = path.cast::<PyString>()?;
            let metadata = item.get_item(4)?;
            let message = item.get_borrowed_item(3)?;
            let message = grpc::frame(message.cast::<PyBytes>()?.as_bytes());
            let head = state.read_head(path.to_str()?, &metadata)?;
            begun.push((number, endpoint, head, CallKind::Unary(message)));
        }
        self.begin(&mut state, begun);
        Ok(())
    }

    fn open(
        &self,
        call: u64,
        endpoint: u64,
        path: &str,
        metadata: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.check_open()?;
        let mut state = self.state.lock();
        let head = state.read_head(path, metadata)?;
        self.begin(&mut state, vec![(call, endpoint, head, CallKind::Stream(Arc::default()))]);
        Ok(())
    }

    fn send(&self, batch: &Bound<'_, PyAny>) -> PyResult<()> {
        self.check_open()?;
        let mark = self.shared.settings.writable_bytes;
        let state = self.state.lock();
        let mut commands = Vec::with_capacity(batch.len().unwrap_or(0));
        for item in batch.try_iter()? {
            let (call, message) = item?.extract::<(u64, Bound<'_, PyBytes>)>()?;
            let Some(OpenCall { endpoint, stream: Some(stream) }) = state.calls.get(&call) else {
                continue;
            };
            let data = grpc::frame(message.as_bytes());
            stream.pending.add(data.len(), mark);
            commands.push(Command::At(*endpoint, ToEndpoint::Send { call, data }));
        }
        drop(state);
        self.shared.outbox.push(commands);
        Ok(())
    }

    fn half_close(&self, call: u64) -> PyResult<()> {
        self.check_open()?;
        if let Some(open) = self.state.lock().calls.get(&call) {
            self.shared.outbox.push([Command::At(open.endpoint, ToEndpoint::HalfClose { call })]);
        }
        Ok(())
    }

    fn cancel(&self, call: u64) -> PyResult<()> {
        self.check_open()?;
        if let Some(open) = self.state.lock().calls.remove(&call) {
            self.shared.outbox.push([Command::At(open.endpoint, ToEndpoint::Cancel { call })]);
        }
        Ok(())
    }

    fn pause(&self, call: u64) -> PyResult<()> {
        self.check_open()?;
        if let Some(stream) = self.state.lock().stream(call) {
            stream.is_paused = true;
        }
        Ok(())
    }

    fn resume(&self, call: u64) -> PyResult<()> {
        self.check_open()?;
        let mut state = self.state.lock();
        if let Some(stream) = state.stream(call) {
            stream.is_paused = false;
            let held = std::mem::take(&mut stream.held);
            state.resumed.extend(held);
        }
        Ok(())
    }

    fn pending_bytes(&self, call: u64) -> PyResult<usize> {
        self.check_open()?;
        let mut state = self.state.lock();
        Ok(state.stream(call).map_or(0, |stream| stream.pending.bytes.load(Ordering::SeqCst)))
    }

    fn fileno(&self) -> PyResult<RawFd> {
        self.check_open()?;
        Ok(self.shared.wakeup.descriptor())
    }

    fn announce_sleep(&self) -> PyResult<bool> {
        self.check_open()?;
        let has_more = !self.state.lock().resumed.is_empty();
        Ok(self.shared.wakeup.announce_sleep(|| has_more || !self.shared.inbox.is_empty()))
    }

    fn awake(&self) -> PyResult<()> {
        self.check_open()?;
        self.shared.wakeup.awake();
        Ok(())
    }

    fn poll<'py>(
        &self,
        py: Python<'py>,
        events_max: usize,
        bytes_max: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        self.check_open()?;
        let mut state = self.state.lock();
        let mut bytes_left = bytes_max;
        let mut taken = Vec::new();
        while taken.len() < events_max
            && bytes_left > 0
            && let Some(event) = state.resumed.pop_front()
        {
            bytes_left = bytes_left.saturating_sub(event.bytes());
            taken.push(event);
        }
        let queued_bytes_max = self.shared.settings.connection_queued_bytes_max;
        let (arrived, resumed) =
            self.shared.inbox.take(events_max - taken.len(), &mut bytes_left, queued_bytes_max);
        let resume = |endpoint| Command::At(endpoint, ToEndpoint::Resume);
        let mut commands: Vec<Command> = resumed.into_iter().map(resume).collect();
        let list = PyList::empty(py);
        for event in taken.into_iter().chain(arrived) {
            if let Some(event) = state.pass_on(event, &mut commands) {
                list.append(event_tuple(py, event)?)?;
            }
        }
        if !commands.is_empty() {
            self.shared.outbox.push(commands);
        }
        Ok(list)
    }

    fn relay(&self, rules: &Bound<'_, PyAny>) -> PyResult<Option<Relay>> {
        self.check_open()?;
        let Some(edge) = &self.edge else { return Ok(None) };
        let shared = Arc::new(read_rules(rules)?);
        edge.outbox.push([shared::Command::Relay(shared.clone())]);
        Ok(Some(Relay { shared }))
    }

    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        let state = self.state.lock();
        dict.set_item("calls_started", state.calls_started)?;
        dict.set_item("calls_open", state.calls.len())?;
        let counters = &self.shared.counters;
        let named = [
            ("messages_sent", &counters.messages_sent),
            ("messages_received", &counters.messages_received),
            ("bytes_read", &counters.bytes.read),
            ("bytes_written", &counters.bytes.written),
            ("connections_made", &counters.connections_made),
            ("connections_failed", &counters.connections_failed),
        ];
        for (name, counter) in named {
            dict.set_item(name, counter.load(Ordering::Relaxed))?;
        }
        Ok(dict)
    }

    fn stop(&self, py: Python<'_>) {
        if !self.closed.swap(true, Ordering::SeqCst) {
            py.detach(|| self.join());
        }
    }

    fn before_fork(&self) {
        self.shared.descriptors.before_fork();
    }

    fn after_fork_in_parent(&self) {
        self.shared.descriptors.after_fork_in_parent();
    }

    /// Closes the child's copies of the sockets; no thread of the upstream runs in the child.
    fn after_fork_in_child(&self) {
        self.closed.store(true, Ordering::SeqCst);
        std::mem::forget(self.network.lock().take());
        self.shared.descriptors.after_fork_in_child();
        self.shared.wakeup.close();
    }
}

impl Upstream {
    fn check_open(&self) -> PyResult<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(PyValueError::new_err("upstream is stopped"));
        }
        Ok(())
    }

    fn begin(&self, state: &mut Loop, begun: Vec<(u64, u64, Result<Head, String>, CallKind)>) {
        let mut commands = Vec::with_capacity(begun.len());
        for (number, endpoint, head, kind) in begun {
            let stream = match &kind {
                CallKind::Unary(_) => None,
                CallKind::Stream(pending) => {
                    let pending = pending.clone();
                    Some(Box::new(OpenStream { pending, ..OpenStream::default() }))
                }
            };
            state.calls.insert(number, OpenCall { endpoint, stream });
            state.calls_started += 1;
            match head {
                Ok(head) => {
                    let call = NewCall { number, head, kind };
                    commands.push(Command::At(endpoint, ToEndpoint::Begin(call)));
                }
                Err(reason) => {
                    let detail = Detail::Ended(End::unprocessed(INTERNAL, reason));
                    state.resumed.push_back(Event { number, detail });
                }
            }
        }
        self.shared.outbox.push(commands);
    }

    fn join(&self) {
        self.shared.outbox.push([Command::Stop]);
        if let Some(network) = self.network.lock().take() {
            network.join();
        }
        self.shared.wakeup.close();
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        // The thread never takes the GIL, so it can be joined while that is held.
        if !self.closed.swap(true, Ordering::SeqCst) {
            self.join();
        }
    }
}

impl Loop {
    fn stream(&mut self, call: u64) -> Option<&mut OpenStream> {
        self.calls.get_mut(&call)?.stream.as_deref_mut()
    }

    /// Returns an event for the loop, unless its call is paused or was cancelled.
    fn pass_on(&mut self, event: Event, commands: &mut Vec<Command>) -> Option<Event> {
        let number = event.number;
        if matches!(event.detail, Detail::Connected | Detail::Disconnected(_) | Detail::Leaving) {
            return Some(event);
        }
        let open = self.calls.get_mut(&number)?;
        if let Some(stream) = &mut open.stream
            && stream.is_paused
            && !matches!(event.detail, Detail::Writable)
        {
            stream.held.push_back(event);
            return None;
        }
        match event.detail {
            Detail::Message(_, bytes) if bytes > 0 => {
                let release = ToEndpoint::Release { call: number, bytes };
                commands.push(Command::At(open.endpoint, release));
            }
            Detail::Answered(_) | Detail::Ended(_) => {
                self.calls.remove(&number);
            }
            _ => {}
        }
        Some(event)
    }

    /// Reads a call's path and metadata; the inner error says why HTTP cannot carry them.
    fn read_head(
        &mut self,
        path: &str,
        metadata: &Bound<'_, PyAny>,
    ) -> PyResult<Result<Head, String>> {
        let known = self.paths.get(path).cloned();
        let known = known.map(Ok).unwrap_or_else(|| path.parse::<PathAndQuery>());
        let found = match known {
            Ok(found) => found,
            Err(error) => return Ok(Err(format!("the path {path:?} cannot be sent: {error}"))),
        };
        if self.paths.len() < PATHS_MAX && !self.paths.contains_key(path) {
            self.paths.insert(path.to_owned(), found.clone());
        }
        let mut headers = Vec::new();
        for pair in metadata.try_iter()? {
            let (name, value) = pair?.extract::<(Bound<'_, PyString>, Bound<'_, PyBytes>)>()?;
            let name = name.to_str()?;
            match header(name, value.as_bytes()) {
                Some(pair) => headers.push(pair),
                None => return Ok(Err(format!("the metadata {name:?} cannot be sent"))),
            }
        }
        Ok(Ok(Head { path: found, metadata: headers }))
    }
}

fn header(name: &str, value: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let value = match name.ends_with("-bin") {
        true => HeaderValue::from_maybe_shared(Bytes::from(grpc::base64(value))),
        false => HeaderValue::from_bytes(value),
    };
    Some((HeaderName::from_lowercase(name.as_bytes()).ok()?, value.ok()?))
}

fn event_tuple<'py>(py: Python<'py>, event: Event) -> PyResult<Bound<'py, PyTuple>> {
    let number = event.number;
    match event.detail {
        Detail::Connected => (CONNECTED, number, py.None()).into_pyobject(py),
        Detail::Disconnected(reason) => (DISCONNECTED, number, reason).into_pyobject(py),
        Detail::Answered(message) => {
            (ANSWERED, number, PyBytes::new(py, &message)).into_pyobject(py)
        }
        Detail::Message(message, _) => {
            (MESSAGE, number, PyBytes::new(py, &message)).into_pyobject(py)
        }
        Detail::Ended(end) => {
            (ENDED, number, (end.code, end.text, end.is_unprocessed)).into_pyobject(py)
        }
        Detail::Writable => (WRITABLE, number, py.None()).into_pyobject(py),
        Detail::Leaving => (LEAVING, number, py.None()).into_pyobject(py),
    }
}

fn read_settings(settings: &Bound<'_, PyAny>) -> PyResult<Settings> {
    Ok(Settings {
        message_bytes_max: settings.getattr("message_bytes_max")?.extract()?,
        connect_max: seconds(settings, "connect_seconds_max")?,
        pings: Some((seconds(settings, "ping_seconds")?, seconds(settings, "pong_seconds_max")?))
            .filter(|(interval, _)| !interval.is_zero()),
        pings_without_calls: settings.getattr("pings_without_calls")?.extract()?,
        stream_queued_bytes_max: window_bytes(settings, "stream_queued_bytes_max")?,
        connection_queued_bytes_max: settings.getattr("connection_queued_bytes_max")?.extract()?,
        writable_bytes: settings.getattr("writable_bytes")?.extract()?,
    })
}

/// The loop's side of a relay.
#[pyclass(frozen, module = "kvorum.network.edge._native")]
pub struct Relay {
    shared: Arc<relay::Shared>,
}

#[pymethods]
impl Relay {
    fn ask(&self, endpoints: Vec<u64>) {
        *self.shared.endpoints.lock() = endpoints;
    }

    fn in_flight(&self) -> (usize, usize) {
        let shared = &self.shared;
        (shared.calls.load(Ordering::SeqCst), shared.bytes.load(Ordering::SeqCst))
    }

    fn take_revision(&self) -> u64 {
        self.shared.revision.swap(0, Ordering::SeqCst)
    }

    fn tallies(&self) -> Vec<(usize, u64, usize)> {
        let tallies = self.shared.tallies.iter().enumerate();
        let read = tallies.map(|(method, tally)| {
            (method, tally.started.load(Ordering::Relaxed), tally.open.load(Ordering::Relaxed))
        });
        read.filter(|(_, started, _)| *started > 0).collect()
    }

    fn failures(&self) -> Vec<(u32, i32, u64)> {
        let failures = self.shared.failures.lock();
        failures.iter().map(|((method, code), count)| (*method, *code, *count)).collect()
    }
}

fn read_rules(rules: &Bound<'_, PyAny>) -> PyResult<relay::Shared> {
    let methods: Vec<(usize, String, Vec<u8>, bool)> = rules.getattr("methods")?.extract()?;
    let mut shared = relay::Shared {
        request_bytes_max: rules.getattr("request_bytes_max")?.extract()?,
        calls_max: rules.getattr("calls_max")?.extract()?,
        bytes_max: rules.getattr("bytes_max")?.extract()?,
        ..relay::Shared::default()
    };
    for (number, path, exception, is_noted) in methods {
        let path = path.parse::<PathAndQuery>();
        let path = path.map_err(|error| PyValueError::new_err(format!("a path: {error}")))?;
        if shared.rules.len() <= number {
            shared.rules.resize_with(number + 1, || None);
            shared.tallies.resize_with(number + 1, Tally::default);
        }
        shared.rules[number] = Some(Rule { path, exception, is_noted });
    }
    Ok(shared)
}

fn read_tls(settings: &Bound<'_, PyAny>) -> PyResult<TlsSettings> {
    Ok(TlsSettings {
        server_name: settings.getattr("server_name")?.extract()?,
        ca_file: file(settings, "ca_file")?,
        cert_file: file(settings, "cert_file")?,
        key_file: file(settings, "key_file")?,
        verify: settings.getattr("verify")?.extract()?,
    })
}
