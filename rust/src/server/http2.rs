//! Serves an HTTP/2 connection: one task accepts calls, applies the loop's commands, and flushes.

use crate::grpc::{self, MessageReader, Refusal};
use crate::keepalive::Keepalive;
use crate::ready::Ready;
use crate::server::arrivals::Arrivals;
use crate::server::backlog::Backlog;
use crate::server::incidents::Incident;
use crate::server::link::{Io, Link};
use crate::server::listener::Serves;
use crate::server::network::{Connection, Network};
use crate::server::policy::{Pings, Resets};
use crate::server::room::Ledger;
use crate::server::shared::{
    Command, EventDetail, HttpRequest, Shared, call_of, header_list_bytes, stream_of,
};
use crate::server::stream::{self, Kind, Load, Progress, Received, Stream};
use crate::sockets::gathering::GATHERED_BYTES_MAX;
use crate::sockets::link::farewell;
use crate::threads::counters::{count, uncount};
use crate::windows::STREAM_BUFFER_BYTES_MAX;
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, server};
use http::request::Parts;
use http::{Request, StatusCode};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::time::{Sleep, sleep, sleep_until, timeout};

/// Bytes that one pass unpacks from compressed messages; the last message may exceed it.
const UNPACKED_BYTES_MAX: usize = 1024 * 1024;

/// Longer timeouts of calls are shortened to this, which never passes in practice.
const DEADLINE_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

const NO_SETTINGS: &str = "http2: no settings came in time";

pub async fn serve(network: &Rc<Network>, connection: &Rc<Connection>, io: Io) {
    let limits = &network.shared.limits;
    let link = io.link();
    let handshake = server::Builder::new()
        .initial_window_size(limits.stream_queued_bytes_max)
        .initial_connection_window_size(limits.connection_queued_bytes_max.min(1 << 30) as u32)
        .max_concurrent_streams(limits.streams_per_connection_max)
        .max_header_list_size(limits.header_list_bytes_max)
        .max_send_buffer_size(STREAM_BUFFER_BYTES_MAX)
        .max_pending_accept_reset_streams(limits.resets_per_second_max)
        .handshake::<_, Bytes>(io);
    let h2 = match timeout(limits.header_read_max, handshake).await {
        Ok(Ok(h2)) => h2,
        Ok(Err(_)) => return farewell(&link).await,
        Err(_) => {
            network.note(Incident::HeadersTimedOut, connection, NO_SETTINGS);
            return;
        }
    };
    let mut driver = Driver::new(network, connection, link, h2);
    poll_fn(|cx| driver.poll(cx)).await;
    network.detach(connection, driver.commands.drain(..));
    farewell(&driver.link).await;
}

struct Driver {
    network: Rc<Network>,
    shared: Arc<Shared>,
    connection: Rc<Connection>,
    h2: server::Connection<Io, Bytes>,
    streams: FxHashMap<u32, Box<Stream>>,
    ready: Arc<Ready>,
    /// Deadlines of open calls, with their streams.
    deadlines: BTreeSet<(Instant, u32)>,
    alarm: Option<Pin<Box<Sleep>>>,
    /// Streams that can send as soon as the socket has written what it holds.
    blocked: Vec<u32>,
    /// Streams that received a command in this pass.
    addressed: Vec<u32>,
    /// Commands that wait until the socket has room, and their bytes in responses and in streams.
    commands: VecDeque<Command>,
    commands_load: (usize, usize),
    ledger: Ledger,
    /// Bytes handed to h2 since it was last able to write.
    granted: usize,
    /// Streams whose compressed message waits for room.
    packed: Vec<u32>,
    /// Unary calls that have no waker yet.
    young: Vec<u32>,
    link: Rc<RefCell<Link>>,
    arrivals: Arrivals,
    going_away: bool,
    /// The client may open calls: it has not yet confirmed the request to open no more.
    is_caller: bool,
    /// The timeout for the client's settings.
    patience: Option<Pin<Box<Sleep>>>,
    keepalive: Option<Keepalive>,
    last_read: Instant,
    pings: Pings,
    resets: Resets,
    highest_stream: u32,
    /// Sum of the streams' loads.
    load: Load,
    backlog: Backlog,
    /// The client leaves so much unread that its new calls wait.
    clogged: bool,
}

impl Driver {
    // Not part of `serve`, whose future would then hold room for the parts and for the whole.
    fn new(
        network: &Rc<Network>,
        connection: &Rc<Connection>,
        link: Rc<RefCell<Link>>,
        mut h2: server::Connection<Io, Bytes>,
    ) -> Driver {
        let limits = &network.shared.limits;
        let keepalive = limits.keepalive.and_then(|(interval, timeout)| {
            Some(Keepalive::new(interval, timeout, h2.ping_pong()?))
        });
        let now = Instant::now();
        network.shared.callers.fetch_add(1, Ordering::SeqCst);
        Driver {
            network: network.clone(),
            shared: network.shared.clone(),
            connection: connection.clone(),
            h2,
            streams: FxHashMap::default(),
            ready: Arc::default(),
            deadlines: BTreeSet::new(),
            alarm: None,
            blocked: Vec::new(),
            addressed: Vec::new(),
            commands: VecDeque::new(),
            commands_load: (0, 0),
            ledger: Ledger::default(),
            granted: 0,
            packed: Vec::new(),
            young: Vec::new(),
            link,
            arrivals: Arrivals::default(),
            going_away: false,
            is_caller: true,
            patience: Some(Box::pin(sleep(limits.header_read_max))),
            keepalive,
            last_read: now,
            pings: Pings::default(),
            resets: Resets::new(now),
            highest_stream: 0,
            load: Load::default(),
            backlog: Backlog::default(),
            clogged: false,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.connection.waker.set(cx.waker());
        self.ready.begin_pass(cx.waker());
        self.network.dispatch();
        if self.network.draining.get() && !self.going_away {
            self.going_away = true;
            self.h2.graceful_shutdown();
        }
        loop {
            self.apply_commands();
            for stream in self.ready.take() {
                self.drive(stream);
            }
            let known = self.young.len();
            let highest_before = self.highest_stream;
            let calls_before = self.streams.len();
            let closed = self.accept_all(cx)
                || self.is_abusive(highest_before, calls_before)
                || self.drain(cx)
                || self.is_silent(cx);
            if closed {
                self.end_all();
                self.arrivals.publish(&self.network, &self.connection);
                return Poll::Ready(());
            }
            self.granted = 0;
            self.expire(cx);
            self.watch_young(known);
            if self.socket_is_free() && !(self.blocked.is_empty() && self.commands.is_empty()) {
                for stream in std::mem::take(&mut self.blocked) {
                    self.drive(stream);
                }
                continue;
            }
            let was_clogged = self.clogged;
            self.count_unread();
            if was_clogged && !self.clogged {
                continue;
            }
            if self.is_throttled() {
                // There is more to read; other connections come first.
                cx.waker().wake_by_ref();
                break;
            }
            if self.ready.end_pass() {
                break;
            }
        }
        self.arrivals.publish(&self.network, &self.connection);
        self.unpack(cx);
        if self.going_away {
            self.look_for_confirmation();
        }
        if self.streams.is_empty() {
            self.rest();
        }
        Poll::Pending
    }

    /// Whether reading stopped until this pass had accepted calls.
    fn is_throttled(&self) -> bool {
        let mut link = self.link.borrow_mut();
        link.traffic.as_mut().is_some_and(|traffic| mem::take(&mut traffic.throttled))
    }

    /// Schedules compressed messages for the next pass, if the connection may queue more.
    fn unpack(&mut self, cx: &Context<'_>) {
        if !self.packed.is_empty() && !self.link.borrow().is_paused() {
            for stream in std::mem::take(&mut self.packed) {
                self.ready.push(stream);
            }
            cx.waker().wake_by_ref();
        }
    }

    /// Notes that the client has confirmed that it opens no more calls.
    ///
    /// h2 sends a ping with its GOAWAY. The client's answer follows every call that the client
    /// opened before, and makes h2 send a second GOAWAY.
    fn look_for_confirmation(&mut self) {
        let confirmed = self.link.borrow().traffic.as_ref().is_some_and(|it| it.goaways > 1);
        if confirmed && std::mem::take(&mut self.is_caller) {
            self.network.lose_caller();
        }
    }

    /// Frees memory that an idle connection does not need; there may be very many such connections.
    fn rest(&mut self) {
        self.streams.shrink_to_fit();
        self.commands.shrink_to_fit();
        self.addressed.shrink_to_fit();
        self.connection.commands.borrow_mut().shrink_to_fit();
        self.backlog.rest();
        if let Some(traffic) = &mut self.link.borrow_mut().traffic {
            traffic.data.shrink_to_fit();
        }
    }

    /// Writes what the pass gathered; true if the connection is broken.
    fn drain(&mut self, cx: &mut Context<'_>) -> bool {
        let drained = self.link.borrow_mut().socket.poll_drain(cx);
        matches!(drained, Poll::Ready(Err(_)))
    }

    /// Accepts every new call, and moves bytes both ways; true if the connection is closed.
    fn accept_all(&mut self, cx: &mut Context<'_>) -> bool {
        let is_held = self.clogged || !self.socket_is_free();
        if let Some(traffic) = &mut self.link.borrow_mut().traffic {
            traffic.held = is_held;
        }
        if is_held {
            // Frames that open the client's windows have to be read even while calls are held.
            return self.h2.poll_closed(cx).is_ready();
        }
        loop {
            match self.h2.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => self.accept(request, respond),
                Poll::Ready(Some(Err(error))) => {
                    if error.is_library() && error.reason() == Some(Reason::ENHANCE_YOUR_CALM) {
                        self.note(Incident::ResetsExcessive, "http2: too many calls were reset");
                    }
                    return true;
                }
                Poll::Ready(None) => return true,
                Poll::Pending => return false,
            }
        }
    }

    fn note(&self, kind: Incident, text: &str) {
        self.network.note(kind, &self.connection, text);
    }

    /// Checks the client's pings, resets and unread bytes; true if the connection has to end.
    fn is_abusive(&mut self, highest_before: u32, calls_before: usize) -> bool {
        let link = &mut *self.link.borrow_mut();
        let Some(traffic) = &mut link.traffic else { return false };
        let limits = &self.shared.limits;
        if std::mem::take(&mut link.read) > 0 {
            self.last_read = Instant::now();
        }
        let mut offence = None;
        if traffic.pings > 0 || traffic.forgiven {
            let pings = (std::mem::take(&mut traffic.forgiven), std::mem::take(&mut traffic.pings));
            let has_calls = calls_before > 0 || !self.streams.is_empty();
            if self.pings.are_too_many(pings, has_calls, limits.ping_min, self.last_read) {
                offence = Some((Incident::PingsExcessive, "too_many_pings"));
            }
        }
        if !traffic.resets.is_empty() {
            let resets = std::mem::take(&mut traffic.resets);
            self.backlog.forget(&resets);
            let max = limits.resets_per_second_max;
            if self.resets.are_too_many(&resets, highest_before, max, self.last_read) {
                offence = Some((Incident::ResetsExcessive, "too_many_resets"));
            }
        }
        if !traffic.held {
            traffic.calls_bytes = 0;
        } else if traffic.calls_bytes
            > limits.connection_queued_bytes_max.min(self.shared.share_of(limits.queued_bytes_max))
        {
            offence = Some((Incident::UnreadExcessive, "too_much_unread"));
        }
        if self.connection.expelled.get() {
            offence = Some((Incident::UnreadExcessive, "too_much_unread"));
        }
        if let Some((incident, word)) = offence {
            link.go_away(self.highest_stream, Reason::ENHANCE_YOUR_CALM.into(), word);
            self.network.note(incident, &self.connection, format!("http2: {word}"));
        }
        offence.is_some()
    }

    /// Whether the client has failed to send its settings, or to answer a ping, in time.
    fn is_silent(&mut self, cx: &mut Context<'_>) -> bool {
        if let Some(patience) = &mut self.patience {
            let greeted = self.link.borrow().traffic.as_ref().is_none_or(|traffic| traffic.greeted);
            if !greeted && patience.as_mut().poll(cx).is_ready() {
                self.note(Incident::HeadersTimedOut, NO_SETTINGS);
                return true;
            }
            self.patience.take_if(|_| greeted);
        }
        let Some(keepalive) = &mut self.keepalive else { return false };
        let silent = keepalive.poll(cx, self.last_read);
        if silent {
            self.note(Incident::KeepalivesUnanswered, "http2: a ping was not answered in time");
        }
        silent
    }

    /// Counts the bytes that the client leaves unread; decides whether its new calls have to wait.
    fn count_unread(&mut self) {
        if let Some(traffic) = &mut self.link.borrow_mut().traffic {
            self.backlog.settle(&mut traffic.data);
        }
        let (answers, streams) = self.commands_load;
        let answers = answers + self.load.unread + self.backlog.bytes();
        let account = &self.connection.shared.account;
        self.ledger.settle(&self.shared, account, (answers, streams + self.load.streamed));
        let clogged = account.answers() > self.shared.limits.connection_unread_bytes_max;
        if clogged && !self.clogged {
            self.note(Incident::CallsDelayed, "http2: the client does not read its answers");
        }
        self.clogged = clogged;
    }

    /// Counts the bytes that a stream keeps here; true if its message has to be refused.
    fn weigh(&mut self, id: u32) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        let (before, now) = (stream.load, stream.current_load());
        if now == before {
            return false;
        }
        stream.load = now;
        self.load.unread = self.load.unread + now.unread - before.unread;
        self.load.streamed = self.load.streamed + now.streamed - before.streamed;
        self.load.partial = self.load.partial + now.partial - before.partial;
        let total = self.shared.partial.fetch_add(now.partial, Ordering::Relaxed) + now.partial;
        self.shared.partial.fetch_sub(before.partial, Ordering::Relaxed);
        let limits = &self.shared.limits;
        now.partial > before.partial
            && (self.load.partial > limits.connection_partial_bytes_max
                || (total - before.partial > limits.queued_bytes_max
                    && self.load.partial > self.shared.share_of(limits.queued_bytes_max)))
    }

    fn socket_is_free(&self) -> bool {
        self.link.borrow().socket.waiting() < GATHERED_BYTES_MAX
    }

    fn event(&mut self, stream: u32, detail: EventDetail) {
        self.arrivals.event(call_of(self.connection.number, stream), detail);
    }

    fn accept(&mut self, request: Request<RecvStream>, respond: SendResponse<Bytes>) {
        let (parts, body) = request.into_parts();
        self.highest_stream = self.highest_stream.max(respond.stream_id().as_u32());
        let serves = self.connection.listener.serves;
        let accepted = if serves != Serves::Http && grpc::is_grpc(&parts.headers) {
            self.accept_call(&parts, body, respond)
        } else if serves == Serves::Grpc {
            Err((grpc::not_grpc(&parts.headers), respond))
        } else if self.has_long_headers(&parts) {
            count(&self.shared.counters.requests_refused, 1);
            return stream::refuse_http(respond, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        } else {
            Ok(self.accept_http(&parts, body, respond))
        };
        match accepted {
            Ok(stream) => {
                self.arrivals.call();
                count(&self.shared.counters.calls_open, 1);
                self.drive(stream);
            }
            Err((refusal, respond)) => {
                count(&self.shared.counters.requests_refused, 1);
                stream::refuse(respond, &refusal);
            }
        }
    }

    fn has_long_headers(&self, parts: &Parts) -> bool {
        let target = parts.uri.path_and_query().map_or(0, |target| target.as_str().len());
        header_list_bytes(target, &parts.headers) > self.shared.limits.http_header_bytes_max
    }

    fn accept_call(
        &mut self,
        parts: &Parts,
        body: RecvStream,
        respond: SendResponse<Bytes>,
    ) -> Result<u32, (Refusal, SendResponse<Bytes>)> {
        let id = respond.stream_id().as_u32();
        let call = call_of(self.connection.number, id);
        let head = match grpc::read_head(&self.shared, parts) {
            Ok(head) => head,
            Err(refusal) => return Err((refusal, respond)),
        };
        let kind = if head.method.streaming { Kind::Streaming } else { Kind::Unary };
        let reader = MessageReader::new(head.gzip, self.shared.limits.request_bytes_max);
        let mut stream = Stream::new(kind, call, body, respond, reader);
        stream.method = head.method.number;
        if let Some(timeout) = head.timeout {
            let deadline = Instant::now() + timeout.min(DEADLINE_MAX);
            stream.deadline = Some(deadline);
            self.deadlines.insert((deadline, id));
        }
        if head.method.streaming {
            let (method, metadata) = (stream.method, head.metadata);
            let pending = stream.pending.clone();
            self.event(id, EventDetail::Opened { method, metadata, pending });
        } else {
            stream.metadata = head.metadata;
            self.young.push(id);
        }
        self.streams.insert(id, Box::new(stream));
        Ok(id)
    }

    fn accept_http(
        &mut self,
        parts: &Parts,
        body: RecvStream,
        respond: SendResponse<Bytes>,
    ) -> u32 {
        let id = respond.stream_id().as_u32();
        let call = call_of(self.connection.number, id);
        let mut stream = Stream::new(Kind::Http, call, body, respond, MessageReader::default());
        stream.bodiless = parts.method == http::Method::HEAD;
        let (listener, pending) = (self.connection.listener.number, stream.pending.clone());
        let request = HttpRequest::new(&self.shared, parts, listener, pending);
        self.event(id, EventDetail::HttpOpened(Box::new(request)));
        self.streams.insert(id, Box::new(stream));
        id
    }

    /// Applies the loop's commands, if the socket has room for the result.
    fn apply_commands(&mut self) {
        let mut said = self.connection.commands.borrow_mut();
        for command in said.iter() {
            self.ledger.note(command);
            let (answers, streams) = command.load();
            self.commands_load.0 += answers;
            self.commands_load.1 += streams;
        }
        self.commands.append(&mut said);
        drop(said);
        if !self.socket_is_free() {
            return;
        }
        while let Some(command) = self.commands.pop_front() {
            self.apply(command);
        }
        self.commands_load = (0, 0);
        // Streams transmit last, so that data of several commands leaves together.
        let mut addressed = mem::take(&mut self.addressed);
        for id in addressed.drain(..) {
            self.transmit(id);
        }
        self.addressed = addressed;
    }

    fn apply(&mut self, command: Command) {
        let Some(call) = command.call() else { return };
        let id = stream_of(call);
        let Some(stream) = self.streams.get_mut(&id) else {
            if let Command::MarkWaiting { .. } = command {
                self.event(id, EventDetail::Ended);
            }
            return;
        };
        match command {
            Command::Reply { head, result: Ok(message), .. } => {
                count(&self.shared.counters.messages_sent, 1);
                self.resets.answered();
                let (hurry, length) = (self.backlog.has_room(), message.len());
                if stream.reply(head, message, hurry) {
                    self.backlog.add(id, length);
                    return self.remove(id);
                }
            }
            Command::Reply { result: Err((code, text)), .. } => stream.finish(code, text, vec![]),
            Command::Send { data, .. } => {
                let is_message = stream.kind != Kind::Http;
                count(&self.shared.counters.messages_sent, is_message.into());
                stream.send(data);
            }
            Command::Start { metadata, .. } => stream.start(&metadata),
            Command::Finish { code, text, trailers, .. } => stream.finish(code, text, trailers),
            Command::Respond { status, headers, body, .. } => {
                stream.respond(status, &headers, body)
            }
            Command::MarkWaiting { .. } => stream.waiting = true,
            Command::Release { bytes, .. } => return stream.release(bytes),
            Command::Hold { is_held, .. } => return stream.hold(is_held),
            _ => return,
        }
        if !mem::replace(&mut stream.is_addressed, true) {
            self.addressed.push(id);
        }
    }

    /// Finds unary calls that the client cancelled.
    ///
    /// Most calls are answered before a waker would be worth its price: only calls that are older
    /// than this pass get one, and the others are checked once.
    fn watch_young(&mut self, known: usize) {
        let ready = self.ready.clone();
        let young = std::mem::take(&mut self.young);
        for (place, id) in young.into_iter().enumerate() {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            if stream.is_reset((place < known).then_some(&ready), id) {
                self.give_up(id);
            } else if place >= known {
                self.young.push(id);
            }
        }
    }

    /// Receives and sends on a stream as far as possible.
    fn drive(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let may_unpack = |arrivals: &Arrivals| {
            arrivals.unpacked_bytes < UNPACKED_BYTES_MAX && !self.link.borrow().is_paused()
        };
        let received = stream.receive(&self.ready, id, &mut self.arrivals, may_unpack);
        match received {
            Ok(Received::All) => {}
            Ok(Received::Packed) => self.packed.push(id),
            Ok(Received::Reset) => return self.give_up(id),
            Err(refusal) => {
                count(&self.shared.counters.requests_refused, 1);
                return self.end_early(id, |stream| stream.abort(refusal));
            }
        }
        if self.weigh(id) {
            return self.turn_away(id);
        }
        self.transmit(id);
    }

    /// Sends a stream's data as far as possible.
    fn transmit(&mut self, id: u32) {
        let socket_is_free = self.socket_is_free();
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.is_addressed = false;
        let progress = stream.transmit(&self.ready, id, socket_is_free, &mut self.granted);
        let mark = self.shared.limits.stream_writable_bytes;
        if stream.is_in_use() && stream.pending.is_writable_again(mark) {
            self.arrivals.event(stream.call, EventDetail::Writable);
        }
        match progress {
            Progress::Waiting => {
                self.weigh(id);
            }
            Progress::Blocked => {
                self.weigh(id);
                self.blocked.push(id);
            }
            Progress::Done => self.remove(id),
            Progress::Broken => self.give_up(id),
        }
    }

    /// Answers the calls whose deadline has passed, and waits for the next one.
    fn expire(&mut self, cx: &mut Context<'_>) {
        while let Some(&(deadline, id)) = self.deadlines.first() {
            if deadline <= Instant::now() {
                count(&self.shared.counters.deadlines_exceeded, 1);
                self.end_early(id, Stream::expire);
                continue;
            }
            let deadline = deadline.into();
            let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
            // A timer that fires too early costs one pass; resetting it per call would cost more.
            if alarm.deadline() > deadline || alarm.is_elapsed() {
                alarm.as_mut().reset(deadline);
            }
            if alarm.as_mut().poll(cx).is_pending() {
                return;
            }
        }
    }

    /// Ends a call before its answer is complete.
    fn end_early(&mut self, id: u32, end: impl FnOnce(&mut Stream)) {
        if let Some(stream) = self.streams.get_mut(&id) {
            let reported = stream.is_reported();
            end(stream);
            self.remove(id);
            self.network.forsake(call_of(self.connection.number, id));
            if reported {
                self.event(id, EventDetail::Ended);
            }
        }
    }

    /// Ends a call because there are too many bytes of incomplete messages already.
    fn turn_away(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.turn_away();
            count(&self.shared.counters.requests_refused, 1);
            self.note(Incident::PartialMessagesRefused, "http2: too much of unfinished messages");
            self.give_up(id);
        }
    }

    /// Ends a call without a response, and reports ENDED if the loop has to know.
    fn give_up(&mut self, id: u32) {
        if self.streams.get(&id).is_some_and(|stream| stream.is_reported()) {
            self.event(id, EventDetail::Ended);
        }
        self.network.forsake(call_of(self.connection.number, id));
        self.remove(id);
    }

    fn remove(&mut self, id: u32) {
        if let Some(stream) = self.streams.remove(&id) {
            self.load.unread -= stream.load.unread;
            self.load.streamed -= stream.load.streamed;
            self.load.partial -= stream.load.partial;
            self.shared.partial.fetch_sub(stream.load.partial, Ordering::Relaxed);
            uncount(&self.shared.counters.calls_open, 1);
            if let Some(deadline) = stream.deadline {
                self.deadlines.remove(&(deadline, id));
            }
        }
    }

    fn end_all(&mut self) {
        let ids: Vec<u32> = self.streams.keys().copied().collect();
        for id in ids {
            self.give_up(id);
        }
    }
}

/// Corrects the shared counters, also when the edge stops and the runtime drops its tasks.
impl Drop for Driver {
    fn drop(&mut self) {
        if self.is_caller {
            self.network.lose_caller();
        }
        uncount(&self.shared.counters.calls_open, self.streams.len());
        self.shared.partial.fetch_sub(self.load.partial, Ordering::Relaxed);
    }
}
