//! A client's socket as HTTP sees it: gathers writes until they are drained, and can pause reads.

use crate::frames::Traffic;
use crate::server::authority::AuthorityFilter;
use crate::server::network::Connection;
use crate::server::shared::Shared;
use crate::sockets::gathering::{Gathering, Socket};
use crate::sockets::link::{self, LinkedSocket};
use bytes::{Buf, Bytes};
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::ReadBuf;

/// The socket and its gathered writes, shared by the HTTP library and the connection's driver.
pub struct Link {
    pub socket: Gathering,
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
    pub fn new(socket: Socket, connection: Rc<Connection>, shared: Arc<Shared>) -> Link {
        Link {
            socket: Gathering::new(socket, &shared.counters.bytes),
            prefix: Bytes::new(),
            read: 0,
            connection,
            shared,
            filter: None,
            traffic: None,
        }
    }

    /// Prepares for HTTP/2: observes frames, and repairs invalid authorities.
    pub fn expect_http2(&mut self) {
        self.traffic = Some(Box::default());
        self.filter = Some(Box::default());
    }

    /// Puts back bytes that were read.
    pub fn unread(&mut self, prefix: Bytes) {
        self.prefix = prefix;
    }

    /// Gathers a GOAWAY frame that says why the connection ends, if HTTP/2 permits one now.
    pub fn go_away(&mut self, last_stream: u32, reason: u32, text: &str) {
        let frame =
            self.traffic.as_ref().and_then(|traffic| traffic.go_away(last_stream, reason, text));
        self.socket.say(&frame.unwrap_or_default());
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

impl LinkedSocket for Link {
    fn socket(&mut self) -> &mut Gathering {
        &mut self.socket
    }

    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.prefix.is_empty() {
            let length = self.prefix.len().min(buffer.remaining());
            buffer.put_slice(&self.prefix[..length]);
            self.prefix.advance(length);
            self.read += length;
            return Poll::Ready(Ok(()));
        }
        if self.traffic.as_mut().is_some_and(|traffic| traffic.is_throttled()) {
            // The connection's driver reads on as soon as it has accepted calls.
            return Poll::Pending;
        }
        if self.is_paused() {
            self.connection.waker.set(cx.waker());
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let result = self.socket.poll_read(cx, buffer);
        if let (Some(filter), Some(traffic)) = (&mut self.filter, &mut self.traffic) {
            filter.pass(&mut buffer.filled_mut()[before..]);
            traffic.read_fields(std::mem::take(&mut filter.fields));
            traffic.read(&buffer.filled()[before..]);
        }
        self.read += buffer.filled().len() - before;
        result
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
}

/// The link as hyper and h2 read and write it.
pub type Io = link::Io<Link>;
