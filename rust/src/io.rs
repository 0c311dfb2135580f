//! A client's socket as HTTP sees it: writes are gathered until a flush, reads can pause.

use crate::authority::AuthorityFilter;
use crate::frames::Traffic;
use crate::network::Connection;
use crate::shared::{Shared, count};
use crate::transport::{FAREWELL_MAX, Transport};
use bytes::{Buf, Bytes};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

/// Once this much is gathered, nothing more is taken until the socket accepts some.
pub const GATHERED_BYTES_MAX: usize = 64 * 1024;

/// A piece this large goes to the socket directly: copying it would cost more than a call.
const DIRECT_BYTES_MIN: usize = 8 * 1024;

/// What HTTP is spoken over.
pub enum Socket {
    Plain(Transport),
    Tls(Box<TlsStream<Transport>>),
}

impl Socket {
    fn transport(&mut self) -> &mut Transport {
        match self {
            Socket::Plain(transport) => transport,
            Socket::Tls(stream) => stream.get_mut().0,
        }
    }

    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self {
            Socket::Plain(transport) => Pin::new(transport).poll_read(cx, buffer),
            Socket::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
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

/// The socket and what is gathered for it, shared by HTTP and the connection's driver.
pub struct Link {
    socket: Socket,
    /// Bytes that were read to find out which protocol this is.
    prefix: Bytes,
    gathered: Vec<u8>,
    written: usize,
    /// Bytes read since this was last set to zero.
    pub read: usize,
    connection: Rc<Connection>,
    shared: Arc<Shared>,
    filter: Option<Box<AuthorityFilter>>,
    /// The frames that pass, if it is HTTP/2.
    pub traffic: Option<Box<Traffic>>,
}

impl Link {
    /// Bytes the socket has not accepted yet.
    pub fn waiting(&self) -> usize {
        self.gathered.len() - self.written
    }

    /// Follows the frames in what was taken from HTTP.
    fn note_written(&mut self, slices: &[IoSlice<'_>], mut length: usize) {
        let Some(traffic) = &mut self.traffic else { return };
        for slice in slices {
            let taken = slice.len().min(length);
            traffic.wrote(&slice[..taken]);
            length -= taken;
        }
    }

    /// Sends bytes that do not come from the HTTP library.
    pub fn say(&mut self, data: &[u8]) {
        self.gathered.extend_from_slice(data);
    }

    /// Tells the client why the connection ends, where the protocol has words for it.
    pub fn go_away(&mut self, last_stream: u32, reason: u32, text: &str) {
        let frame =
            self.traffic.as_ref().and_then(|traffic| traffic.go_away(last_stream, reason, text));
        self.gathered.extend(frame.unwrap_or_default());
    }

    /// Writes what is gathered.
    pub fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.waiting() > 0 {
            let slice = [IoSlice::new(&self.gathered[self.written..])];
            let length = ready!(self.socket.poll_write_vectored(cx, &slice))?;
            if length == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += length;
            count(&self.shared.counters.bytes_written, length);
        }
        ready!(self.socket.poll_flush(cx))?;
        // Freed, not kept: an idle connection should cost little.
        self.gathered = Vec::new();
        self.written = 0;
        Poll::Ready(Ok(()))
    }

    /// Closes gracefully: writes the last bytes, then reads until the client has closed, too.
    ///
    /// A socket closed with unread bytes is reset, and the client may lose what it was sent.
    fn poll_farewell(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        ready!(self.socket.poll_shutdown(cx))?;
        self.socket.transport().poll_end(cx)
    }

    /// Whether a limit on queued bytes forbids reading; if so, `poll` will resume it.
    ///
    /// A client whose calls are held is read from all the same: they wait until it takes its
    /// answers, and reading is how we learn that it does.
    pub fn is_paused(&self) -> bool {
        if self.traffic.as_ref().is_some_and(|traffic| traffic.held) || !self.is_over() {
            return false;
        }
        self.connection.shared.paused.store(true, Ordering::SeqCst);
        // Whoever took bytes off the queue meanwhile may not have seen the flag.
        self.is_over()
    }

    fn is_over(&self) -> bool {
        let queued = self.connection.shared.queued.load(Ordering::SeqCst);
        queued > self.shared.queued_bytes_max()
    }
}

/// Closes a connection that is over, however it ended.
pub async fn farewell(link: &RefCell<Link>) {
    let _ = timeout(FAREWELL_MAX, poll_fn(|cx| link.borrow_mut().poll_farewell(cx))).await;
}

/// The link as HTTP reads and writes it.
///
/// A flush does not write: h2 flushes after every frame. The connection's driver drains the
/// link once, at the end of its pass.
pub struct Io(Rc<RefCell<Link>>);

impl Io {
    pub fn new(socket: Socket, connection: Rc<Connection>, shared: Arc<Shared>) -> Io {
        Io(Rc::new(RefCell::new(Link {
            socket,
            prefix: Bytes::new(),
            gathered: Vec::new(),
            written: 0,
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

    /// Prepares for HTTP/2, whose clients may send invalid authorities.
    pub fn expect_http2(&mut self) {
        let link = &mut *self.0.borrow_mut();
        link.traffic = Some(Box::default());
        link.filter = Some(Box::default());
    }

    /// Puts bytes back that were read.
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
            link.connection.set_waker(cx.waker());
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
        count(&link.shared.counters.bytes_read, length);
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
        if link.waiting() >= GATHERED_BYTES_MAX {
            ready!(link.poll_drain(cx))?;
        }
        let offered: usize = slices.iter().map(|slice| slice.len()).sum();
        if link.gathered.is_empty()
            && offered >= DIRECT_BYTES_MIN
            && let Poll::Ready(result) = link.socket.poll_write_vectored(cx, slices)
        {
            if let Ok(length) = &result {
                count(&link.shared.counters.bytes_written, *length);
                link.note_written(slices, *length);
            }
            return Poll::Ready(result);
        }
        if link.written >= GATHERED_BYTES_MAX {
            // A slow client may never have taken all of it.
            link.gathered.drain(..link.written);
            link.written = 0;
        }
        let taken = offered.min(GATHERED_BYTES_MAX - link.waiting());
        let mut left = taken;
        for slice in slices {
            let length = slice.len().min(left);
            link.gathered.extend_from_slice(&slice[..length]);
            left -= length;
        }
        link.note_written(slices, taken);
        Poll::Ready(Ok(taken))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let link = &mut *self.0.borrow_mut();
        if link.waiting() >= GATHERED_BYTES_MAX { link.poll_drain(cx) } else { Poll::Ready(Ok(())) }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let link = &mut *self.0.borrow_mut();
        ready!(link.poll_drain(cx))?;
        link.socket.poll_shutdown(cx)
    }
}
