//! A socket with or without TLS that gathers small writes until they are drained.

use crate::sockets::transport::Transport;
use crate::threads::counters::{SocketBytes, count};
use std::io::{self, IoSlice};
use std::os::fd::RawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsStream;

/// Once this much is gathered, writes have to wait until the socket accepts some.
pub const GATHERED_BYTES_MAX: usize = 64 * 1024;

/// A write this large goes to the socket directly: copying it would cost more than a system call.
const DIRECT_BYTES_MIN: usize = 32 * 1024;

/// The socket below HTTP.
pub enum Socket {
    Plain(Transport),
    Tls(Box<TlsStream<Transport>>),
}

impl Socket {
    /// The descriptor, if there is no TLS.
    fn plain(&self) -> Option<RawFd> {
        match self {
            Socket::Plain(transport) => Some(transport.descriptor()),
            Socket::Tls(_) => None,
        }
    }

    fn transport(&mut self) -> &mut Transport {
        match self {
            Socket::Plain(transport) => transport,
            Socket::Tls(stream) => stream.get_mut().0,
        }
    }

    fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Socket::Plain(transport) => Pin::new(transport).poll_write_vectored(cx, slices),
            Socket::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    /// Writes what TLS has encrypted but not sent.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Socket::Plain(_) => Poll::Ready(Ok(())),
            Socket::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Socket::Plain(transport) => Pin::new(transport).poll_shutdown(cx),
            Socket::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// A socket and the bytes gathered for it; counts all bytes that pass.
pub struct Gathering {
    socket: Socket,
    gathered: Vec<u8>,
    written: usize,
    bytes: Arc<SocketBytes>,
}

impl Gathering {
    pub fn new(socket: Socket, bytes: &Arc<SocketBytes>) -> Gathering {
        Gathering { socket, gathered: Vec::new(), written: 0, bytes: bytes.clone() }
    }

    /// Bytes the socket has not accepted yet.
    pub fn waiting(&self) -> usize {
        self.gathered.len() - self.written
    }

    /// The descriptor, if the loop may write to it: all is written, and there is no TLS.
    pub fn idle(&self) -> Option<RawFd> {
        self.socket.plain().filter(|_| self.waiting() == 0)
    }

    /// Gathers bytes, however many there are already.
    pub fn say(&mut self, data: &[u8]) {
        self.gathered.extend_from_slice(data);
    }

    pub fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = match &mut self.socket {
            Socket::Plain(transport) => Pin::new(transport).poll_read(cx, buffer),
            Socket::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        };
        count(&self.bytes.read, buffer.filled().len() - before);
        result
    }

    /// Takes what fits of a write; a large one may go to the socket directly.
    pub fn poll_take(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.waiting() >= GATHERED_BYTES_MAX {
            ready!(self.poll_drain(cx))?;
        }
        let offered: usize = slices.iter().map(|slice| slice.len()).sum();
        if self.gathered.is_empty()
            && offered >= DIRECT_BYTES_MIN
            && let Poll::Ready(result) = self.socket.poll_write_vectored(cx, slices)
        {
            if let Ok(length) = &result {
                count(&self.bytes.written, *length);
            }
            return Poll::Ready(result);
        }
        if self.written >= GATHERED_BYTES_MAX {
            // A slow reader may never take everything, so drop the part that is written.
            self.gathered.drain(..self.written);
            self.written = 0;
        }
        let taken = offered.min(GATHERED_BYTES_MAX - self.waiting());
        let mut left = taken;
        for slice in slices {
            let length = slice.len().min(left);
            self.gathered.extend_from_slice(&slice[..length]);
            left -= length;
        }
        Poll::Ready(Ok(taken))
    }

    /// Writes the gathered bytes.
    pub fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.waiting() > 0 {
            let slice = [IoSlice::new(&self.gathered[self.written..])];
            let length = ready!(self.socket.poll_write_vectored(cx, &slice))?;
            if length == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += length;
            count(&self.bytes.written, length);
        }
        ready!(self.socket.poll_flush(cx))?;
        // Freed, not kept: an idle connection should cost little.
        self.gathered = Vec::new();
        self.written = 0;
        Poll::Ready(Ok(()))
    }

    /// Writes only if too much is gathered, since h2 flushes after every frame. The connection's
    /// driver drains the bytes once, at the end of its pass.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.waiting() >= GATHERED_BYTES_MAX { self.poll_drain(cx) } else { Poll::Ready(Ok(())) }
    }

    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        self.socket.poll_shutdown(cx)
    }

    /// Closes gracefully: writes the last bytes, then reads until the other side has closed, too.
    ///
    /// A socket closed with unread bytes is reset, and the other side may lose bytes sent to it.
    pub fn poll_farewell(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_shutdown(cx))?;
        self.socket.transport().poll_end(cx)
    }
}
