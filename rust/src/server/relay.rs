//! Relays unary calls from clients to other servers, and the responses back, without the loop.
//!
//! The loop sets which methods are relayed, and to which endpoints. The loop itself serves every
//! call that needs a decision: calls without an endpoint, calls that are too large or too many, and
//! those that certainly no server has processed. Both sides run on one thread, so that a call never
//! waits for another thread.

use crate::grpc::{self, UNAUTHENTICATED, UNKNOWN};
use crate::server::network::{Connection, Network};
use crate::server::shared::{Call, Unary};
use crate::upstream::network::command;
use crate::upstream::shared::{CallKind, Detail, Event, Head, NewCall, ToEndpoint};
use http::uri::PathAndQuery;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A method whose calls are relayed.
pub struct Rule {
    pub path: PathAndQuery,
    /// Requests that contain these bytes go to the loop; if empty, none do.
    pub exception: Vec<u8>,
    /// The relay notes the revisions in the headers of responses for the loop.
    pub is_noted: bool,
}

/// Counters of one method's calls.
#[derive(Default)]
pub struct Tally {
    pub started: AtomicU64,
    pub open: AtomicUsize,
}

/// The state that the loop and the network thread share.
#[derive(Default)]
pub struct Shared {
    /// By the method's number.
    pub rules: Vec<Option<Rule>>,
    pub request_bytes_max: usize,
    pub calls_max: usize,
    pub bytes_max: usize,
    /// The endpoints that receive calls, in turn.
    pub endpoints: Mutex<Vec<u64>>,
    /// Unanswered calls, and the bytes of their requests.
    pub calls: AtomicUsize,
    pub bytes: AtomicUsize,
    /// The newest revision that was noted since the loop last took it.
    pub revision: AtomicU64,
    /// By the method's number.
    pub tallies: Vec<Tally>,
    /// Failed calls, by method and status code.
    pub failures: Mutex<FxHashMap<(u32, i32), u64>>,
}

/// The network thread's part of the relay.
pub struct Relay {
    shared: Arc<Shared>,
    open: RefCell<FxHashMap<Call, Open>>,
    turns: Cell<usize>,
}

/// A relayed call.
struct Open {
    endpoint: u64,
    request: Unary,
}

impl Relay {
    pub fn new(shared: Arc<Shared>) -> Relay {
        Relay { shared, open: RefCell::default(), turns: Cell::new(0) }
    }

    /// Relays calls; returns those that the loop has to serve.
    pub fn pass_on(
        &self,
        network: &Network,
        connection: &Connection,
        requests: Vec<Unary>,
    ) -> Vec<Unary> {
        let edge = &network.shared;
        if network.draining.get() || !edge.room.has_room_for_call(&edge.limits, &connection.shared)
        {
            return requests;
        }
        requests.into_iter().filter_map(|request| self.begin(network, request)).collect()
    }

    /// Relays a call, or returns it if the loop has to serve it.
    fn begin(&self, network: &Network, request: Unary) -> Option<Unary> {
        let shared = &self.shared;
        let Some(rule) = shared.rules.get(request.method as usize).and_then(Option::as_ref) else {
            return Some(request);
        };
        let is_loops = request.payload.len() > shared.request_bytes_max
            || shared.calls.load(Ordering::Relaxed) >= shared.calls_max
            || shared.bytes.load(Ordering::Relaxed) >= shared.bytes_max
            || contains(&request.payload, &rule.exception);
        let Some(endpoint) = (if is_loops { None } else { self.next_endpoint() }) else {
            return Some(request);
        };
        let keys = &network.shared.metadata_keys;
        let metadata = request.metadata.iter().flatten();
        let head = Head {
            path: rule.path.clone(),
            metadata: metadata
                .map(|(place, value)| (keys[*place].clone(), value.clone()))
                .collect(),
        };
        let call = request.call;
        let kind = CallKind::Unary(grpc::frame(&request.payload));
        self.count(&request, true);
        self.open.borrow_mut().insert(call, Open { endpoint, request });
        if command(endpoint, ToEndpoint::Begin(NewCall { number: call, head, kind })) {
            return None;
        }
        let request = self.open.borrow_mut().remove(&call)?.request;
        self.retract(&request);
        Some(request)
    }

    fn next_endpoint(&self) -> Option<u64> {
        let endpoints = self.shared.endpoints.lock();
        let turn = self.turns.get();
        self.turns.set(turn.wrapping_add(1));
        (!endpoints.is_empty()).then(|| endpoints[turn % endpoints.len()])
    }

    /// Takes the last events of relayed calls, and finishes these; returns the number of responses.
    pub fn take(&self, network: &Network, events: &mut VecDeque<Event>) -> usize {
        let mut answers = 0;
        if self.open.borrow().is_empty() {
            return answers;
        }
        let told = std::mem::take(events);
        for event in told {
            let open = match event.detail {
                Detail::Answered(_) | Detail::Ended(_) => {
                    self.open.borrow_mut().remove(&event.number)
                }
                _ => None,
            };
            match open {
                None => events.push_back(event),
                Some(open) => {
                    answers += usize::from(matches!(event.detail, Detail::Answered(_)));
                    self.finish(network, open.request, event.detail);
                }
            }
        }
        answers
    }

    fn finish(&self, network: &Network, request: Unary, detail: Detail) {
        let (call, method) = (request.call, request.method);
        match detail {
            Detail::Answered(answer) => {
                let rule = self.shared.rules.get(method as usize).and_then(Option::as_ref);
                if rule.is_some_and(|rule| rule.is_noted) {
                    // Note it before the client can know it: the client's next request must see it.
                    self.shared.revision.fetch_max(revision_of(&answer), Ordering::SeqCst);
                }
                network.answer(call, Ok(grpc::frame(&answer)));
            }
            // While the edge drains, the loop may have seen its last call.
            Detail::Ended(end) if end.is_unprocessed && !network.draining.get() => {
                self.retract(&request);
                return network.leave_to_loop(request);
            }
            Detail::Ended(end) => {
                let is_known = (grpc::OK..=UNAUTHENTICATED).contains(&end.code);
                let code = if is_known { end.code } else { UNKNOWN };
                *self.shared.failures.lock().entry((method, code)).or_default() += 1;
                network.answer(call, Err((code, end.text)));
            }
            _ => {}
        }
        self.settle(network, &request);
    }

    /// Cancels a relayed call whose client needs no response any more.
    pub fn cancel(&self, network: &Network, call: Call) {
        let found = self.open.borrow_mut().remove(&call);
        if let Some(Open { endpoint, request }) = found {
            command(endpoint, ToEndpoint::Cancel { call });
            self.settle(network, &request);
        }
    }

    /// Counts a call that has ended.
    fn settle(&self, network: &Network, request: &Unary) {
        self.count(request, false);
        if network.draining.get() && self.shared.calls.load(Ordering::SeqCst) == 0 {
            network.note_drain_news();
        }
    }

    /// Removes a call from all counters, as one that was not relayed.
    fn retract(&self, request: &Unary) {
        self.count(request, false);
        let tally = &self.shared.tallies[request.method as usize];
        tally.started.fetch_sub(1, Ordering::Relaxed);
    }

    fn count(&self, request: &Unary, is_begun: bool) {
        let (shared, bytes) = (&self.shared, request.payload.len());
        let tally = &shared.tallies[request.method as usize];
        if is_begun {
            shared.calls.fetch_add(1, Ordering::SeqCst);
            shared.bytes.fetch_add(bytes, Ordering::SeqCst);
            tally.open.fetch_add(1, Ordering::Relaxed);
            tally.started.fetch_add(1, Ordering::Relaxed);
        } else {
            shared.calls.fetch_sub(1, Ordering::SeqCst);
            shared.bytes.fetch_sub(bytes, Ordering::SeqCst);
            tally.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn contains(data: &[u8], part: &[u8]) -> bool {
    !part.is_empty() && data.windows(part.len()).any(|window| window == part)
}

/// The revision in the header at the start of a response; 0 if there is none.
fn revision_of(answer: &[u8]) -> u64 {
    read_revision(answer).unwrap_or(0)
}

fn read_revision(answer: &[u8]) -> Option<u64> {
    let (tag, rest) = answer.split_first()?;
    if *tag != 0x0a {
        return None;
    }
    let (length, rest) = varint(rest)?;
    let mut header = rest.get(..usize::try_from(length).ok()?)?;
    let mut revision = 0;
    while !header.is_empty() {
        let (tag, rest) = varint(header)?;
        // All fields of a response's header are numbers.
        if tag & 7 != 0 {
            return None;
        }
        let (value, rest) = varint(rest)?;
        if tag >> 3 == 3 {
            revision = value;
        }
        header = rest;
    }
    // A negative number is no revision.
    Some(if revision > i64::MAX as u64 { 0 } else { revision })
}

fn varint(data: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (place, byte) in data.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Some((value, &data[place + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_revision_of_an_answer_is_in_its_header() {
        let header = [8, 1, 16, 2, 24, 0xac, 2, 32, 3];
        let answer = [&[0x0a, header.len() as u8][..], &header, &[18, 1, 0]].concat();
        assert_eq!(revision_of(&answer), 300);
        assert_eq!(revision_of(&[0x0a, 2, 8, 1]), 0);
        for cut in 0..answer.len() - 3 {
            assert_eq!(revision_of(&answer[..cut]), 0);
        }
        assert_eq!(revision_of(&[18, 0]), 0);
    }

    #[test]
    fn what_contains_the_exception_is_found() {
        assert!(contains(b"ab8\x01", b"8\x01") && contains(b"8\x01", b"8\x01"));
        assert!(!contains(b"8", b"8\x01") && !contains(b"8\x01", b"") && !contains(b"", b"8\x01"));
    }
}
