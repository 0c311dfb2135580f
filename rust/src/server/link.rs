//! A client's socket as HTTP sees it: gathers writes until they are drained, and can pause reads.

use crate::frames::Traffic;
use crate::server::authority::AuthorityFilter;
use crate::server::network::Connection;
use crate::server::shared::Shared;
use crate::sockets::gathering::{Gathering, Socket};
use crate::sockets::transport::FAREWELL_MAX;
use crate::threads::counters::count;
use bytes::{Buf, Bytes};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::RawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;

/// The socket and its gathered writes, shared by the HTTP library and the connection's driver.
pub struct Link {
    socket: Gathering,
    /// Bytes that were read to detect the protocol, and that HTTP reads again.
    prefix: Bytes,
    /// Bytes read since the driver last reset this count.
    pub read: usize,
    connection: Rc<Connection>,
    shared: Arc<Shared>,
    filter: Option<Box<AuthorityFilter>>,
    /// Observes the frames, if the connection speaks HTTP/2.
    pub traffic: Option<Box<Traffic>>,
}

impl Link {
    /// Bytes the socket has not accepted yet.
    pub fn waiting(&self) -> usize {
        self.socket.waiting()
    }

    /// The descriptor, if the loop may write to it: all is written, and there is no TLS.
    pub fn idle(&self) -> Option<RawFd> {
        self.socket.idle()
    }

    /// Follows the frames in the bytes that the HTTP library has written.
    fn note_written(&mut self, slices: &[IoSlice<'_>], mut length: usize) {
        let Some(traffic) = &mut self.traffic else { return };
        for slice in slices {
            let taken = slice.len().min(length);
            traffic.wrote(&slice[..taken]);
            length -= taken;
        }
    }

    /// Gathers bytes that do not come from the HTTP library.
    pub fn say(&mut self, data: &[u8]) {
        self.socket.say(data);
    }

    /// Gathers a GOAWAY frame that says why the connection ends, if HTTP/2 permits one now.
    pub fn go_away(&mut self, last_stream: u32, reason: u32, text: &str) {
        let frame =
            self.traffic.as_ref().and_then(|traffic| traffic.go_away(last_stream, reason, text));
        self.socket.say(&frame.unwrap_or_default());
    }

    /// Writes the gathered bytes.
    pub fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_drain(cx, &self.shared.counters.bytes.written)
    }

    /// Whether a limit on queued bytes forbids reading; if so, the loop's `poll` resumes it.
    ///
    /// Reading goes on while the client's calls are held: they wait until the client takes its
    /// responses, and reading shows when it does.
    pub fn is_paused(&self) -> bool {
        let is_held = self.traffic.as_ref().is_some_and(|traffic| traffic.held);
        !is_held && self.connection.shared.flow.is_paused(|| self.shared.queued_bytes_max())
    }
}

/// Closes a connection gracefully, in bounded time.
pub async fn farewell(link: &RefCell<Link>) {
    let closed = poll_fn(|cx| {
        let link = &mut *link.borrow_mut();
        link.socket.poll_farewell(cx, &link.shared.counters.bytes.written)
    });
    let _ = timeout(FAREWELL_MAX, closed).await;
}

/// The link as the HTTP library reads and writes it; the driver drains it, once per pass.
pub struct Io(Rc<RefCell<Link>>);

impl Io {
    pub fn new(socket: Socket, connection: Rc<Connection>, shared: Arc<Shared>) -> Io {
        Io(Rc::new(RefCell::new(Link {
            socket: Gathering::new(socket),
            prefix: Bytes::new(),
            read: 0,
            connection,
            shared,
            filter: None,
            traffic: None,
        })))
    }

    pub fn link(&self) -> Rc<RefCell<Link>> {
        self.0.clone()
    }

    /// Prepares for HTTP/2: observes frames, and repairs invalid authorities.
    pub fn expect_http2(&mut self) {
        let link = &mut *self.0.borrow_mut();
        link.traffic = Some(Box::default());
        link.filter = Some(Box::default());
    }

    /// Puts back bytes that were read.
    pub fn unread(&mut self, prefix: Bytes) {
        self.0.borrow_mut().prefix = prefix;
    }
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let link = &mut *self.0.borrow_mut();
        if !link.prefix.is_empty() {
            let length = link.prefix.len().min(buffer.remaining());
            buffer.put_slice(&link.prefix[..length]);
            link.prefix.advance(length);
            link.read += length;
            return Poll::Ready(Ok(()));
        }
        if link.traffic.as_mut().is_some_and(|traffic| traffic.is_throttled()) {
            // The connection's driver reads on as soon as it has accepted calls.
            return Poll::Pending;
        }
        if link.is_paused() {
            link.connection.waker.set(cx.waker());
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let result = link.socket.poll_read(cx, buffer);
        if let (Some(filter), Some(traffic)) = (&mut link.filter, &mut link.traffic) {
            filter.pass(&mut buffer.filled_mut()[before..]);
            traffic.read_fields(std::mem::take(&mut filter.fields));
            traffic.read(&buffer.filled()[before..]);
        }
        let length = buffer.filled().len() - before;
        link.read += length;
        count(&link.shared.counters.bytes.read, length);
        result
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(data)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let link = &mut *self.0.borrow_mut();
        let counter = &link.shared.counters.bytes.written;
        let taken = ready!(link.socket.poll_take(cx, slices, counter))?;
        link.note_written(slices, taken);
        Poll::Ready(Ok(taken))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let link = &mut *self.0.borrow_mut();
        link.socket.poll_flush(cx, &link.shared.counters.bytes.written)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let link = &mut *self.0.borrow_mut();
        link.socket.poll_shutdown(cx, &link.shared.counters.bytes.written)
    }
}
