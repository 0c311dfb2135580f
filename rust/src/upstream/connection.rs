//! Drives a connection to a server: one task starts calls, applies commands, and flushes.

use crate::grpc::{APPLICATION_GRPC, INTERNAL, UNAVAILABLE};
use crate::keepalive::Keepalive;
use crate::ready::{Ready, stream_waker};
use crate::sockets::gathering::GATHERED_BYTES_MAX;
use crate::sockets::link::farewell;
use crate::threads::counters::count;
use crate::threads::runtime::spawn;
use crate::upstream::call::{Call, Sent};
use crate::upstream::connecting::{CLOSED, Connection, Link};
use crate::upstream::network::{Endpoint, Network, given_up};
use crate::upstream::shared::{Detail, Event, Head, NewCall, Shared, ToEndpoint};
use crate::upstream::status::{End, of_connection};
use bytes::Bytes;
use h2::client::SendRequest;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE, USER_AGENT};
use http::{Method, Request, Uri};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// The number that h2's own waker notes, besides the numbers of the calls' places.
const CONNECTION: u32 = u32::MAX;

const AGENT: HeaderValue = HeaderValue::from_static("kvorum-upstream");
const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");
const LEFT: &str = "the server asked for no more calls";
const SILENT: &str = "the server does not answer any more";

/// Carries an endpoint's calls; returns why the connection ended.
pub async fn run(network: &Rc<Network>, endpoint: &Rc<Endpoint>, connection: Connection) -> String {
    let link = connection.link.clone();
    let mut driver = Driver::new(network, endpoint, connection);
    let reason = poll_fn(|cx| driver.poll(cx)).await;
    driver.close();
    spawn(async move {
        // Report the endpoint's end without waiting for the graceful close.
        farewell(&link).await;
    });
    reason
}

/// A place for a call. Its waker serves one call after another.
struct Slot {
    waker: Waker,
    call: Option<Call>,
}

struct Driver {
    network: Rc<Network>,
    shared: Arc<Shared>,
    endpoint: Rc<Endpoint>,
    connection: Connection,
    link: Rc<RefCell<Link>>,
    headers: HeaderMap,
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_number: FxHashMap<u64, u32>,
    /// Calls that the server has no room for yet, in order; a cancelled one has no place any more.
    queue: VecDeque<(u64, Head)>,
    /// Places of calls that can send as soon as the socket has written what it holds.
    blocked: Vec<u32>,
    /// Bytes handed to h2 since it was last able to write.
    granted: usize,
    ready: Arc<Ready>,
    /// Wakes this task for h2, unless it runs.
    waker: Waker,
    events: VecDeque<Event>,
    messages_sent: usize,
    is_leaving: bool,
    keepalive: Option<Keepalive>,
    /// When the server last sent something, or had reason to be silent.
    last_read: Instant,
}

impl Driver {
    fn new(network: &Rc<Network>, endpoint: &Rc<Endpoint>, mut connection: Connection) -> Driver {
        let shared = network.shared.clone();
        let keepalive = shared.settings.pings.and_then(|(interval, timeout)| {
            Some(Keepalive::new(interval, timeout, connection.h2.ping_pong()?))
        });
        let ready = Arc::<Ready>::default();
        let mut headers = HeaderMap::with_capacity(4);
        headers.insert(TE, TRAILERS);
        headers.insert(CONTENT_TYPE, APPLICATION_GRPC);
        headers.insert(USER_AGENT, AGENT);
        Driver {
            network: network.clone(),
            shared,
            endpoint: endpoint.clone(),
            link: connection.link.clone(),
            connection,
            headers,
            slots: Vec::new(),
            free: Vec::new(),
            by_number: FxHashMap::default(),
            queue: VecDeque::new(),
            blocked: Vec::new(),
            granted: 0,
            waker: stream_waker(&ready, CONNECTION),
            ready,
            events: VecDeque::new(),
            messages_sent: 0,
            is_leaving: false,
            keepalive,
            last_read: Instant::now(),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<String> {
        self.endpoint.waker.set(cx.waker());
        self.endpoint.running.set(true);
        self.ready.begin_pass(cx.waker());
        self.network.dispatch();
        let ended = self.pass(cx);
        self.endpoint.running.set(false);
        if let Some((end, reason)) = ended {
            self.end_all(&end);
            self.publish();
            return Poll::Ready(reason);
        }
        self.publish();
        Poll::Pending
    }

    /// Makes all possible progress; returns how calls end and why, if the connection is over.
    fn pass(&mut self, cx: &mut Context<'_>) -> Option<(End, String)> {
        loop {
            if self.endpoint.given_up.get() {
                return Some(given_up());
            }
            self.apply_commands();
            self.open_queued();
            self.drive_ready();
            if let Some(reason) = self.poll_h2(cx) {
                // Responses may have arrived before the connection ended.
                let places: Vec<u32> = self.by_number.values().copied().collect();
                places.into_iter().for_each(|place| self.drive(place));
                if !self.has_left() {
                    return Some((End::new(UNAVAILABLE, reason.clone()), reason));
                }
            }
            self.granted = 0;
            if self.has_left() {
                return Some((End::closing(), LEFT.to_owned()));
            }
            if self.is_silent(cx) {
                return Some((End::new(UNAVAILABLE, SILENT), SILENT.to_owned()));
            }
            if !self.blocked.is_empty() && self.socket_is_free() {
                std::mem::take(&mut self.blocked).into_iter().for_each(|place| self.drive(place));
                continue;
            }
            if self.ready.end_pass() {
                return None;
            }
        }
    }

    /// Drives the calls that were woken.
    fn drive_ready(&mut self) {
        loop {
            let mut driven = false;
            for place in self.ready.take() {
                // The pass polls h2 in any case.
                if place != CONNECTION {
                    self.drive(place);
                    driven = true;
                }
            }
            if !driven {
                return;
            }
        }
    }

    /// Moves bytes both ways; returns why the connection is lost, if it is.
    fn poll_h2(&mut self, cx: &mut Context<'_>) -> Option<String> {
        let polled = Pin::new(&mut self.connection.h2).poll(&mut Context::from_waker(&self.waker));
        let mut link = self.link.borrow_mut();
        let drained = link.socket.poll_drain(cx);
        if std::mem::take(&mut link.read) > 0 {
            self.last_read = Instant::now();
        }
        let is_leaving = link.frames.going_away && !self.is_leaving;
        drop(link);
        if is_leaving {
            self.leave();
        }
        match (polled, drained) {
            (Poll::Ready(Ok(())), _) => Some(CLOSED.to_owned()),
            (Poll::Ready(Err(error)), _) => Some(of_connection(&error)),
            (_, Poll::Ready(Err(error))) => Some(format!("the connection is lost: {error}")),
            _ => None,
        }
    }

    fn leave(&mut self) {
        self.is_leaving = true;
        let number = self.endpoint.number;
        self.events.push_back(Event { number, detail: Detail::Leaving });
        self.refuse_queued();
    }

    /// Whether the server wants no more calls, and has answered those that it took.
    fn has_left(&self) -> bool {
        self.is_leaving && self.by_number.is_empty()
    }

    fn socket_is_free(&self) -> bool {
        self.link.borrow().socket.waiting() < GATHERED_BYTES_MAX
    }

    /// Whether the server has failed to answer a ping in time.
    fn is_silent(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(keepalive) = &mut self.keepalive else { return false };
        let is_idle = self.by_number.is_empty() && !self.shared.settings.pings_without_calls;
        if is_idle || self.link.borrow().is_paused() {
            self.last_read = Instant::now();
        }
        keepalive.poll(cx, self.last_read)
    }

    fn publish(&mut self) {
        if !self.events.is_empty() {
            let events = std::mem::take(&mut self.events);
            self.network.publish(self.endpoint.number, &self.endpoint.flow, events);
        }
        if self.messages_sent > 0 {
            count(&self.shared.counters.messages_sent, std::mem::take(&mut self.messages_sent));
        }
    }

    fn apply_commands(&mut self) {
        for command in self.endpoint.commands.take() {
            let (call, command) = match command {
                ToEndpoint::Begin(new) => {
                    self.begin(new);
                    continue;
                }
                ToEndpoint::Send { call, .. }
                | ToEndpoint::HalfClose { call }
                | ToEndpoint::Cancel { call }
                | ToEndpoint::Release { call, .. } => (call, command),
                ToEndpoint::Resume | ToEndpoint::Disconnect => continue,
            };
            let Some(&place) = self.by_number.get(&call) else { continue };
            let Some(call) = &mut self.slots[place as usize].call else { continue };
            match command {
                ToEndpoint::Send { data, .. } => {
                    self.messages_sent += 1;
                    call.send(data);
                }
                ToEndpoint::HalfClose { .. } => call.half_close(),
                ToEndpoint::Release { bytes, .. } => {
                    call.release(bytes);
                    continue;
                }
                _ => {
                    self.forget(place);
                    continue;
                }
            }
            self.drive(place);
        }
    }

    fn begin(&mut self, new: NewCall) {
        if self.is_leaving {
            let detail = Detail::Ended(End::closing());
            self.events.push_back(Event { number: new.number, detail });
            return;
        }
        let call = Call::new(new.number, new.kind, self.shared.settings.message_bytes_max);
        self.messages_sent += usize::from(call.pending.is_none());
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                let place = self.slots.len() as u32;
                self.slots.push(Slot { waker: stream_waker(&self.ready, place), call: None });
                place
            }
        };
        if self.by_number.is_empty() && !self.shared.settings.pings_without_calls {
            // Without calls the server had no reason to send anything.
            self.last_read = Instant::now();
        }
        self.slots[place as usize].call = Some(call);
        self.by_number.insert(new.number, place);
        if self.queue.is_empty() && self.may_open() {
            self.open(place, new.head);
        } else {
            self.queue.push_back((new.number, new.head));
        }
    }

    fn requests(&mut self) -> &mut SendRequest<Bytes> {
        &mut self.connection.requests
    }

    fn may_open(&mut self) -> bool {
        let waker = self.waker.clone();
        // An error means that the connection is lost, which opening a call will show.
        self.requests().poll_ready(&mut Context::from_waker(&waker)).is_ready()
    }

    fn open_queued(&mut self) {
        while !self.queue.is_empty() && self.may_open() {
            let Some((number, head)) = self.queue.pop_front() else { return };
            if let Some(&place) = self.by_number.get(&number) {
                self.open(place, head);
            }
        }
    }

    fn refuse_queued(&mut self) {
        for (number, _) in std::mem::take(&mut self.queue) {
            if let Some(&place) = self.by_number.get(&number) {
                self.finish(place, End::closing());
            }
        }
    }

    fn open(&mut self, place: u32, head: Head) {
        let opened = self.send_headers(head);
        let Some(call) = &mut self.slots[place as usize].call else { return };
        match opened {
            Ok((response, sending)) => {
                call.opened(response, sending);
                self.drive(place);
            }
            Err(end) => self.finish(place, end),
        }
    }

    fn send_headers(
        &mut self,
        head: Head,
    ) -> Result<(h2::client::ResponseFuture, h2::SendStream<Bytes>), End> {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(self.connection.scheme.clone());
        parts.authority = Some(self.connection.authority.clone());
        parts.path_and_query = Some(head.path);
        let uri = Uri::from_parts(parts);
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() =
            uri.map_err(|error| End::unprocessed(INTERNAL, format!("the call's path: {error}")))?;
        *request.headers_mut() = self.headers.clone();
        for (name, value) in head.metadata {
            request.headers_mut().append(name, value);
        }
        self.requests().send_request(request, false).map_err(|error| {
            match error.is_io() || error.is_go_away() || error.is_reset() {
                true => End::closing(),
                false => End::unprocessed(INTERNAL, format!("the call cannot be sent: {error}")),
            }
        })
    }

    /// Receives and sends on a call as far as possible.
    fn drive(&mut self, place: u32) {
        let is_free = self.socket_is_free();
        let Slot { waker, call: Some(call) } = &mut self.slots[place as usize] else { return };
        if let Some(end) = call.receive(waker, &mut self.events) {
            return self.finish(place, end);
        }
        if call.transmit(waker, is_free, &mut self.granted) == Sent::Blocked {
            self.blocked.push(place);
        }
        let mark = self.shared.settings.writable_bytes;
        if let Some(pending) = &call.pending
            && pending.is_writable_again(mark)
        {
            self.events.push_back(Event { number: call.number, detail: Detail::Writable });
        }
    }

    fn finish(&mut self, place: u32, end: End) {
        if let Some(mut call) = self.forget(place) {
            self.events.push_back(call.ended(end));
        }
    }

    /// Forgets a call; if it has not ended, h2 resets it.
    fn forget(&mut self, place: u32) -> Option<Call> {
        let call = self.slots[place as usize].call.take()?;
        self.by_number.remove(&call.number);
        self.free.push(place);
        Some(call)
    }

    fn end_all(&mut self, end: &End) {
        let (code, text) = (end.code, &end.text);
        for (number, _) in std::mem::take(&mut self.queue) {
            if let Some(&place) = self.by_number.get(&number) {
                self.finish(place, End::unprocessed(code, text));
            }
        }
        let places: Vec<u32> = self.by_number.values().copied().collect();
        places.into_iter().for_each(|place| self.finish(place, End::new(code, text)));
    }

    /// Lets h2 send the resets of cancelled calls.
    fn close(mut self) {
        let _ = Pin::new(&mut self.connection.h2).poll(&mut Context::from_waker(Waker::noop()));
    }
}
