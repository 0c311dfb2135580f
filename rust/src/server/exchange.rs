//! Passes an HTTP/1.1 connection's requests to the loop one by one, and its responses back.

use crate::grpc::{self, append_all};
use crate::server::arrivals::Arrivals;
use crate::server::direct::Direct;
use crate::server::network::{Connection, Network};
use crate::server::room::Ledger;
use crate::server::shared::{Command, EventDetail, HttpRequest, call_of, stream_of};
use crate::threads::counters::{count, uncount};
use crate::threads::flow::Pending;
use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::Service;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::os::fd::RawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Small pieces of a response are joined up to this size.
const JOINED_BYTES_MAX: usize = 64 * 1024;

/// Bytes of an answered request's body that are read and discarded to keep the connection.
const DISCARDED_BYTES_MAX: usize = 256 * 1024;

/// Smaller pieces of a body are copied: each would keep the whole buffer it was read into.
const SHARED_BYTES_MIN: usize = 2 * 1024;

/// The connection's requests: hyper sees a service, the loop sees calls.
pub struct Exchanges {
    network: Rc<Network>,
    connection: Rc<Connection>,
    arrivals: Arrivals,
    requests: u32,
    current: Option<Exchange>,
    ledger: Ledger,
    /// Bytes of responses that hyper has taken and not written.
    unwritten: Rc<Cell<usize>>,
    /// A request's body failed before its end, so the connection ends.
    pub broken: bool,
}

struct Exchange {
    id: u32,
    is_head: bool,
    /// Lets the loop write the response itself; only at listeners for HTTP/1.1 alone.
    direct: Option<Arc<Direct>>,
    /// Bytes of a chunk that the loop wrote in part and the link has to finish.
    rest: usize,
    body: Option<Incoming>,
    /// Bytes of the body that the loop has not polled.
    held: usize,
    /// The loop has paused the request's body.
    is_paused: bool,
    /// Bytes of the body that arrived after the response.
    discarded: usize,
    /// The response announces that the connection ends with it.
    is_last: bool,
    answer: Option<Response<AnswerBody>>,
    outgoing: Rc<RefCell<Outgoing>>,
    upgraded: bool,
    ended: bool,
}

impl Exchanges {
    pub fn new(network: Rc<Network>, connection: Rc<Connection>) -> Exchanges {
        Exchanges {
            network,
            connection,
            arrivals: Arrivals::default(),
            requests: 0,
            current: None,
            ledger: Ledger::default(),
            unwritten: Rc::default(),
            broken: false,
        }
    }

    fn open(&mut self, request: Request<Incoming>) -> u32 {
        self.end();
        self.requests += 1;
        let id = self.requests;
        self.arrivals.call();
        count(&self.network.shared.counters.calls_open, 1);
        let (parts, body) = request.into_parts();
        let outgoing = Outgoing {
            pieces: VecDeque::new(),
            bytes: 0,
            ending: None,
            waker: None,
            pending: Arc::default(),
            exact: false,
            chunked: false,
            bodiless: false,
            joins: self.connection.listener.http1_only,
            unwritten: self.unwritten.clone(),
        };
        let pending = outgoing.pending.clone();
        let listener = self.connection.listener.number;
        // Clients of HTTP/1.0 cannot read chunks.
        let is_chunked = outgoing.joins && parts.version == Version::HTTP_11;
        let direct = is_chunked.then(|| Arc::new(Direct::new(pending.clone())));
        let mut request = HttpRequest::new(&self.network.shared, &parts, listener, pending);
        request.direct = direct.clone();
        self.event(id, EventDetail::HttpOpened(Box::new(request)));
        self.current = Some(Exchange {
            id,
            is_head: parts.method == Method::HEAD,
            direct,
            rest: 0,
            body: Some(body),
            held: 0,
            is_paused: false,
            discarded: 0,
            is_last: false,
            answer: None,
            outgoing: Rc::new(RefCell::new(outgoing)),
            upgraded: false,
            ended: false,
        });
        id
    }

    fn event(&mut self, id: u32, detail: EventDetail) {
        self.arrivals.event(call_of(self.connection.number, id), detail);
    }

    pub fn apply_commands(&mut self) {
        let commands = std::mem::take(&mut *self.connection.commands.borrow_mut());
        for command in commands {
            self.ledger.note(&command);
            let current = self.current.as_mut();
            match current.filter(|current| command.call().map(stream_of) == Some(current.id)) {
                Some(current) => current.apply(command),
                None => {
                    if let Command::MarkWaiting { call } = command {
                        self.event(stream_of(call), EventDetail::Ended);
                    }
                }
            }
        }
    }

    /// Takes the socket back from the loop; returns the bytes that have to be written to it first.
    pub fn take_back(&mut self) -> Vec<u8> {
        let Some(current) = &mut self.current else { return Vec::new() };
        let rest = current.direct.as_ref().map_or_else(Vec::new, |direct| direct.take_back());
        current.rest += rest.len();
        rest
    }

    /// Lends the socket to the loop, if everything taken of the response was written to it.
    pub fn lend(&mut self, descriptor: RawFd) {
        let Some(current) = &mut self.current else { return };
        let outgoing = current.outgoing.borrow();
        outgoing.pending.sent(std::mem::take(&mut current.rest));
        if let Some(direct) = &current.direct
            && current.answer.is_none()
            && self.unwritten.get() == 0
            && outgoing.awaits_chunks()
        {
            direct.lend(descriptor);
        }
    }

    pub fn may_receive(&self) -> bool {
        let limit = self.network.shared.limits.stream_queued_bytes_max as usize;
        self.current.as_ref().is_some_and(|current| {
            !current.ended && (current.is_finished() || !current.is_paused && current.held < limit)
        })
    }

    /// Whether the connection waits for the client to send more of a request's body.
    pub fn awaits_body(&self) -> bool {
        self.may_receive() && self.current.as_ref().is_some_and(|current| current.body.is_some())
    }

    /// Takes pieces of the request's body until the limit on waiting bytes.
    pub fn poll_body(&mut self, cx: &mut Context<'_>) {
        while self.may_receive()
            && let Some(current) = &mut self.current
            && let Some(body) = &mut current.body
        {
            let id = current.id;
            match Pin::new(body).poll_frame(cx) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(frame))) => {
                    let Ok(mut data) = frame.into_data() else { continue };
                    let length = data.len();
                    if current.is_finished() {
                        current.discard(length);
                        continue;
                    }
                    if length < SHARED_BYTES_MIN {
                        data = Bytes::copy_from_slice(&data);
                    }
                    current.held += length;
                    self.event(id, EventDetail::Message(data, length));
                }
                Poll::Ready(Some(Err(_))) => {
                    self.broken = true;
                    return;
                }
                Poll::Ready(None) => {
                    current.body = None;
                    if !current.is_finished() {
                        self.event(id, EventDetail::HalfClosed);
                    }
                }
            }
        }
    }

    /// Forgets an answered request; returns whether a request is still being served.
    ///
    /// The rest of an answered request's body is read first, unless the connection ends anyway.
    pub fn is_busy(&mut self) -> bool {
        let is_draining = self.network.draining.get();
        if self.current.as_ref().is_some_and(|current| {
            current.is_finished()
                && current.is_taken()
                && !current.upgraded
                && (current.body.is_none() || current.is_last || is_draining)
        }) {
            self.end();
        }
        self.current.is_some()
    }

    pub fn is_upgraded(&self) -> bool {
        self.current.as_ref().is_some_and(|current| current.upgraded)
    }

    pub fn raw_bytes(&mut self, data: Bytes) {
        if let Some(current) = &mut self.current
            && !current.is_finished()
            && !data.is_empty()
        {
            let (id, length) = (current.id, data.len());
            current.held += length;
            self.event(id, EventDetail::Message(data, length));
        }
    }

    /// Reads no more from an upgraded connection.
    pub fn raw_end(&mut self) {
        if let Some(current) = &mut self.current {
            current.ended = true;
        }
    }

    pub fn take_piece(&mut self) -> Option<Piece> {
        self.current.as_ref()?.outgoing.borrow_mut().take()
    }

    pub fn put_back(&mut self, piece: Piece) {
        if let Some(current) = &self.current {
            current.outgoing.borrow_mut().put_back(piece);
        }
    }

    pub fn is_finished(&self) -> bool {
        self.current.as_ref().is_none_or(Exchange::is_finished)
    }

    /// Ends the current exchange; reports ENDED unless the loop has finished the response.
    pub fn end(&mut self) {
        if let Some(current) = self.current.take() {
            uncount(&self.network.shared.counters.calls_open, 1);
            if !current.is_finished() {
                self.event(current.id, EventDetail::Ended);
            }
        }
    }

    pub fn publish(&mut self) {
        let mark = self.network.shared.limits.stream_writable_bytes;
        if let Some(current) = &self.current
            && !current.is_finished()
            && current.outgoing.borrow().pending.is_writable_again(mark)
        {
            let id = current.id;
            self.event(id, EventDetail::Writable);
        }
        let queued = self.current.as_ref().map_or(0, |current| current.outgoing.borrow().bytes);
        let here = queued + self.unwritten.get();
        let account = &self.connection.shared.account;
        self.ledger.settle(&self.network.shared, account, (here, 0));
        self.arrivals.publish(&self.network, &self.connection);
    }
}

impl Exchange {
    /// Whether the loop has handed over the whole response.
    fn is_finished(&self) -> bool {
        self.outgoing.borrow().ending.is_some()
    }

    /// Counts discarded bytes; abandons the body when there are too many.
    fn discard(&mut self, bytes: usize) {
        self.discarded += bytes;
        if self.discarded > DISCARDED_BYTES_MAX {
            self.body = None;
        }
    }

    /// Whether more of the request's body may arrive than an answered request may discard.
    fn has_long_rest(&self) -> bool {
        self.body.as_ref().is_some_and(|body| {
            let left = body.size_hint().upper();
            left.is_none_or(|left| left > DISCARDED_BYTES_MAX as u64)
        })
    }

    /// Whether hyper took the response and has dropped it again.
    fn is_taken(&self) -> bool {
        self.answer.is_none() && Rc::strong_count(&self.outgoing) == 1
    }

    fn apply(&mut self, command: Command) {
        let mut outgoing = self.outgoing.borrow_mut();
        match command {
            Command::Respond { status, headers, body, .. } => {
                if let Some(body) = body {
                    outgoing.push(body);
                    outgoing.finish(grpc::OK);
                    outgoing.exact = true;
                } else {
                    outgoing.bodiless = self.is_head || matches!(status, 204 | 304);
                }
                let answer = AnswerBody(self.outgoing.clone());
                let mut response = Response::new(answer);
                *response.status_mut() =
                    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                append_all(response.headers_mut(), &headers);
                outgoing.chunked = !(outgoing.exact
                    || outgoing.bodiless
                    || status == StatusCode::SWITCHING_PROTOCOLS
                    || response.headers().contains_key(CONTENT_LENGTH)
                    || response.headers().contains_key(TRANSFER_ENCODING));
                self.is_last = outgoing.exact && self.has_long_rest();
                if self.is_last {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                self.upgraded = status == StatusCode::SWITCHING_PROTOCOLS;
                if self.upgraded {
                    self.body = None;
                }
                self.answer = Some(response);
            }
            Command::Send { data, .. } => outgoing.push(data),
            Command::Finish { code, .. } => outgoing.finish(code),
            Command::Release { bytes, .. } => self.held -= bytes.min(self.held),
            Command::Hold { is_held, .. } => self.is_paused = is_held,
            _ => {}
        }
        outgoing.wake();
    }
}

/// The data that the loop sent and hyper has not taken.
struct Outgoing {
    pieces: VecDeque<Bytes>,
    bytes: usize,
    ending: Option<i32>,
    waker: Option<Waker>,
    pending: Arc<Pending>,
    /// The loop gave the whole body at once, so its length is known.
    exact: bool,
    /// Each piece leaves as a chunk with its own length.
    chunked: bool,
    /// The response has no body: hyper asks for no data, and sent data is dropped.
    bodiless: bool,
    /// Small pieces leave together. Members accept any chunks; clients take each chunk for a line.
    joins: bool,
    unwritten: Rc<Cell<usize>>,
}

impl Outgoing {
    fn push(&mut self, piece: Bytes) {
        if self.bodiless {
            self.pending.sent(piece.len());
        } else if self.ending.is_none() && !piece.is_empty() {
            self.bytes += piece.len();
            self.pieces.push_back(piece);
        }
    }

    /// Whether hyper waits for more of a chunked body.
    fn awaits_chunks(&self) -> bool {
        self.chunked && self.waker.is_some() && self.pieces.is_empty() && self.ending.is_none()
    }

    fn finish(&mut self, code: i32) {
        self.ending.get_or_insert(code);
    }

    /// Takes the next piece, joined with the small ones after it where pieces leave together: each
    /// would cost a chunk header, and work for the reader.
    fn take(&mut self) -> Option<Piece> {
        let mut data = self.pieces.pop_front()?;
        if self.joins && !self.exact && self.is_joined(data.len()) {
            let mut joined = BytesMut::from(data);
            while self.is_joined(joined.len()) {
                joined.extend_from_slice(&self.pieces.pop_front()?);
            }
            data = joined.freeze();
        }
        self.bytes -= data.len();
        self.unwritten.set(self.unwritten.get() + data.len());
        Some(Piece { data, pending: self.pending.clone(), unwritten: self.unwritten.clone() })
    }

    /// Whether the next piece may be joined to one of this length.
    fn is_joined(&self, length: usize) -> bool {
        self.pieces.front().is_some_and(|next| length + next.len() <= JOINED_BYTES_MAX)
    }

    fn put_back(&mut self, mut piece: Piece) {
        let data = std::mem::take(&mut piece.data);
        self.unwritten.set(self.unwritten.get() - data.len());
        self.bytes += data.len();
        self.pieces.push_front(data);
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// A piece that hyper is writing; its unwritten bytes still count as pending and unread.
pub struct Piece {
    data: Bytes,
    pending: Arc<Pending>,
    unwritten: Rc<Cell<usize>>,
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.data.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.data
    }

    fn advance(&mut self, length: usize) {
        self.data.advance(length);
        self.unwritten.set(self.unwritten.get() - length);
        self.pending.sent(length);
    }
}

/// hyper drops data beyond the length that a response announced; such data counts as sent.
impl Drop for Piece {
    fn drop(&mut self) {
        self.advance(self.data.len());
    }
}

/// The body of a response, which hyper polls.
pub struct AnswerBody(Rc<RefCell<Outgoing>>);

impl Body for AnswerBody {
    type Data = Piece;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, io::Error>>> {
        let mut outgoing = self.0.borrow_mut();
        if let Some(piece) = outgoing.take() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        match outgoing.ending {
            Some(grpc::OK) => Poll::Ready(None),
            Some(_) => Poll::Ready(Some(Err(io::Error::other("the answer was broken off")))),
            None => {
                outgoing.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let outgoing = self.0.borrow();
        outgoing.pieces.is_empty() && outgoing.ending == Some(grpc::OK)
    }

    fn size_hint(&self) -> SizeHint {
        let outgoing = self.0.borrow();
        if outgoing.exact {
            SizeHint::with_exact(outgoing.bytes as u64)
        } else {
            SizeHint::default()
        }
    }
}

/// Reports requests to the loop, and waits for its responses.
pub struct Server(pub Rc<RefCell<Exchanges>>);

impl Service<Request<Incoming>> for Server {
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: Request<Incoming>) -> Answer {
        let id = self.0.borrow_mut().open(request);
        Answer { exchanges: self.0.clone(), id }
    }
}

pub struct Answer {
    exchanges: Rc<RefCell<Exchanges>>,
    id: u32,
}

impl Future for Answer {
    type Output = Result<Response<AnswerBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut exchanges = self.exchanges.borrow_mut();
        let Some(current) = exchanges.current.as_mut().filter(|current| current.id == self.id)
        else {
            return Poll::Pending;
        };
        if let Some(answer) = current.answer.take() {
            return Poll::Ready(Ok(answer));
        }
        current.outgoing.borrow_mut().waker = Some(cx.waker().clone());
        Poll::Pending
    }
}
