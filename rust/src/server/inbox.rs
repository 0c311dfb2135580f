//! Queues received items until the loop polls them: connections take turns, and each connection's
//! items keep their order.

use crate::server::shared::{ConnectionShared, Event, EventDetail, Unary, metadata_bytes};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// Items taken from one connection before it is the next connection's turn.
const TURN_CALLS: usize = 16;

/// Memory that a waiting item costs besides its bytes.
const OVERHEAD_BYTES: usize = 256;

pub trait Item {
    fn bytes(&self) -> usize;

    /// Whether the item needs a response, and so room for one.
    fn asks(&self) -> bool;

    /// Whether the item is a plain HTTP request.
    fn is_http(&self) -> bool {
        false
    }

    fn cost(&self) -> usize {
        self.bytes() + OVERHEAD_BYTES
    }
}

impl Item for Unary {
    fn bytes(&self) -> usize {
        self.payload.len() + metadata_bytes(&self.metadata)
    }

    fn asks(&self) -> bool {
        true
    }
}

impl Item for Event {
    fn bytes(&self) -> usize {
        match &self.detail {
            EventDetail::Message(data, _) => data.len(),
            EventDetail::Opened { metadata, .. } => metadata_bytes(metadata),
            EventDetail::HttpOpened(request) => request.bytes(),
            _ => 0,
        }
    }

    fn asks(&self) -> bool {
        self.is_http()
    }

    fn is_http(&self) -> bool {
        matches!(self.detail, EventDetail::HttpOpened(_))
    }
}

/// The cost of the items taken from a connection's queue, and the HTTP requests among them.
#[derive(Default)]
pub struct Freed {
    pub cost: usize,
    pub http_calls: usize,
}

struct Lane<T> {
    queues: FxHashMap<u32, VecDeque<T>>,
    /// Connections that have items to take, the next one first.
    turns: VecDeque<u32>,
    /// Connections whose next item waits for room for a response.
    parked: Vec<u32>,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Lane { queues: FxHashMap::default(), turns: VecDeque::new(), parked: Vec::new() }
    }
}

impl<T: Item> Lane<T> {
    fn push(&mut self, connection: u32, items: Vec<T>) {
        if items.is_empty() {
            return;
        }
        let queue = self.queues.entry(connection).or_default();
        if queue.is_empty() {
            // An empty queue had no turn and was not parked.
            self.turns.push_back(connection);
            *queue = items.into();
        } else {
            queue.extend(items);
        }
    }

    fn take(
        &mut self,
        calls_max: usize,
        bytes_left: &mut usize,
        taken: &mut Vec<T>,
        has_room: &impl Fn(u32) -> bool,
        freed: &mut impl FnMut(u32, Freed),
    ) {
        if !self.parked.is_empty() {
            let turns = &mut self.turns;
            self.parked.retain(|connection| {
                let goes_on = has_room(*connection);
                if goes_on {
                    turns.push_back(*connection);
                }
                !goes_on
            });
        }
        while taken.len() < calls_max && *bytes_left > 0 {
            let Some(connection) = self.turns.pop_front() else { return };
            let Some(queue) = self.queues.get_mut(&connection) else { continue };
            let mut freed_here = Freed::default();
            let is_full = !has_room(connection);
            for _ in 0..TURN_CALLS.min(calls_max - taken.len()) {
                // One HTTP request per turn: the number of open ones decides about the next.
                let is_http = freed_here.http_calls > 0 && queue.front().is_some_and(Item::is_http);
                if is_http || is_full && queue.front().is_some_and(Item::asks) {
                    break;
                }
                let Some(item) = queue.pop_front() else { break };
                *bytes_left = bytes_left.saturating_sub(item.bytes());
                freed_here.cost += item.cost();
                freed_here.http_calls += usize::from(item.is_http());
                taken.push(item);
                if *bytes_left == 0 {
                    break;
                }
            }
            freed(connection, freed_here);
            if queue.is_empty() {
                self.queues.remove(&connection);
            } else if is_full && queue.front().is_some_and(Item::asks) {
                self.parked.push(connection);
            } else {
                self.turns.push_back(connection);
            }
        }
    }
}

#[derive(Default)]
pub struct Inbox {
    unary: Lane<Unary>,
    events: Lane<Event>,
    connections: FxHashMap<u32, Arc<ConnectionShared>>,
}

impl Inbox {
    pub fn open(&mut self, number: u32, connection: Arc<ConnectionShared>) {
        self.connections.insert(number, connection);
    }

    /// Forgets a connection and its unary requests, whose responses nobody reads. Events stay: the
    /// loop must learn that the connection's streams ended.
    pub fn close(&mut self, number: u32) {
        self.connections.remove(&number);
        self.unary.queues.remove(&number);
        self.unary.turns.retain(|turn| *turn != number);
        self.unary.parked.retain(|parked| *parked != number);
    }

    pub fn connection(&self, number: u32) -> Option<&Arc<ConnectionShared>> {
        self.connections.get(&number)
    }

    pub fn connections(&self) -> impl Iterator<Item = (u32, &Arc<ConnectionShared>)> {
        self.connections.iter().map(|(number, connection)| (*number, connection))
    }

    pub fn push(&mut self, connection: u32, unary: Vec<Unary>, events: Vec<Event>) {
        self.unary.push(connection, unary);
        self.events.push(connection, events);
    }

    /// Whether there is nothing to take now.
    pub fn is_empty(&self) -> bool {
        self.unary.turns.is_empty() && self.events.turns.is_empty()
    }

    /// Whether there is nothing at all, not even items that wait for room.
    pub fn is_drained(&self) -> bool {
        self.is_empty() && self.unary.parked.is_empty() && self.events.parked.is_empty()
    }

    /// Takes at most `calls_max` items and about `bytes_max` bytes, half of them of each kind while
    /// both kinds wait. Items that need a response stay while there is no room for one. Calls
    /// `freed` for every connection that had a turn, with the cost of the items taken from it.
    pub fn take(
        &mut self,
        calls_max: usize,
        bytes_max: usize,
        has_room: impl Fn(&ConnectionShared) -> bool,
        mut freed: impl FnMut(u32, &ConnectionShared, Freed),
    ) -> (Vec<Unary>, Vec<Event>) {
        let (mut unary, mut events) = (Vec::new(), Vec::new());
        let connections = &self.connections;
        let mut freed = |number: u32, taken: Freed| {
            if let Some(connection) = connections.get(&number) {
                freed(number, connection, taken);
            }
        };
        let has_room = |number: u32| connections.get(&number).is_none_or(|it| has_room(it));
        let share = if self.unary.turns.is_empty() { calls_max } else { calls_max.div_ceil(2) };
        let mut bytes_left = bytes_max.div_ceil(if share == calls_max { 1 } else { 2 });
        let bytes_of_requests = bytes_max - bytes_left;
        self.events.take(share, &mut bytes_left, &mut events, &has_room, &mut freed);
        bytes_left += bytes_of_requests;
        self.unary.take(
            calls_max - events.len(),
            &mut bytes_left,
            &mut unary,
            &has_room,
            &mut freed,
        );
        self.events.take(
            calls_max - unary.len(),
            &mut bytes_left,
            &mut events,
            &has_room,
            &mut freed,
        );
        (unary, events)
    }
}
