//! What one pass over a connection found, given to the loop at the pass's end.

use crate::inbox::Item;
use crate::network::{Connection, Network};
use crate::shared::{Event, EventDetail, Unary, call_of, count};

#[derive(Default)]
pub struct Arrivals {
    pub unary: Vec<Unary>,
    pub events: Vec<Event>,
}

impl Arrivals {
    pub fn event(&mut self, connection: &Connection, stream: u32, detail: EventDetail) {
        self.events.push(Event { call: call_of(connection.number, stream), detail });
    }

    /// Queues everything under one lock; the end of the network thread's pass wakes the loop.
    pub fn publish(&mut self, network: &Network, connection: &Connection) {
        if self.unary.is_empty() && self.events.is_empty() {
            return;
        }
        let (unary, events) = (std::mem::take(&mut self.unary), std::mem::take(&mut self.events));
        let cost = unary.iter().map(Item::cost).sum::<usize>()
            + events.iter().map(Item::cost).sum::<usize>();
        network.put_on(connection, cost);
        let messages =
            events.iter().filter(|event| matches!(event.detail, EventDetail::Message(..))).count();
        count(&network.shared.counters.messages_received, unary.len() + messages);
        network.shared.inbox.lock().push(connection.number, unary, events);
        network.shared.wakeup.note();
    }
}
