//! Sockets below HTTP, for clients' connections and for connections to other servers alike.
//!
//! These modules know neither the loop nor a protocol.

pub mod gathering;
pub mod link;
pub mod transport;
