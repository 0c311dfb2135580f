//! The loop's thread and a network thread: how they exchange work, wake each other, and hold back.
//!
//! Both sides, `server` and `upstream`, use these modules, which know no protocol.

pub mod counters;
pub mod descriptors;
pub mod flow;
pub mod outbox;
pub mod runtime;
pub mod wakeup;
