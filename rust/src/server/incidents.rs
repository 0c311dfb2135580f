//! Counts why clients were refused or delayed.
//!
//! The last incident of each kind is kept for the log until the loop takes it, together with a
//! count, so that a flood costs as little memory as a single incident.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Copy)]
pub enum Incident {
    HandshakeFailed,
    HandshakeTimedOut,
    ReloadFailed,
    HeadersTimedOut,
    BodiesTimedOut,
    ConnectionsDelayed,
    PingsExcessive,
    KeepalivesUnanswered,
    ResetsExcessive,
    PartialMessagesRefused,
    CallsDelayed,
    UnreadExcessive,
}

const KINDS: usize = 12;

/// Names in `kvorum.network.edge.interface.INCIDENTS`, in the order of the variants.
pub const NAMES: [&str; KINDS] = [
    "tls_handshakes_failed",
    "tls_handshakes_timed_out",
    "tls_reloads_failed",
    "headers_timed_out",
    "bodies_timed_out",
    "connections_delayed",
    "pings_excessive",
    "keepalives_unanswered",
    "resets_excessive",
    "partial_messages_refused",
    "calls_delayed",
    "unread_excessive",
];

/// The last incident of a kind, and how many there were since the loop last took them.
pub struct Recent {
    pub name: &'static str,
    pub listener: usize,
    pub peer: String,
    pub text: String,
    pub count: u64,
}

#[derive(Default)]
pub struct Incidents {
    totals: [AtomicU64; KINDS],
    recent: Mutex<[Option<Recent>; KINDS]>,
}

impl Incidents {
    pub fn note(&self, kind: Incident, listener: usize, peer: &str, text: String) {
        let place = kind as usize;
        let recent = &mut self.recent.lock()[place];
        let count = recent.as_ref().map_or(0, |recent| recent.count) + 1;
        let (name, peer) = (NAMES[place], peer.to_owned());
        *recent = Some(Recent { name, listener, peer, text, count });
        // The counter is updated last, so that a counted incident can already be taken.
        self.totals[place].fetch_add(1, Ordering::Relaxed);
    }

    pub fn totals(&self) -> impl Iterator<Item = (&'static str, &AtomicU64)> {
        NAMES.into_iter().zip(&self.totals)
    }

    pub fn take(&self) -> Vec<Recent> {
        std::mem::take(&mut *self.recent.lock()).into_iter().flatten().collect()
    }
}
