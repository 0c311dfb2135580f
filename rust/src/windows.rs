//! How much of the calls' data h2 may hold: the sizes that both sides choose alike.

/// The largest window that HTTP/2 allows.
pub const WINDOW_BYTES_MAX: u32 = (1 << 31) - 1;

/// Bytes of one call's messages that h2 may hold; the rest waits where it is counted.
pub const STREAM_BUFFER_BYTES_MAX: usize = 256 * 1024;

/// Bytes of one call that a side hands to h2 at a time. A unary message that is not longer may go to h2
/// at once, whatever the other side's window: checking the window would cost more.
pub const PIECE_BYTES_MAX: usize = 64 * 1024;

/// Bytes of all calls of a connection that a side hands to h2 before h2 has to write.
pub const GRANTED_BYTES_MAX: usize = 1024 * 1024;
