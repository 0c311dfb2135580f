//! One call to another server, from its headers to its status.

use crate::grpc::{MessageReader, Next};
use crate::threads::flow::Pending;
use crate::upstream::shared::{CallKind, Detail, Event};
use crate::upstream::status::{End, of_error, of_headers, of_http};
use crate::windows::{GRANTED_BYTES_MAX, PIECE_BYTES_MAX};
use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{RecvStream, SendStream};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The state of a call after it has sent as much as possible.
#[derive(PartialEq, Eq)]
pub enum Sent {
    /// The call goes on when its waker is called, or when there is more to send.
    Waiting,
    /// The call goes on when the socket has written what it holds.
    Blocked,
}

pub struct Call {
    pub number: u64,
    /// A stream's pending bytes; None for a unary call.
    pub pending: Option<Arc<Pending>>,
    response: Option<ResponseFuture>,
    body: Option<RecvStream>,
    reader: MessageReader,
    /// Received bytes that were not yet returned to the server's window.
    owed: usize,
    /// The answer to a unary call.
    answer: Option<Bytes>,
    has_answers_too_many: bool,
    sending: Option<SendStream<Bytes>>,
    pieces: VecDeque<Bytes>,
    half_closed: bool,
}

impl Call {
    pub fn new(number: u64, kind: CallKind, message_bytes_max: usize) -> Call {
        let mut call = Call {
            number,
            pending: None,
            response: None,
            body: None,
            reader: MessageReader::new(false, message_bytes_max),
            owed: 0,
            answer: None,
            has_answers_too_many: false,
            sending: None,
            pieces: VecDeque::new(),
            half_closed: false,
        };
        match kind {
            CallKind::Unary(message) => {
                call.pieces.push_back(message);
                call.half_closed = true;
            }
            CallKind::Stream(pending) => call.pending = Some(pending),
        }
        call
    }

    fn is_unary(&self) -> bool {
        self.pending.is_none()
    }

    /// Notes that h2 has the call's headers, and sends a short unary message.
    pub fn opened(&mut self, response: ResponseFuture, mut sending: SendStream<Bytes>) {
        self.response = Some(response);
        if self.is_unary()
            && self.pieces.front().is_some_and(|piece| piece.len() <= PIECE_BYTES_MAX)
            && let Some(message) = self.pieces.pop_front()
        {
            // An error here means that the call has ended, which the response reports.
            let _ = sending.send_data(message, true);
            return;
        }
        self.sending = Some(sending);
    }

    pub fn send(&mut self, data: Bytes) {
        if !self.half_closed {
            self.pieces.push_back(data);
        }
    }

    pub fn half_close(&mut self) {
        self.half_closed = true;
    }

    /// Returns bytes to the server's window.
    pub fn release(&mut self, bytes: usize) {
        if let Some(body) = &mut self.body {
            let _ = body.flow_control().release_capacity(bytes);
        }
    }

    /// Reads what the server sent; returns how the call ended, if it did.
    pub fn receive(&mut self, waker: &Waker, events: &mut VecDeque<Event>) -> Option<End> {
        let mut cx = Context::from_waker(waker);
        if let Some(response) = &mut self.response {
            match Pin::new(response).poll(&mut cx) {
                Poll::Pending => return None,
                Poll::Ready(Err(error)) => return Some(of_error(&error)),
                Poll::Ready(Ok(response)) => {
                    self.response = None;
                    let (head, body) = response.into_parts();
                    if let Some(end) = of_headers(&head.headers) {
                        return Some(self.judged(end));
                    }
                    if head.status != http::StatusCode::OK {
                        return Some(of_http(head.status));
                    }
                    self.body = Some(body);
                }
            }
        }
        loop {
            let body = self.body.as_mut()?;
            match body.poll_data(&mut cx) {
                Poll::Pending => return None,
                Poll::Ready(Some(Err(error))) => return Some(of_error(&error)),
                Poll::Ready(Some(Ok(data))) => {
                    if let Err(end) = self.take_in(data, events) {
                        return Some(end);
                    }
                }
                Poll::Ready(None) => {
                    return match body.poll_trailers(&mut cx) {
                        Poll::Pending => None,
                        Poll::Ready(Err(error)) => Some(of_error(&error)),
                        Poll::Ready(Ok(trailers)) => {
                            let end = trailers.and_then(|trailers| of_headers(&trailers));
                            let end = end.unwrap_or_else(|| of_http(http::StatusCode::OK));
                            Some(self.judged(end))
                        }
                    };
                }
            }
        }
    }

    fn take_in(&mut self, data: Bytes, events: &mut VecDeque<Event>) -> Result<(), End> {
        let length = data.len();
        if self.is_unary() {
            self.release(length);
        } else {
            self.owed += length;
        }
        self.reader.push(data);
        loop {
            let next = self.reader.next(|| true);
            match next.map_err(|refusal| End::new(refusal.code, refusal.text))? {
                Next::Message { message, wire_bytes, .. } if self.is_unary() => {
                    debug_assert!(wire_bytes >= message.len());
                    self.has_answers_too_many = self.answer.is_some();
                    self.answer = Some(message);
                }
                Next::Message { message, wire_bytes, .. } => {
                    let released = wire_bytes.min(self.owed);
                    self.owed -= released;
                    let detail = Detail::Message(message, released);
                    events.push_back(Event { number: self.number, detail });
                }
                Next::Incomplete | Next::Packed => {
                    // A message may be larger than the window, so the bytes of an incomplete one
                    // return to the window at once, and those of others when the loop polls them.
                    let owed = std::mem::take(&mut self.owed);
                    self.release(owed);
                    return Ok(());
                }
            }
        }
    }

    /// The end that the server stated, unless the call's messages contradict it.
    fn judged(&self, end: End) -> End {
        if !end.is_ok() {
            return end;
        }
        if self.reader.partial_bytes() > 0 {
            return End::broken("the server ended the call in the middle of a message");
        }
        if self.is_unary() && self.answer.is_none() {
            return End::broken("the server answered without a message");
        }
        if self.has_answers_too_many {
            return End::broken("the server answered with several messages");
        }
        end
    }

    /// The event that reports the call's end.
    pub fn ended(&mut self, end: End) -> Event {
        let detail = match self.answer.take() {
            Some(answer) if end.is_ok() => Detail::Answered(answer),
            _ => Detail::Ended(end),
        };
        Event { number: self.number, detail }
    }

    /// Sends data as long as the socket is free; `granted` counts the bytes handed to h2.
    pub fn transmit(&mut self, waker: &Waker, is_free: bool, granted: &mut usize) -> Sent {
        let Some(sending) = &mut self.sending else { return Sent::Waiting };
        while let Some(piece) = self.pieces.front_mut() {
            if !is_free || *granted >= GRANTED_BYTES_MAX {
                return Sent::Blocked;
            }
            sending.reserve_capacity(piece.len().min(PIECE_BYTES_MAX));
            let mut capacity = sending.capacity();
            if capacity == 0 {
                match sending.poll_capacity(&mut Context::from_waker(waker)) {
                    Poll::Ready(Some(Ok(0))) => continue,
                    Poll::Ready(Some(Ok(granted))) => capacity = granted,
                    // Either there is no room, or the call has ended, which the response reports.
                    _ => return Sent::Waiting,
                }
            }
            let data = piece.split_to(capacity.min(piece.len()));
            if piece.is_empty() {
                self.pieces.pop_front();
            }
            *granted += data.len();
            if let Some(pending) = &self.pending {
                pending.sent(data.len());
            }
            let is_last = self.half_closed && self.pieces.is_empty();
            if sending.send_data(data, is_last).is_err() || is_last {
                self.sending = None;
                return Sent::Waiting;
            }
        }
        if self.half_closed {
            let _ = sending.send_data(Bytes::new(), true);
            self.sending = None;
        }
        Sent::Waiting
    }
}
