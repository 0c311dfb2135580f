//! Serves one client: TLS if the listener has it, then the protocol that the first bytes reveal.

use crate::server::http1;
use crate::server::http2;
use crate::server::incidents::Incident;
use crate::server::link::{Io, Link};
use crate::server::listener::Serves;
use crate::server::network::{Connection, Network};
use crate::sockets::gathering::Socket;
use crate::sockets::link::farewell;
use crate::sockets::transport::Transport;
use crate::threads::counters::count;
use crate::tls::words;
use bytes::{Bytes, BytesMut};
use std::rc::Rc;
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The response of Go's server to HTTP/2 where it speaks only HTTP/1.1.
const NO_HTTP2: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

/// The first byte of every TLS connection.
const TLS_HANDSHAKE: u8 = 0x16;

/// Serves a client until its connection ends.
pub async fn serve(network: Rc<Network>, connection: Rc<Connection>, transport: Transport) {
    let registered = Registered { network, connection };
    let Registered { network, connection } = &registered;
    // Each stage has its own box, so that an idle connection holds the state of one stage only.
    let Some(socket) = Box::pin(secure(network, connection, transport)).await else { return };
    let mut io = Io::new(Link::new(socket, connection.clone(), network.shared.clone()));
    let limits = &network.shared.limits;
    let wait =
        if connection.listener.http1_only { limits.http1_idle_max } else { limits.header_read_max };
    match timeout(wait, Box::pin(read_protocol(&mut io))).await {
        Ok(Some(true)) if connection.listener.http1_only => {
            count(&network.shared.counters.requests_refused, 1);
            io.link().borrow_mut().socket.say(NO_HTTP2);
            farewell(&io.link()).await;
        }
        // A listener for gRPC only treats HTTP/1.1 as HTTP/2 with a wrong preface, as grpc-go does.
        Ok(Some(is_http2)) if is_http2 || connection.listener.serves == Serves::Grpc => {
            io.link().borrow_mut().expect_http2();
            Box::pin(http2::serve(network, connection, io)).await;
        }
        Ok(Some(_)) => Box::pin(http1::serve(network, connection, io)).await,
        Ok(None) => farewell(&io.link()).await,
        Err(_) => network.note(Incident::HeadersTimedOut, connection, "no request came in time"),
    }
}

/// Performs the TLS handshake if the listener has TLS; None if the client cannot be served.
async fn secure(
    network: &Network,
    connection: &Connection,
    mut transport: Transport,
) -> Option<Socket> {
    let Some(tls) = &connection.tls else { return Some(Socket::Plain(transport)) };
    let deadline = Instant::now() + network.shared.limits.handshake_max;
    let failed = |reason: String| network.note(Incident::HandshakeFailed, connection, reason);
    let timed_out = || {
        let text = "tls: the handshake was not finished in time";
        network.note(Incident::HandshakeTimedOut, connection, text);
    };
    match timeout_at(deadline, transport.peek()).await {
        Ok(Ok(Some(TLS_HANDSHAKE))) => {}
        Ok(Ok(Some(_))) if tls.plain_too() => return Some(Socket::Plain(transport)),
        Ok(Ok(Some(_))) => {
            failed("tls: first record does not look like a TLS handshake".to_owned());
            transport.close().await;
            return None;
        }
        // A client that sent nothing, such as a port scan, is not worth an incident.
        Ok(Ok(None) | Err(_)) => return None,
        Err(_) => {
            timed_out();
            return None;
        }
    }
    let (config, failure) = tls.config();
    if let Some(reason) = failure {
        network.note(Incident::ReloadFailed, connection, reason);
    }
    let accepting = TlsAcceptor::from(config).accept(transport).into_fallible();
    match timeout_at(deadline, accepting).await {
        Ok(Ok(stream)) => {
            count(&network.shared.counters.tls_handshakes, 1);
            if let Some([certificate, ..]) = stream.get_ref().1.peer_certificates() {
                let _ = connection.shared.certificate.set(Bytes::copy_from_slice(certificate));
            }
            Some(Socket::Tls(Box::new(stream.into())))
        }
        Ok(Err((error, mut transport))) => {
            failed(words::of_handshake(&error));
            // A graceful close: a reset could destroy the alert that rustls has sent.
            transport.close().await;
            None
        }
        Err(_) => {
            timed_out();
            None
        }
    }
}

/// Whether the client speaks HTTP/2; None if it left before that was clear, or if it speaks TLS.
async fn read_protocol(io: &mut Io) -> Option<bool> {
    let mut start = BytesMut::with_capacity(HTTP2_PREFACE.len());
    loop {
        let known = start.len();
        if start[..] != HTTP2_PREFACE[..known] || known == HTTP2_PREFACE.len() {
            break;
        }
        let mut rest = [0; HTTP2_PREFACE.len()];
        match io.read(&mut rest[..HTTP2_PREFACE.len() - known]).await {
            Ok(0) if known == 0 => return None,
            Ok(0) => break,
            Ok(number) => start.extend_from_slice(&rest[..number]),
            Err(_) => return None,
        }
    }
    if start[0] == TLS_HANDSHAKE {
        return None;
    }
    let is_http2 = start[..] == *HTTP2_PREFACE;
    io.link().borrow_mut().unread(start.freeze());
    Some(is_http2)
}

/// Removes a connection from the network's lists, however its task ends.
struct Registered {
    network: Rc<Network>,
    connection: Rc<Connection>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.network.forget(&self.connection);
    }
}
