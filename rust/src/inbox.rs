//! What arrived and was not polled: connections are served in turn, each in its own order.

use crate::shared::{ConnectionShared, Event, EventDetail, Unary};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// How many items of one connection are taken before it is the next one's turn.
const TURN_CALLS: usize = 16;

/// What an item costs while it waits, besides its bytes.
const OVERHEAD_BYTES: usize = 256;

pub trait Item {
    fn bytes(&self) -> usize;

    fn cost(&self) -> usize {
        self.bytes() + OVERHEAD_BYTES
    }
}

impl Item for Unary {
    fn bytes(&self) -> usize {
        self.payload.len()
    }
}

impl Item for Event {
    fn bytes(&self) -> usize {
        match &self.detail {
            EventDetail::Message(data, _) => data.len(),
            _ => 0,
        }
    }
}

struct Lane<T> {
    queues: FxHashMap<u32, VecDeque<T>>,
    /// Connections that have something, the next one first.
    turns: VecDeque<u32>,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Lane { queues: FxHashMap::default(), turns: VecDeque::new() }
    }
}

impl<T: Item> Lane<T> {
    fn push(&mut self, connection: u32, items: Vec<T>) {
        if items.is_empty() {
            return;
        }
        let queue = self.queues.entry(connection).or_default();
        if queue.is_empty() {
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
        freed: &mut impl FnMut(u32, usize),
    ) {
        while taken.len() < calls_max && *bytes_left > 0 {
            let Some(connection) = self.turns.pop_front() else { return };
            let Some(queue) = self.queues.get_mut(&connection) else { continue };
            let mut cost = 0;
            for _ in 0..TURN_CALLS.min(calls_max - taken.len()) {
                let Some(item) = queue.pop_front() else { break };
                *bytes_left = bytes_left.saturating_sub(item.bytes());
                cost += item.cost();
                taken.push(item);
                if *bytes_left == 0 {
                    break;
                }
            }
            freed(connection, cost);
            if queue.is_empty() {
                self.queues.remove(&connection);
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

    /// Forgets a connection and its requests, whose answers nobody awaits. Events stay: the
    /// loop has to hear that its streams ended.
    pub fn close(&mut self, number: u32) {
        self.connections.remove(&number);
        self.unary.queues.remove(&number);
        self.unary.turns.retain(|turn| *turn != number);
    }

    pub fn connection(&self, number: u32) -> Option<&Arc<ConnectionShared>> {
        self.connections.get(&number)
    }

    pub fn push(&mut self, connection: u32, unary: Vec<Unary>, events: Vec<Event>) {
        self.unary.push(connection, unary);
        self.events.push(connection, events);
    }

    pub fn is_empty(&self) -> bool {
        self.unary.turns.is_empty() && self.events.turns.is_empty()
    }

    /// Takes at most so many items and about so many bytes, half of them of each kind while
    /// both wait. `freed` hears which connection's queue became shorter, and by how much.
    pub fn take(
        &mut self,
        calls_max: usize,
        bytes_max: usize,
        mut freed: impl FnMut(u32, &ConnectionShared, usize),
    ) -> (Vec<Unary>, Vec<Event>) {
        let (mut unary, mut events) = (Vec::new(), Vec::new());
        let connections = &self.connections;
        let mut freed = |number: u32, cost: usize| {
            if let Some(connection) = connections.get(&number) {
                freed(number, connection, cost);
            }
        };
        let share = if self.unary.turns.is_empty() { calls_max } else { calls_max.div_ceil(2) };
        let mut bytes_left = bytes_max.div_ceil(if share == calls_max { 1 } else { 2 });
        let bytes_of_requests = bytes_max - bytes_left;
        self.events.take(share, &mut bytes_left, &mut events, &mut freed);
        bytes_left += bytes_of_requests;
        self.unary.take(calls_max - events.len(), &mut bytes_left, &mut unary, &mut freed);
        self.events.take(calls_max - unary.len(), &mut bytes_left, &mut events, &mut freed);
        (unary, events)
    }
}
