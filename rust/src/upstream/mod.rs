//! The calling side: connects to other servers, carries calls to them, and reports events to the loop.
//!
//! One task per endpoint does all of its work, on a thread of the upstream's own or on that of an edge.
//! Only `python`, which has the loop's calls, touches Python.

mod call;
mod connecting;
mod connection;
pub mod network;
#[cfg(feature = "python")]
pub mod python;
pub mod shared;
mod status;
