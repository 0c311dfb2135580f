//! One stream of an HTTP/2 connection, from its headers to its last frame.

use crate::grpc::{self, MessageReader, Next, Refusal};
use crate::ready::{Ready, stream_waker};
use crate::server::arrivals::Arrivals;
use crate::server::shared::{Call, EventDetail, Metadata, Pairs, Unary};
use crate::threads::flow::Pending;
use crate::windows::{GRANTED_BYTES_MAX, PIECE_BYTES_MAX};
use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONTENT_LENGTH, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// Small messages leave together up to this size, which fits into a frame.
const JOINED_BYTES_MAX: usize = 16 * 1024;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Unary,
    Streaming,
    Http,
}

enum Answer {
    Unopened(SendResponse<Bytes>),
    Open(SendStream<Bytes>),
}

struct Ending {
    code: i32,
    text: String,
    trailers: Pairs,
}

/// The state of a stream after it has sent as much as possible.
pub enum Progress {
    /// The stream goes on when its waker is called.
    Waiting,
    /// The stream goes on when the socket has written what it holds.
    Blocked,
    Done,
    /// The client reset the stream.
    Broken,
}

pub struct Stream {
    pub kind: Kind,
    pub call: Call,
    pub method: u32,
    pub metadata: Metadata,
    pub deadline: Option<Instant>,
    /// The loop asked for ENDED if this unary call ends early.
    pub waiting: bool,
    pub pending: Arc<Pending>,
    /// The response to this request has no body, whatever its headers say.
    pub bodiless: bool,
    body: Option<RecvStream>,
    reader: MessageReader,
    answer: Answer,
    /// Received bytes that were not yet returned to the client's window.
    owed: usize,
    /// The loop has paused the request's body.
    is_held: bool,
    /// Bytes that the loop took while paused, which return to the window on resume.
    withheld: usize,
    /// The data to send before the stream ends, and its length.
    pieces: VecDeque<Bytes>,
    pieces_bytes: usize,
    ending: Option<Ending>,
    /// Sent data has had one pass to leave before the stream is reset.
    breaking: bool,
    waker: Option<Waker>,
    /// A command was applied to the stream, and the stream has not sent since.
    pub is_addressed: bool,
    /// The bytes that the connection counts for this stream.
    pub load: Load,
}

/// Bytes that a call keeps in memory.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Bytes of an incomplete message.
    pub partial: usize,
    /// Bytes of a response that the client does not take.
    pub unread: usize,
    /// Bytes of a stream's messages that the client does not take.
    pub streamed: usize,
}

/// The state of a stream after its received bytes were processed.
pub enum Received {
    All,
    /// A compressed message has to wait until there is room for it.
    Packed,
    /// The client reset the stream.
    Reset,
}

/// The length of the next write: part of the first piece, or several small pieces, each of which
/// would cost h2 a frame.
fn next_bytes(pieces: &VecDeque<Bytes>, joins: bool) -> usize {
    let mut lengths = pieces.iter().map(Bytes::len);
    let mut length = lengths.next().unwrap_or(0).min(PIECE_BYTES_MAX);
    if joins {
        length += lengths
            .scan(length, |joined, next| {
                *joined += next;
                (*joined <= JOINED_BYTES_MAX).then_some(next)
            })
            .sum::<usize>();
    }
    length
}

/// Takes the first `length` bytes, which must exist.
fn take_bytes(pieces: &mut VecDeque<Bytes>, length: usize) -> Bytes {
    if let Some(first) = pieces.front_mut().filter(|first| first.len() > length) {
        return first.split_to(length);
    }
    let Some(first) = pieces.pop_front() else { return Bytes::new() };
    if first.len() == length {
        return first;
    }
    let mut joined = BytesMut::with_capacity(length);
    joined.extend_from_slice(&first);
    while joined.len() < length
        && let Some(next) = pieces.front_mut()
    {
        joined.extend_from_slice(&next.split_to(next.len().min(length - joined.len())));
        if next.is_empty() {
            pieces.pop_front();
        }
    }
    joined.freeze()
}

/// Answers a refused call.
pub fn refuse(mut respond: SendResponse<Bytes>, refusal: &Refusal) {
    let mut response = grpc::response(refusal.http_status, &[]);
    grpc::add_status(response.headers_mut(), refusal.code, &refusal.text, &[]);
    // An error here means that the client has gone, and needs no answer.
    let _ = respond.send_response(response, true);
}

/// Answers a refused plain HTTP request.
pub fn refuse_http(mut respond: SendResponse<Bytes>, status: StatusCode) {
    let mut response = Response::new(());
    *response.status_mut() = status;
    let _ = respond.send_response(response, true);
}

impl Stream {
    pub fn new(
        kind: Kind,
        call: Call,
        body: RecvStream,
        respond: SendResponse<Bytes>,
        reader: MessageReader,
    ) -> Stream {
        Stream {
            kind,
            call,
            method: 0,
            metadata: None,
            deadline: None,
            waiting: false,
            pending: Arc::default(),
            bodiless: false,
            body: Some(body),
            reader,
            answer: Answer::Unopened(respond),
            owed: 0,
            is_held: false,
            withheld: 0,
            pieces: VecDeque::new(),
            pieces_bytes: 0,
            ending: None,
            breaking: false,
            waker: None,
            is_addressed: false,
            load: Load::default(),
        }
    }

    pub fn current_load(&self) -> Load {
        let partial = if self.body.is_some() { self.reader.partial_bytes() } else { 0 };
        match self.kind {
            Kind::Streaming => Load { partial, unread: 0, streamed: self.pieces_bytes },
            _ => Load { partial, unread: self.pieces_bytes, streamed: 0 },
        }
    }

    /// Resets a call whose message is refused.
    pub fn turn_away(&mut self) {
        // Clients retry a call that was certainly not processed.
        let reason = match self.kind {
            Kind::Unary => Reason::REFUSED_STREAM,
            _ => Reason::ENHANCE_YOUR_CALM,
        };
        self.reset(reason);
    }

    /// Whether the loop knows the stream and has not finished it.
    pub fn is_in_use(&self) -> bool {
        self.kind != Kind::Unary && self.ending.is_none()
    }

    /// Whether the loop gets ENDED if the client cancels.
    pub fn is_reported(&self) -> bool {
        self.is_in_use() || self.waiting && self.ending.is_none()
    }

    /// Reads what the client sent; `may_unpack` says whether there is room for a compressed
    /// message.
    pub fn receive(
        &mut self,
        ready: &Arc<Ready>,
        id: u32,
        arrivals: &mut Arrivals,
        may_unpack: impl Fn(&Arrivals) -> bool,
    ) -> Result<Received, Refusal> {
        // Most requests arrive whole; only the others need a waker.
        let mut waker = None;
        loop {
            if self.reader.partial_bytes() > 0 && !self.take_messages(arrivals, &may_unpack)? {
                return Ok(Received::Packed);
            }
            let Some(body) = &mut self.body else { return Ok(Received::All) };
            let mut cx = Context::from_waker(waker.as_ref().unwrap_or(Waker::noop()));
            match body.poll_data(&mut cx) {
                Poll::Pending if waker.is_some() => return Ok(Received::All),
                Poll::Pending => {
                    waker = Some(self.waker.get_or_insert_with(|| stream_waker(ready, id)).clone());
                }
                Poll::Ready(Some(Ok(data))) => self.take_in(data, arrivals),
                Poll::Ready(Some(Err(_))) => return Ok(Received::Reset),
                Poll::Ready(None) => {
                    self.body = None;
                    let partial = self.reader.partial_bytes();
                    match self.kind {
                        Kind::Unary => return Err(grpc::cut_off(false, partial)),
                        Kind::Streaming if partial > 0 => return Err(grpc::cut_off(true, partial)),
                        _ => arrivals.event(self.call, EventDetail::HalfClosed),
                    }
                }
            }
        }
    }

    fn take_in(&mut self, data: Bytes, arrivals: &mut Arrivals) {
        let length = data.len();
        match self.kind {
            Kind::Http => arrivals.event(self.call, EventDetail::Message(data, length)),
            Kind::Unary => {
                self.release(length);
                self.reader.push(data);
            }
            Kind::Streaming => {
                self.owed += length;
                self.reader.push(data);
            }
        }
    }

    /// Passes complete messages on; false if one has to stay compressed.
    fn take_messages(
        &mut self,
        arrivals: &mut Arrivals,
        may_unpack: impl Fn(&Arrivals) -> bool,
    ) -> Result<bool, Refusal> {
        while self.body.is_some() {
            match self.reader.next(|| may_unpack(arrivals))? {
                Next::Packed => return Ok(false),
                Next::Incomplete => {
                    // A message may be larger than the window, so the bytes of an incomplete one
                    // return to the window at once, and those of others when the loop polls them.
                    let owed = std::mem::take(&mut self.owed);
                    self.release(owed);
                    break;
                }
                Next::Message { message, wire_bytes, compressed } => {
                    arrivals.unpacked_bytes += if compressed { message.len() } else { 0 };
                    let call = self.call;
                    if self.kind == Kind::Unary {
                        // h2 discards anything that follows the message.
                        self.body = None;
                        let (method, metadata) = (self.method, self.metadata.take());
                        arrivals.request(Unary { call, method, payload: message, metadata });
                        break;
                    }
                    let released = wire_bytes.min(self.owed);
                    self.owed -= released;
                    // A client that has half-closed the stream needs no window.
                    let is_last = self.body.as_ref().is_some_and(RecvStream::is_end_stream);
                    arrivals.message(call, message, if is_last { 0 } else { released });
                }
            }
        }
        Ok(true)
    }

    /// Pauses or resumes the client's window; on resume, withheld bytes return to the window.
    pub fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
        if !is_held {
            let withheld = std::mem::take(&mut self.withheld);
            self.release(withheld);
        }
    }

    /// Returns bytes to the client's window, or withholds them while the stream is paused.
    pub fn release(&mut self, bytes: usize) {
        if self.is_held {
            self.withheld += bytes;
        } else if let Some(body) = &mut self.body {
            let _ = body.flow_control().release_capacity(bytes);
        }
    }

    /// Sends a unary call's whole response; true if nothing is left to do for it.
    ///
    /// With `hurry`, a small response goes to h2 at once, even if the stream's window is closed:
    /// checking the window would cost more.
    pub fn reply(&mut self, head: Option<Bytes>, message: Bytes, hurry: bool) -> bool {
        self.start(&[]);
        if let Some(head) = head {
            self.send(head);
        } else if let Answer::Open(send) = &mut self.answer
            && hurry
            && self.pieces.is_empty()
            && message.len() <= PIECE_BYTES_MAX
        {
            let sent = send.send_data(message, false);
            return sent.and_then(|()| send.send_trailers(grpc::ok_trailers())).is_ok();
        }
        self.send(message);
        self.finish(grpc::OK, String::new(), Pairs::new());
        false
    }

    pub fn start(&mut self, metadata: &[(String, String)]) {
        self.open(grpc::response(StatusCode::OK, metadata));
    }

    pub fn respond(&mut self, status: u16, headers: &[(String, String)], body: Option<Bytes>) {
        let mut response = Response::new(());
        *response.status_mut() =
            StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        grpc::append_all(response.headers_mut(), headers);
        let has_none = matches!(status, 204 | 304);
        self.bodiless |= has_none;
        if let Some(body) = body.as_ref().filter(|_| !has_none) {
            let length = HeaderValue::from(body.len());
            response.headers_mut().entry(CONTENT_LENGTH).or_insert(length);
        }
        self.open(response);
        if let Some(body) = body {
            self.send(body);
            self.finish(grpc::OK, String::new(), Pairs::new());
        }
    }

    fn open(&mut self, response: Response<()>) {
        if let Answer::Unopened(respond) = &mut self.answer
            && let Ok(send) = respond.send_response(response, false)
        {
            self.answer = Answer::Open(send);
        }
    }

    pub fn send(&mut self, data: Bytes) {
        if self.kind != Kind::Http {
            self.start(&[]);
        }
        if self.bodiless {
            self.pending.sent(data.len());
        } else if self.ending.is_none() && !data.is_empty() {
            self.pieces_bytes += data.len();
            self.pieces.push_back(data);
        }
    }

    /// Ends the stream after the data sent so far.
    pub fn finish(&mut self, code: i32, text: String, trailers: Pairs) {
        self.ending.get_or_insert(Ending { code, text, trailers });
    }

    /// Ends the stream now, and drops the data that has not left.
    pub fn abort(&mut self, refusal: Refusal) {
        self.pieces.clear();
        self.pieces_bytes = 0;
        self.ending = Some(Ending { code: refusal.code, text: refusal.text, trailers: vec![] });
        self.end();
    }

    /// Ends the stream at its deadline.
    pub fn expire(&mut self) {
        if self.pieces.is_empty() {
            return self.abort(grpc::deadline_exceeded());
        }
        // Part of a message may have left. Clients would take trailers behind it for a broken
        // message, but take a reset after their deadline for the deadline.
        self.pieces.clear();
        self.pieces_bytes = 0;
        self.reset(Reason::CANCEL);
    }

    fn reset(&mut self, reason: Reason) {
        match &mut self.answer {
            Answer::Unopened(respond) => respond.send_reset(reason),
            Answer::Open(send) => send.send_reset(reason),
        }
    }

    /// Sends data as long as the socket is free; `granted` counts the bytes handed to h2.
    pub fn transmit(
        &mut self,
        ready: &Arc<Ready>,
        id: u32,
        socket_is_free: bool,
        granted: &mut usize,
    ) -> Progress {
        let joins = self.kind != Kind::Http;
        while !self.pieces.is_empty() {
            let Answer::Open(send) = &mut self.answer else {
                return Progress::Broken;
            };
            if !socket_is_free || *granted >= GRANTED_BYTES_MAX {
                return Progress::Blocked;
            }
            let length = next_bytes(&self.pieces, joins);
            send.reserve_capacity(length);
            let mut capacity = send.capacity();
            if capacity == 0 {
                let waker = self.waker.get_or_insert_with(|| stream_waker(ready, id));
                match send.poll_capacity(&mut Context::from_waker(waker)) {
                    Poll::Ready(Some(Ok(granted))) => capacity = granted,
                    Poll::Ready(_) => return Progress::Broken,
                    Poll::Pending => return Progress::Waiting,
                }
            }
            let data = take_bytes(&mut self.pieces, capacity.min(length));
            self.pieces_bytes -= data.len();
            self.pending.sent(data.len());
            *granted += data.len();
            if send.send_data(data, false).is_err() {
                return Progress::Broken;
            }
        }
        if let Some(ending) = &self.ending {
            // A reset would overtake the data that h2 still holds.
            if self.kind == Kind::Http && ending.code != grpc::OK && !self.breaking {
                self.breaking = true;
                return Progress::Blocked;
            }
            return if self.end() { Progress::Done } else { Progress::Broken };
        }
        let is_watched = self.waker.is_some() || self.is_reported();
        if is_watched && self.body.is_none() && self.is_reset(Some(ready), id) {
            return Progress::Broken;
        }
        Progress::Waiting
    }

    /// Whether the client reset the stream. If not, and `ready` is given, a later reset calls the
    /// stream's waker.
    pub fn is_reset(&mut self, ready: Option<&Arc<Ready>>, id: u32) -> bool {
        let waker = match ready {
            Some(ready) => self.waker.get_or_insert_with(|| stream_waker(ready, id)),
            None => Waker::noop(),
        };
        let mut cx = Context::from_waker(waker);
        match &mut self.answer {
            Answer::Unopened(respond) => respond.poll_reset(&mut cx).is_ready(),
            Answer::Open(send) => send.poll_reset(&mut cx).is_ready(),
        }
    }

    /// Sends the last frame; false if the stream is broken.
    fn end(&mut self) -> bool {
        let Some(ending) = &self.ending else { return false };
        match (&mut self.answer, self.kind) {
            (Answer::Open(send), Kind::Http) if ending.code == grpc::OK => {
                send.send_data(Bytes::new(), true).is_ok()
            }
            (Answer::Open(send), Kind::Http) => {
                send.send_reset(Reason::INTERNAL_ERROR);
                true
            }
            (Answer::Unopened(respond), Kind::Http) => {
                respond.send_reset(Reason::INTERNAL_ERROR);
                true
            }
            (Answer::Open(send), _) => {
                let mut trailers = HeaderMap::new();
                grpc::add_status(&mut trailers, ending.code, &ending.text, &ending.trailers);
                send.send_trailers(trailers).is_ok()
            }
            (Answer::Unopened(respond), _) => {
                let mut response = grpc::response(StatusCode::OK, &[]);
                let headers = response.headers_mut();
                grpc::add_status(headers, ending.code, &ending.text, &ending.trailers);
                respond.send_response(response, true).is_ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pieces_leave_together_and_nothing_is_lost_or_moved() {
        let sizes = [3, 5, JOINED_BYTES_MAX - 8, 1, JOINED_BYTES_MAX, 2, 100_000, 7, 7];
        for capacity in [1, 6, 1000, usize::MAX] {
            let whole: Vec<Bytes> =
                (0..).zip(sizes).map(|(byte, size)| vec![byte; size].into()).collect();
            let mut pieces: VecDeque<Bytes> = whole.iter().cloned().collect();
            let (mut taken, mut frames) = (Vec::new(), Vec::new());
            while !pieces.is_empty() {
                let length = next_bytes(&pieces, true).min(capacity);
                let data = take_bytes(&mut pieces, length);
                assert_eq!(data.len(), length);
                taken.extend_from_slice(&data);
                frames.push(length);
            }
            assert_eq!(taken, whole.concat());
            if capacity == usize::MAX {
                let rest = 100_000 - PIECE_BYTES_MAX;
                let joined = [JOINED_BYTES_MAX, 1, JOINED_BYTES_MAX, 2, PIECE_BYTES_MAX, rest, 14];
                assert_eq!(frames, joined);
            }
        }
    }
}
