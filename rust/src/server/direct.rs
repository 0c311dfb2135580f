//! Lets the loop write to a member's stream itself, which saves waking a thread for each message.
//!
//! The network thread lends the socket while it has nothing to write to it, and takes it back at
//! the start of each pass over the connection. HTTP/1.1 chunks do not depend on each other, so
//! hyper need not know about those that the loop wrote.

use crate::threads::flow::Pending;
use parking_lot::Mutex;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Longer messages are left to the network thread: copying them would delay the loop.
const DIRECT_BYTES_MAX: usize = 16 * 1024;

/// The result of a direct write.
#[derive(Debug, PartialEq, Eq)]
pub enum Wrote {
    /// The socket took the whole chunk: this many bytes, framing included.
    All(usize),
    /// The socket took this many bytes; the connection must be woken, and writes the rest.
    Part(usize),
    /// Nothing was written: the caller has to queue the message.
    Nothing,
}

pub struct Direct {
    pending: Arc<Pending>,
    loan: Mutex<Loan>,
}

#[derive(Default)]
struct Loan {
    /// The socket, while it is lent. The network thread takes it back before closing it.
    descriptor: Option<RawFd>,
    /// The part of a chunk that the socket did not accept; it leaves before everything else.
    rest: Vec<u8>,
}

impl Direct {
    pub fn new(pending: Arc<Pending>) -> Direct {
        Direct { pending, loan: Mutex::default() }
    }

    /// Lends the socket, after the network thread has written all that it took from the loop.
    pub fn lend(&self, descriptor: RawFd) {
        self.loan.lock().descriptor = Some(descriptor);
    }

    /// Takes the socket back; returns the bytes that have to be written to it first.
    pub fn take_back(&self) -> Vec<u8> {
        let mut loan = self.loan.lock();
        loan.descriptor = None;
        std::mem::take(&mut loan.rest)
    }

    /// Writes a message as one chunk, if the socket is lent and everything sent earlier has left.
    /// The loop calls this.
    pub fn write(&self, message: &[u8], mark: usize) -> Wrote {
        if message.is_empty() || message.len() > DIRECT_BYTES_MAX {
            return Wrote::Nothing;
        }
        let mut loan = self.loan.lock();
        let Some(descriptor) = loan.descriptor else { return Wrote::Nothing };
        // Messages that are still in the queue go first.
        if self.pending.bytes.load(Ordering::SeqCst) > 0 {
            return Wrote::Nothing;
        }
        let mut chunk = format!("{:x}\r\n", message.len()).into_bytes();
        chunk.extend_from_slice(message);
        chunk.extend_from_slice(b"\r\n");
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let sent = unsafe { libc::send(descriptor, chunk.as_ptr().cast(), chunk.len(), flags) };
        // The network thread will find the error of a socket that takes nothing.
        let Ok(sent @ 1..) = usize::try_from(sent) else { return Wrote::Nothing };
        if sent == chunk.len() {
            return Wrote::All(sent);
        }
        loan.descriptor = None;
        loan.rest = chunk.split_off(sent);
        self.pending.add(loan.rest.len(), mark);
        Wrote::Part(sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    fn lent() -> (Direct, Arc<Pending>, UnixStream, UnixStream) {
        let pending = Arc::new(Pending::default());
        let direct = Direct::new(pending.clone());
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        direct.lend(ours.as_raw_fd());
        (direct, pending, ours, theirs)
    }

    fn read_all(stream: &mut UnixStream) -> Vec<u8> {
        let mut data = Vec::new();
        match stream.read_to_end(&mut data) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => data,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_message_is_one_chunk() {
        let (direct, pending, _ours, mut theirs) = lent();
        assert_eq!(direct.write(b"twelve bytes", 64), Wrote::All(17));
        assert_eq!(read_all(&mut theirs), b"c\r\ntwelve bytes\r\n");
        assert_eq!(pending.bytes.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn what_is_not_lent_or_has_a_queue_is_queued() {
        let (direct, pending, _ours, mut theirs) = lent();
        assert_eq!(direct.write(b"", 64), Wrote::Nothing);
        assert_eq!(direct.write(&[0; DIRECT_BYTES_MAX + 1], 64), Wrote::Nothing);
        pending.add(1, 64);
        assert_eq!(direct.write(b"late", 64), Wrote::Nothing);
        pending.sent(1);
        assert_eq!(direct.take_back(), b"");
        assert_eq!(direct.write(b"late", 64), Wrote::Nothing);
        assert_eq!(read_all(&mut theirs), b"");
    }

    #[test]
    fn a_full_socket_leaves_a_rest_that_goes_first() {
        let (direct, pending, _ours, mut theirs) = lent();
        let message = [7; 1000];
        let (mut whole, mut expected) = (0, Vec::new());
        let part = loop {
            expected.extend_from_slice(b"3e8\r\n");
            expected.extend_from_slice(&message);
            expected.extend_from_slice(b"\r\n");
            match direct.write(&message, 64) {
                Wrote::All(bytes) => whole += bytes,
                other => break other,
            }
        };
        let mut rest = direct.take_back();
        match part {
            Wrote::Part(bytes) => assert_eq!(whole + bytes + rest.len(), expected.len()),
            // The socket took whole messages only.
            _ => expected.truncate(whole),
        }
        assert_eq!(pending.bytes.load(Ordering::SeqCst), rest.len());
        let mut data = read_all(&mut theirs);
        data.append(&mut rest);
        assert_eq!(data, expected);
    }
}
