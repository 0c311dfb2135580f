//! The seam between the loop's thread and a network thread: queues, flow control and wakeups.
//!
//! Both sides, `server` and `upstream`, use these modules, which know no connection.

pub mod wakeup;
