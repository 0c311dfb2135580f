//! Collects the requests and events of one pass over a connection, and queues them for the loop.

use crate::server::inbox::Item;
use crate::server::network::{Connection, Network};
use crate::server::shared::{Call, Event, EventDetail, Unary};
use crate::threads::counters::count;
use bytes::Bytes;

#[derive(Default)]
pub struct Arrivals {
    unary: Vec<Unary>,
    events: Vec<Event>,
    /// Calls that started; their first message may arrive in a later pass.
    calls: u32,
    /// gRPC messages that arrived.
    messages: u32,
    /// Decompressed bytes of the messages that arrived compressed.
    pub unpacked_bytes: usize,
}

impl Arrivals {
    pub fn call(&mut self) {
        self.calls += 1;
    }

    pub fn request(&mut self, request: Unary) {
        self.unary.push(request);
        self.messages += 1;
    }

    pub fn message(&mut self, call: Call, message: Bytes, released: usize) {
        self.event(call, EventDetail::Message(message, released));
        self.messages += 1;
    }

    pub fn event(&mut self, call: Call, detail: EventDetail) {
        self.events.push(Event { call, detail });
    }

    /// Queues everything under one lock; the network thread wakes the loop at the end of its pass.
    ///
    /// The counters are updated last, so that a counted call or message can already be polled.
    pub fn publish(&mut self, network: &Network, connection: &Connection) {
        if !(self.unary.is_empty() && self.events.is_empty()) {
            self.queue(network, connection);
        }
        let counters = &network.shared.counters;
        if self.calls > 0 {
            count(&counters.calls_received, std::mem::take(&mut self.calls) as usize);
        }
        if self.messages > 0 {
            count(&counters.messages_received, std::mem::take(&mut self.messages) as usize);
        }
    }

    fn queue(&mut self, network: &Network, connection: &Connection) {
        let (mut unary, events) =
            (std::mem::take(&mut self.unary), std::mem::take(&mut self.events));
        self.unpacked_bytes = 0;
        if let Some(relay) = network.relay.get() {
            unary = relay.pass_on(network, connection, unary);
            if unary.is_empty() && events.is_empty() {
                return;
            }
        }
        let cost = unary.iter().map(Item::cost).sum::<usize>()
            + events.iter().map(Item::cost).sum::<usize>();
        network.put_on(connection, cost);
        network.shared.inbox.lock().push(connection.number, unary, events);
        network.shared.wakeup.note();
    }
}
