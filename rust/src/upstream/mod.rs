//! The calling side: connects to other servers, carries calls to them, and reports events to the loop.
//!
//! One task per endpoint does all of its work, on a thread of the upstream's own or on that of an edge.
//! Only `python` touches Python, and only it runs on the loop's thread.

mod call;
mod connecting;
mod connection;
pub mod network;
#[cfg(feature = "python")]
pub mod python;
pub mod shared;
mod status;
