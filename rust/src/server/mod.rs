//! The server's side: accepts connections, speaks TLS, HTTP/1.1, HTTP/2 and gRPC, and exchanges batches
//! with the loop.
//!
//! One task per connection does all of its work on the network thread. Only `python`, which has the
//! loop's calls, touches Python.

mod arrivals;
mod authority;
mod backlog;
mod connection;
mod direct;
mod exchange;
mod http1;
mod http2;
mod inbox;
mod incidents;
mod link;
mod listener;
pub mod network;
mod policy;
#[cfg(feature = "python")]
pub mod python;
pub mod relay;
mod room;
pub mod shared;
mod stream;
