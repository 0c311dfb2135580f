//! A TCP or unix socket below TLS, or below HTTP where there is no TLS.

use crate::threads::descriptors::{Descriptors, Registered};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

/// Time for the other side to receive its last bytes and close.
pub const FAREWELL_MAX: Duration = Duration::from_secs(1);

pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

pub struct Transport {
    stream: Stream,
    /// A byte that was peeked and has still to be read.
    first: Option<u8>,
    /// Dropped after the socket.
    registered: Registered,
}

impl Transport {
    pub fn new(stream: Stream, descriptors: &Arc<Descriptors>) -> Transport {
        let descriptor = match &stream {
            Stream::Tcp(stream) => stream.as_raw_fd(),
            Stream::Unix(stream) => stream.as_raw_fd(),
        };
        Transport { stream, first: None, registered: Registered::new(descriptors, descriptor) }
    }

    pub fn descriptor(&self) -> RawFd {
        self.registered.descriptor
    }

    /// Waits for the client's first byte, without consuming it; None if the client closes first.
    pub async fn peek(&mut self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        let mut buffer = ReadBuf::new(&mut byte);
        poll_fn(|cx| Pin::new(&mut *self).poll_read(cx, &mut buffer)).await?;
        self.first = buffer.filled().first().copied();
        Ok(self.first)
    }

    /// Closes gracefully: a socket closed with unread bytes would be reset, and bytes written
    /// before might be lost.
    pub async fn close(&mut self) {
        let _ = timeout(
            FAREWELL_MAX,
            poll_fn(|cx| {
                ready!(Pin::new(&mut *self).poll_shutdown(cx))?;
                self.poll_end(cx)
            }),
        )
        .await;
    }

    /// Reads and discards until the client has closed.
    pub fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut waste = [0; 4096];
        loop {
            let mut buffer = ReadBuf::new(&mut waste);
            ready!(Pin::new(&mut *self).poll_read(cx, &mut buffer))?;
            if buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() > 0
            && let Some(first) = self.first.take()
        {
            buffer.put_slice(&[first]);
            return Poll::Ready(Ok(()));
        }
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(data)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Stream::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
