//! Connects to an endpoint: tries its addresses in turn, then TLS, then HTTP/2's settings.

use crate::frames::ServerFrames;
use crate::sockets::gathering::{Gathering, Socket};
use crate::sockets::link::{Io, LinkedSocket};
use crate::sockets::transport::{Stream, Transport};
use crate::threads::flow::Flow;
use crate::tls;
use crate::upstream::network::Endpoint;
use crate::upstream::shared::{Shared, Target};
use crate::upstream::status::of_connection;
use crate::windows::{STREAM_BUFFER_BYTES_MAX, WINDOW_BYTES_MAX};
use bytes::Bytes;
use h2::client::{self, SendRequest};
use http::uri::{Authority, Scheme};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::ReadBuf;
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

/// The longest headers that a server may answer with.
const HEADER_LIST_BYTES_MAX: u32 = 64 * 1024;

/// Cancelled calls that h2 remembers, because their last bytes may still arrive.
const CANCELLED_CALLS_MAX: usize = 1024;

/// A connection that can carry calls.
pub struct Connection {
    pub h2: client::Connection<Io<Link>, Bytes>,
    pub requests: SendRequest<Bytes>,
    pub link: Rc<RefCell<Link>>,
    pub scheme: Scheme,
    pub authority: Authority,
}

/// Connects to an endpoint; the error says why that is not possible.
pub async fn connect(
    shared: &Arc<Shared>,
    endpoint: &Endpoint,
    target: &Target,
) -> Result<Connection, String> {
    let deadline = Instant::now() + shared.settings.connect_max;
    let late = |what: &str| format!("{}: {what} took too long", target.address);
    let tls = target.tls.as_ref().map(tls::client::load).transpose()?;
    let scheme = if tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
    let transport = reach(shared, &target.address, deadline).await?;
    let socket = match tls {
        None => Socket::Plain(transport),
        Some((config, name)) => {
            let shaking = TlsConnector::from(config).connect(name, transport);
            let shaken = timeout_at(deadline, shaking).await;
            let stream = shaken.map_err(|_| late("the TLS handshake"))?.map_err(|error| {
                format!("{}: {}", target.address, tls::words::of_server(&error))
            })?;
            Socket::Tls(Box::new(stream.into()))
        }
    };
    let io = Io::new(Link {
        socket: Gathering::new(socket, &shared.counters.bytes),
        read: 0,
        frames: ServerFrames::default(),
        flow: endpoint.flow.clone(),
        shared: shared.clone(),
    });
    let link = io.link();
    let greeted = timeout_at(deadline, greet(shared, io)).await;
    let (requests, h2) = greeted
        .map_err(|_| late("HTTP/2's settings"))?
        .map_err(|reason| format!("{}: {reason}", target.address))?;
    Ok(Connection { h2, requests, link, scheme, authority: target.authority.clone() })
}

async fn reach(shared: &Shared, address: &str, deadline: Instant) -> Result<Transport, String> {
    let said = |error: io::Error| {
        // Leave out the errno, which adds nothing.
        let text = error.to_string();
        format!("{address}: {}", text.split(" (os error").next().unwrap_or_default())
    };
    let late = |_| format!("{address}: connecting took too long");
    if let Some(path) = address.strip_prefix("unix:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        let stream = timeout_at(deadline, UnixStream::connect(path)).await.map_err(late)?;
        return Ok(Transport::new(Stream::Unix(stream.map_err(said)?), &shared.descriptors));
    }
    let addresses: Vec<SocketAddr> = match address.parse() {
        Ok(address) => vec![address],
        Err(_) => {
            let looked_up = timeout_at(deadline, lookup_host(address)).await;
            looked_up.map_err(late)?.map_err(said)?.collect()
        }
    };
    let mut failure = format!("{address}: the name has no address");
    for (place, one) in addresses.iter().enumerate() {
        // An address that does not answer leaves the others their share of the time.
        let left = deadline.saturating_duration_since(Instant::now());
        let until = Instant::now() + left / (addresses.len() - place) as u32;
        match timeout_at(until, TcpStream::connect(one)).await {
            Ok(Ok(stream)) => {
                let _ = stream.set_nodelay(true);
                return Ok(Transport::new(Stream::Tcp(stream), &shared.descriptors));
            }
            Ok(Err(error)) => failure = said(error),
            Err(elapsed) => failure = late(elapsed),
        }
    }
    Err(failure)
}

/// Starts HTTP/2, and waits for the server's settings.
async fn greet(
    shared: &Shared,
    io: Io<Link>,
) -> Result<(SendRequest<Bytes>, client::Connection<Io<Link>, Bytes>), String> {
    let link = io.link();
    // The connection's window must never hold a server back: a paused call would then block all
    // other calls.
    let handshake = client::Builder::new()
        .initial_window_size(shared.settings.stream_queued_bytes_max)
        .initial_connection_window_size(WINDOW_BYTES_MAX)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .max_send_buffer_size(STREAM_BUFFER_BYTES_MAX)
        .max_concurrent_reset_streams(CANCELLED_CALLS_MAX)
        .max_local_error_reset_streams(None)
        .enable_push(false)
        .handshake::<_, Bytes>(io);
    let (requests, mut h2) = handshake.await.map_err(|error| of_connection(&error))?;
    poll_fn(|cx| {
        if let Poll::Ready(ended) = Pin::new(&mut h2).poll(cx) {
            let reason = ended.err().map(|error| of_connection(&error));
            return Poll::Ready(Err(reason.unwrap_or_else(|| CLOSED.to_owned())));
        }
        let link = &mut *link.borrow_mut();
        if let Poll::Ready(Err(error)) = link.socket.poll_drain(cx) {
            return Poll::Ready(Err(error.to_string()));
        }
        if link.frames.has_greeted() { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await?;
    Ok((requests, h2))
}

pub const CLOSED: &str = "the server closed the connection";

/// The socket, shared by h2 and the connection's driver.
pub struct Link {
    pub socket: Gathering,
    /// Bytes read since the driver last reset this count.
    pub read: usize,
    pub frames: ServerFrames,
    flow: Arc<Flow>,
    shared: Arc<Shared>,
}

impl Link {
    pub fn is_paused(&self) -> bool {
        self.flow.is_paused(|| self.shared.settings.connection_queued_bytes_max)
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
        if self.is_paused() {
            // The loop's `poll` wakes the driver when it has taken enough.
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let result = self.socket.poll_read(cx, buffer);
        let data = &buffer.filled()[before..];
        self.frames.read(data);
        self.read += data.len();
        result
    }
}
