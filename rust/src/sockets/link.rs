//! A socket as an HTTP library reads and writes it, while the connection's driver has a hold on it, too.
//!
//! Each side has its own `LinkedSocket`, which observes the bytes and decides when reading has to pause.

use crate::sockets::gathering::Gathering;
use crate::sockets::transport::FAREWELL_MAX;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;

/// The socket and its gathered writes, shared by the HTTP library and the connection's driver.
pub trait LinkedSocket {
    fn socket(&mut self) -> &mut Gathering;

    /// Reads, unless a limit forbids that now.
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>)
    -> Poll<io::Result<()>>;

    /// Notes that the library has written the first `length` bytes of these slices.
    fn note_written(&mut self, _slices: &[IoSlice<'_>], _length: usize) {}
}

/// Closes a connection gracefully, in bounded time.
pub async fn farewell(link: &RefCell<impl LinkedSocket>) {
    let closed = poll_fn(|cx| link.borrow_mut().socket().poll_farewell(cx));
    let _ = timeout(FAREWELL_MAX, closed).await;
}

/// The link as the HTTP library reads and writes it; the driver drains it, once per pass.
pub struct Io<L>(Rc<RefCell<L>>);

impl<L> Io<L> {
    pub fn new(link: L) -> Io<L> {
        Io(Rc::new(RefCell::new(link)))
    }

    pub fn link(&self) -> Rc<RefCell<L>> {
        self.0.clone()
    }
}

impl<L: LinkedSocket> AsyncRead for Io<L> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.borrow_mut().poll_read(cx, buffer)
    }
}

impl<L: LinkedSocket> AsyncWrite for Io<L> {
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
        let taken = ready!(link.socket().poll_take(cx, slices))?;
        link.note_written(slices, taken);
        Poll::Ready(Ok(taken))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().socket().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().socket().poll_shutdown(cx)
    }
}
