//! `NativeEdge`: the edge's Python class. On the server's side, no other module touches Python.
//!
//! `kvorum.network.edge.interface` documents what each method promises.

use crate::attributes::{file, seconds, window_bytes};
use crate::grpc;
use crate::headers::{self, Wanted};
use crate::server::direct::{Direct, Wrote};
use crate::server::inbox::Freed;
use crate::server::incidents::Incidents;
use crate::server::listener::{BoundSocket, ListenerFacts, Serves};
use crate::server::network;
use crate::server::room::Room;
use crate::server::shared::{
    Call, Command, ConnectionShared, Counters, Event, EventDetail, LISTENER_KINDS, Limits,
    Metadata, Method, Methods, Pairs, Shared, Unary, connection_of,
};
use crate::threads::counters::count;
use crate::threads::flow::Pending;
use crate::threads::outbox::Outbox;
use crate::threads::wakeup::Wakeup;
use crate::tls::server::{Tls, TlsSettings};
use bytes::Bytes;
use http::HeaderName;
use http::header::InvalidHeaderName;
use kvorum_storage::log_writer::{LogWriter, Written};
use parking_lot::Mutex;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use rustc_hash::FxHashMap;
use std::collections::HashSet;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// Values of `kvorum.network.edge.interface.EventKind`.
const OPENED: u8 = 1;
const MESSAGE: u8 = 2;
const HALF_CLOSED: u8 = 3;
const ENDED: u8 = 4;
const HTTP_OPENED: u8 = 5;
const WRITABLE: u8 = 6;

/// Responses from this size on are sent from Python's own buffer: copying them would cost the loop
/// time, and as much memory again.
const LENT_BYTES_MIN: usize = 256 * 1024;

/// A stream or HTTP request that the loop has polled and not finished.
struct OpenStream {
    pending: Arc<Pending>,
    is_http: bool,
    direct: Option<Arc<Direct>>,
}

#[pyclass(frozen, weakref, module = "kvorum.network.edge._native")]
pub struct NativeEdge {
    shared: Arc<Shared>,
    log_writer: LogWriter,
    network: Mutex<Option<JoinHandle<()>>>,
    streams: Mutex<FxHashMap<Call, OpenStream>>,
    metadata_keys: Vec<Py<PyString>>,
    listeners: AtomicUsize,
    closed: AtomicBool,
}

#[pymethods]
impl NativeEdge {
    #[new]
    fn new(
        py: Python<'_>,
        methods: Vec<(String, bool)>,
        metadata_keys: Vec<String>,
        limits: &Bound<'_, PyAny>,
        http_headers: Vec<String>,
    ) -> PyResult<NativeEdge> {
        let shared = Arc::new(Shared {
            limits: read_limits(limits)?,
            methods: table_of(methods),
            metadata_keys: header_names(&metadata_keys)?,
            http_headers: Wanted::new(&http_headers).map_err(no_name)?,
            room: Room::default(),
            inbox: Mutex::default(),
            outbox: Outbox::default(),
            wakeup: Wakeup::new()?,
            counters: Counters::default(),
            incidents: Incidents::default(),
            queued: AtomicUsize::new(0),
            partial: AtomicUsize::new(0),
            descriptors: Arc::default(),
            drained: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            callers: AtomicUsize::new(0),
            drain_news: AtomicBool::new(false),
        });
        let network = network::start(shared.clone())?;
        let notified = shared.clone();
        let log_writer = LogWriter::new(move || {
            notified.wakeup.note();
            notified.wakeup.ring();
        });
        Ok(NativeEdge {
            shared,
            log_writer,
            network: Mutex::new(Some(network)),
            streams: Mutex::default(),
            metadata_keys: interned(py, &metadata_keys),
            listeners: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        })
    }

    fn check_tls(&self, tls: &Bound<'_, PyAny>) -> PyResult<()> {
        self.check_open()?;
        Tls::new(read_tls(tls, false)?)
            .map(|_| ())
            .map_err(|reason| PyOSError::new_err((libc::EINVAL, reason)))
    }

    #[pyo3(signature = (
        address, tls = None, *, http1_only = false, kind = 0, serves = 0, reuse_port = false
    ))]
    fn listen(
        &self,
        address: &str,
        tls: Option<&Bound<'_, PyAny>>,
        http1_only: bool,
        kind: usize,
        serves: usize,
        reuse_port: bool,
    ) -> PyResult<(usize, String)> {
        self.check_open()?;
        let serves = Serves::from_number(serves)
            .ok_or_else(|| PyValueError::new_err(format!("{serves} is nothing to serve")))?;
        let number = self.listeners.load(Ordering::Relaxed);
        let tls = match tls {
            Some(settings) => {
                Some(Tls::new(read_tls(settings, http1_only)?).map_err(|reason| {
                    let text = format!("cannot listen at {address} with TLS: {reason}");
                    PyOSError::new_err((libc::EINVAL, text))
                })?)
            }
            None => None,
        };
        if kind >= LISTENER_KINDS {
            return Err(PyValueError::new_err(format!("{kind} is no kind of listener")));
        }
        let facts = ListenerFacts { number, kind, http1_only, serves };
        let bound = BoundSocket::new(address, facts, tls, reuse_port);
        let (bound, address) = bound.map_err(|error| {
            let reason = error.to_string();
            // The exception carries the errno itself, so its text leaves that out.
            let reason = reason.split(" (os error").next().unwrap_or_default();
            let text = format!("cannot listen at {address}: {reason}");
            PyOSError::new_err((error.raw_os_error().unwrap_or(libc::EINVAL), text))
        })?;
        self.listeners.store(number + 1, Ordering::Relaxed);
        self.shared.outbox.push([Command::Listen(Box::new(bound))]);
        Ok((number, address))
    }

    fn fileno(&self) -> RawFd {
        self.shared.wakeup.descriptor()
    }

    fn announce_sleep(&self) -> PyResult<bool> {
        self.check_open()?;
        Ok(self.shared.wakeup.announce_sleep(|| {
            !self.shared.inbox.lock().is_empty()
                || self.log_writer.has_finished()
                || self.shared.room.take_news()
                || self.shared.drain_news.swap(false, Ordering::SeqCst)
        }))
    }

    fn awake(&self) -> PyResult<()> {
        self.check_open()?;
        self.shared.wakeup.awake();
        Ok(())
    }

    fn poll<'py>(
        &self,
        py: Python<'py>,
        calls_max: usize,
        bytes_max: usize,
    ) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyList>)> {
        self.check_open()?;
        let mut commands: Vec<Command> = Vec::new();
        for connection in self.shared.room.offenders(&self.shared) {
            commands.push(Command::Expel { connection });
        }
        let (unary, events) = self.take(calls_max, bytes_max, &mut commands);
        let requests = PyList::empty(py);
        for request in unary {
            requests.append(self.request_tuple(py, request)?)?;
        }
        let list = PyList::empty(py);
        for event in events {
            list.append(self.event_tuple(py, event, &mut commands)?)?;
        }
        if !commands.is_empty() {
            self.shared.outbox.push(commands);
        }
        Ok((requests, list))
    }

    fn reply(&self, batch: &Bound<'_, PyAny>) -> PyResult<()> {
        self.check_open()?;
        let mut commands = Vec::with_capacity(batch.len().unwrap_or(0));
        for item in batch.try_iter()? {
            let item = item?.cast_into::<PyTuple>()?;
            let answer = item.get_borrowed_item(1)?;
            let mut head = None;
            let result = match answer.cast::<PyBytes>() {
                Ok(message) if message.as_bytes().len() >= LENT_BYTES_MIN => {
                    head = Some(Bytes::copy_from_slice(&grpc::prefix(message.as_bytes().len())));
                    Ok(Bytes::from_owner(PyBackedBytes::from(message.to_owned())))
                }
                Ok(message) => Ok(grpc::frame(message.as_bytes())),
                Err(_) => Err(answer.extract::<(i32, String)>()?),
            };
            let call = item.get_borrowed_item(0)?.extract()?;
            commands.push(Command::Reply { call, head, result });
        }
        self.hand_over(commands);
        Ok(())
    }

    fn send(&self, batch: &Bound<'_, PyAny>) -> PyResult<()> {
        self.check_open()?;
        let mark = self.shared.limits.stream_writable_bytes;
        let streams = self.streams.lock();
        let mut commands = Vec::with_capacity(batch.len().unwrap_or(0));
        // A fan-out passes one Python object many times: it is framed once.
        let mut last: Option<(Bound<'_, PyBytes>, Bytes)> = None;
        for item in batch.try_iter()? {
            let item = item?.cast_into::<PyTuple>()?;
            let call: Call = item.get_borrowed_item(0)?.extract()?;
            let message = item.get_borrowed_item(1)?;
            let message = message.cast::<PyBytes>()?;
            let stream = streams.get(&call);
            let is_http = stream.is_some_and(|stream| stream.is_http);
            if let Some(direct) = stream.and_then(|stream| stream.direct.as_ref()) {
                let wrote = direct.write(message.as_bytes(), mark);
                if let Wrote::All(bytes) | Wrote::Part(bytes) = wrote {
                    count(&self.shared.counters.bytes.written, bytes);
                    if matches!(wrote, Wrote::Part(_)) {
                        commands.push(Command::Resume { connection: connection_of(call) });
                    }
                    continue;
                }
            }
            let data = match &last {
                _ if is_http => Bytes::copy_from_slice(message.as_bytes()),
                Some((framed, frame)) if framed.is(&*message) => frame.clone(),
                _ => {
                    let frame = grpc::frame(message.as_bytes());
                    last = Some((message.to_owned(), frame.clone()));
                    frame
                }
            };
            if let Some(stream) = stream {
                stream.pending.add(data.len(), mark);
            }
            commands.push(Command::Send { call, data, is_http });
        }
        drop(streams);
        if !commands.is_empty() {
            self.hand_over(commands);
        }
        Ok(())
    }

    fn start(&self, call: Call, metadata: Pairs) -> PyResult<()> {
        self.say(Command::Start { call, metadata })
    }

    #[pyo3(signature = (call, status, trailers = Vec::new()))]
    fn finish(&self, call: Call, status: (i32, String), trailers: Pairs) -> PyResult<()> {
        self.forget(call);
        let (code, text) = status;
        self.say(Command::Finish { call, code, text, trailers })
    }

    fn respond(
        &self,
        call: Call,
        status: u16,
        headers: Pairs,
        body: Option<Bound<'_, PyBytes>>,
    ) -> PyResult<()> {
        let body = body.map(|body| Bytes::copy_from_slice(body.as_bytes()));
        if body.is_some() {
            self.forget(call);
        }
        self.check_open()?;
        self.hand_over(vec![Command::Respond { call, status, headers, body }]);
        Ok(())
    }

    #[pyo3(signature = (call, is_long = false))]
    fn has_room(&self, call: Call, is_long: bool) -> bool {
        let shared = &self.shared;
        let inbox = shared.inbox.lock();
        inbox.connection(connection_of(call)).is_none_or(|connection| {
            shared.room.has_room(&shared.limits, &connection.account, is_long)
        })
    }

    fn pending_bytes(&self, call: Call) -> usize {
        let streams = self.streams.lock();
        streams.get(&call).map_or(0, |stream| stream.pending.bytes.load(Ordering::SeqCst))
    }

    fn pause(&self, call: Call) -> PyResult<()> {
        self.say(Command::Hold { call, is_held: true })
    }

    fn resume(&self, call: Call) -> PyResult<()> {
        self.say(Command::Hold { call, is_held: false })
    }

    fn mark_waiting(&self, call: Call) -> PyResult<()> {
        self.say(Command::MarkWaiting { call })
    }

    fn peer(&self, call: Call) -> PyResult<String> {
        self.check_open()?;
        let inbox = self.shared.inbox.lock();
        let connection = inbox.connection(connection_of(call));
        Ok(connection.map_or_else(String::new, |connection| connection.peer.clone()))
    }

    fn peer_certificate<'py>(
        &self,
        py: Python<'py>,
        call: Call,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.check_open()?;
        let inbox = self.shared.inbox.lock();
        let connection = inbox.connection(connection_of(call));
        let certificate = connection.and_then(|connection| connection.certificate.get());
        Ok(certificate.map(|certificate| PyBytes::new(py, certificate)))
    }

    fn incidents(&self) -> Vec<(&'static str, usize, String, String, u64)> {
        let taken = self.shared.incidents.take();
        taken
            .into_iter()
            .map(|one| (one.name, one.listener, one.peer, one.text, one.count))
            .collect()
    }

    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = &self.shared.counters;
        let named: [(&str, &AtomicU64); 11] = [
            ("connections_accepted", &counters.connections_accepted),
            ("connections_open", &counters.connections_open),
            ("calls_received", &counters.calls_received),
            ("calls_open", &counters.calls_open),
            ("messages_received", &counters.messages_received),
            ("messages_sent", &counters.messages_sent),
            ("bytes_read", &counters.bytes.read),
            ("bytes_written", &counters.bytes.written),
            ("deadlines_exceeded", &counters.deadlines_exceeded),
            ("requests_refused", &counters.requests_refused),
            ("tls_handshakes", &counters.tls_handshakes),
        ];
        let dict = PyDict::new(py);
        for (name, counter) in named.into_iter().chain(self.shared.incidents.totals()) {
            dict.set_item(name, counter.load(Ordering::Relaxed))?;
        }
        let (queued, partial) = (&self.shared.queued, &self.shared.partial);
        let queued = queued.load(Ordering::Relaxed) + partial.load(Ordering::Relaxed);
        dict.set_item("queued_bytes", queued)?;
        dict.set_item("unread_bytes", self.shared.room.unread())?;
        Ok(dict)
    }

    fn write_log(&self, descriptor: RawFd, offset: i64, data: &[u8], sync: bool) -> PyResult<u64> {
        self.check_open()?;
        Ok(self.log_writer.submit(descriptor, offset, data.to_vec(), sync))
    }

    fn written(&self) -> PyResult<Vec<Written>> {
        self.check_open()?;
        Ok(self.log_writer.take_finished())
    }

    fn drain(&self) -> PyResult<()> {
        self.say(Command::Drain)
    }

    fn is_quiet(&self) -> bool {
        // Keep this order: clients that may open no more calls have queued their last ones by then.
        self.shared.draining.load(Ordering::SeqCst)
            && self.shared.callers.load(Ordering::SeqCst) == 0
            && self.shared.inbox.lock().is_drained()
    }

    fn is_drained(&self) -> bool {
        self.shared.drained.load(Ordering::SeqCst)
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

    /// Closes the child's copies of the sockets; no thread of the edge runs in the child.
    fn after_fork_in_child(&self) {
        self.closed.store(true, Ordering::SeqCst);
        std::mem::forget(self.network.lock().take());
        self.shared.descriptors.after_fork_in_child();
        self.shared.wakeup.close();
    }
}

impl NativeEdge {
    /// Returns the network thread's shared state, for an `Upstream` that runs on that thread.
    pub fn opened(&self) -> PyResult<&Arc<Shared>> {
        self.check_open()?;
        Ok(&self.shared)
    }

    fn check_open(&self) -> PyResult<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(PyValueError::new_err("edge is closed"));
        }
        Ok(())
    }

    fn say(&self, command: Command) -> PyResult<()> {
        self.check_open()?;
        self.shared.outbox.push([command]);
        Ok(())
    }

    /// Forgets a stream or HTTP request that has ended.
    fn forget(&self, call: Call) {
        let stream = self.streams.lock().remove(&call);
        if stream.is_some_and(|stream| stream.is_http)
            && let Some(connection) = self.shared.inbox.lock().connection(connection_of(call))
        {
            connection.http_calls.fetch_sub(1, Ordering::Relaxed);
            self.shared.room.remind();
        }
    }

    /// Hands commands to the network thread, after counting their bytes as unread by the clients.
    fn hand_over(&self, commands: Vec<Command>) {
        let inbox = self.shared.inbox.lock();
        let mut given = (0, (0, 0));
        // Consecutive commands are mostly for one connection, so their bytes are added up first.
        let give = |(number, load): (u32, (usize, usize))| {
            if load != (0, 0)
                && let Some(connection) = inbox.connection(number)
            {
                self.shared.room.give(&connection.account, load);
            }
        };
        for command in &commands {
            let number = command.call().map_or(0, connection_of);
            if number != given.0 {
                give(given);
                given = (number, (0, 0));
            }
            let (answers, streams) = command.load();
            given.1.0 += answers;
            given.1.1 += streams;
        }
        give(given);
        drop(inbox);
        self.shared.outbox.push(commands);
    }

    fn join(&self) {
        self.shared.outbox.push([Command::Stop]);
        if let Some(network) = self.network.lock().take() {
            let _ = network.join();
        }
        self.log_writer.stop();
        self.shared.wakeup.close();
    }

    /// Takes received requests and events, and resumes connections that had stopped reading.
    fn take(
        &self,
        calls_max: usize,
        bytes_max: usize,
        commands: &mut Vec<Command>,
    ) -> (Vec<Unary>, Vec<Event>) {
        let shared = &self.shared;
        let limits = &shared.limits;
        let has_room =
            |connection: &ConnectionShared| shared.room.has_room_for_call(limits, connection);
        let freed = |number, connection: &ConnectionShared, taken: Freed| {
            if taken.http_calls > 0 {
                connection.http_calls.fetch_add(taken.http_calls, Ordering::Relaxed);
            }
            // The connection's limit depends on the sum, which therefore falls first.
            shared.queued.fetch_sub(taken.cost, Ordering::SeqCst);
            if connection.flow.take(taken.cost, || shared.queued_bytes_max()) {
                commands.push(Command::Resume { connection: number });
            }
        };
        shared.inbox.lock().take(calls_max, bytes_max, has_room, freed)
    }

    fn request_tuple<'py>(&self, py: Python<'py>, request: Unary) -> PyResult<Bound<'py, PyTuple>> {
        let payload = PyBytes::new(py, &request.payload);
        let metadata = self.metadata_dict(py, request.metadata)?;
        (request.call, request.method, payload, metadata).into_pyobject(py)
    }

    fn event_tuple<'py>(
        &self,
        py: Python<'py>,
        event: Event,
        commands: &mut Vec<Command>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let call = event.call;
        match event.detail {
            EventDetail::Opened { method, metadata, pending } => {
                let stream = OpenStream { pending, is_http: false, direct: None };
                self.streams.lock().insert(call, stream);
                let metadata = self.metadata_dict(py, metadata)?;
                (OPENED, call, (method, metadata)).into_pyobject(py)
            }
            EventDetail::HttpOpened(request) => {
                let (pending, direct) = (request.pending, request.direct);
                let stream = OpenStream { pending, is_http: true, direct };
                self.streams.lock().insert(call, stream);
                let headers = request.headers.iter();
                let headers: Vec<_> =
                    headers.map(|(name, value)| (name.as_str(), headers::text_of(value))).collect();
                let detail = (request.listener, request.method, request.target, headers);
                (HTTP_OPENED, call, detail).into_pyobject(py)
            }
            EventDetail::Message(data, released) => {
                if released > 0 {
                    commands.push(Command::Release { call, bytes: released });
                }
                (MESSAGE, call, PyBytes::new(py, &data)).into_pyobject(py)
            }
            EventDetail::HalfClosed => (HALF_CLOSED, call, py.None()).into_pyobject(py),
            EventDetail::Ended => {
                self.forget(call);
                (ENDED, call, py.None()).into_pyobject(py)
            }
            EventDetail::Writable => (WRITABLE, call, py.None()).into_pyobject(py),
        }
    }

    fn metadata_dict<'py>(
        &self,
        py: Python<'py>,
        metadata: Metadata,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(metadata) = metadata else { return Ok(None) };
        let dict = PyDict::new(py);
        for (place, value) in &metadata {
            dict.set_item(&self.metadata_keys[*place], PyBytes::new(py, value.as_bytes()))?;
        }
        Ok(Some(dict))
    }
}

impl Drop for NativeEdge {
    fn drop(&mut self) {
        // The threads never take the GIL, so they can be joined while it is held.
        if !self.closed.swap(true, Ordering::SeqCst) {
            self.join();
        }
    }
}

fn read_limits(limits: &Bound<'_, PyAny>) -> PyResult<Limits> {
    Ok(Limits {
        request_bytes_max: limits.getattr("request_bytes_max")?.extract()?,
        streams_per_connection_max: limits.getattr("streams_per_connection_max")?.extract()?,
        connections_max: limits
            .call_method1("connections_by_kind", (descriptors_max(),))?
            .extract()?,
        header_list_bytes_max: limits.getattr("header_list_bytes_max")?.extract()?,
        http_header_bytes_max: limits.getattr("http_header_bytes_max")?.extract()?,
        http_calls_max: limits.getattr("http_calls_per_connection_max")?.extract()?,
        handshake_max: seconds(limits, "handshake_seconds_max")?,
        header_read_max: seconds(limits, "header_read_seconds_max")?,
        http1_idle_max: seconds(limits, "http1_idle_seconds_max")?,
        http1_read_max: seconds(limits, "http1_read_seconds_max")?,
        ping_min: seconds(limits, "ping_seconds_min")?,
        keepalive: Some((
            seconds(limits, "keepalive_seconds")?,
            seconds(limits, "keepalive_timeout_seconds")?,
        ))
        .filter(|(interval, timeout)| !interval.is_zero() && !timeout.is_zero()),
        resets_per_second_max: limits.getattr("resets_per_second_max")?.extract()?,
        connection_partial_bytes_max: limits.getattr("connection_partial_bytes_max")?.extract()?,
        connection_unread_bytes_max: limits.getattr("connection_unread_bytes_max")?.extract()?,
        unread_bytes_max: limits.getattr("unread_bytes_max")?.extract()?,
        unread_max: seconds(limits, "unread_seconds_max")?,
        stream_queued_bytes_max: window_bytes(limits, "stream_queued_bytes_max")?,
        connection_queued_bytes_max: limits.getattr("connection_queued_bytes_max")?.extract()?,
        queued_bytes_max: limits.getattr("queued_bytes_max")?.extract()?,
        stream_writable_bytes: limits.getattr("stream_writable_bytes")?.extract()?,
    })
}

fn header_names(keys: &[String]) -> PyResult<Vec<HeaderName>> {
    let names = keys.iter().map(|key| key.parse::<HeaderName>()).collect::<Result<_, _>>();
    names.map_err(no_name)
}

fn no_name(error: InvalidHeaderName) -> PyErr {
    PyValueError::new_err(format!("name of a header: {error}"))
}

fn interned(py: Python<'_>, names: &[String]) -> Vec<Py<PyString>> {
    names.iter().map(|name| PyString::intern(py, name).unbind()).collect()
}

fn read_tls(settings: &Bound<'_, PyAny>, http1_only: bool) -> PyResult<TlsSettings> {
    Ok(TlsSettings {
        cert_file: settings.getattr("cert_file")?.extract()?,
        key_file: settings.getattr("key_file")?.extract()?,
        client_ca_file: file(settings, "client_ca_file")?,
        client_crl_file: file(settings, "client_crl_file")?,
        allowed_names: settings.getattr("allowed_names")?.extract()?,
        allowed_hostnames: settings.getattr("allowed_hostnames")?.extract()?,
        version_min: settings.getattr("version_min")?.extract()?,
        version_max: settings.getattr("version_max")?.extract()?,
        cipher_suites: settings.getattr("cipher_suites")?.extract()?,
        plain_too: settings.getattr("plain_too")?.extract()?,
        http1_only,
    })
}

fn descriptors_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } {
        0 => limit.rlim_cur,
        _ => 1024,
    }
}

fn table_of(methods: Vec<(String, bool)>) -> Methods {
    let mut services = HashSet::new();
    let mut by_path = FxHashMap::default();
    for (number, (path, streaming)) in (0..).zip(methods) {
        if let Some((service, _)) = path.trim_start_matches('/').rsplit_once('/') {
            services.insert(service.to_owned());
        }
        by_path.insert(path, Method { number, streaming });
    }
    Methods { by_path, services }
}
