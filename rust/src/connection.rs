//! One client: its first bytes decide which protocol it speaks.

use crate::http1;
use crate::http2;
use crate::io::{Io, Socket};
use crate::network::{Connection, Network};
use bytes::BytesMut;
use std::rc::Rc;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Serves a client until it is gone.
pub async fn serve(network: Rc<Network>, connection: Rc<Connection>, socket: Socket) {
    let registered = Registered { network, connection };
    let Registered { network, connection } = &registered;
    let mut io = Io::new(socket, connection.clone(), network.shared.clone());
    let wait = network.shared.limits.header_read_max;
    // Boxed apart, so that an idle connection holds the state of one protocol only.
    match timeout(wait, Box::pin(read_protocol(&mut io))).await {
        Ok(Some(true)) => {
            io.expect_http2();
            Box::pin(http2::serve(network, connection, io)).await;
        }
        Ok(Some(false)) => Box::pin(http1::serve(network, connection, io)).await,
        Ok(None) | Err(_) => {}
    }
}

/// Whether the client speaks HTTP/2; None if it left before it said so.
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
    let is_http2 = start[..] == *HTTP2_PREFACE;
    io.unread(start.freeze());
    Some(is_http2)
}

/// Takes a connection off the books however its task ends.
struct Registered {
    network: Rc<Network>,
    connection: Rc<Connection>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.network.forget(&self.connection);
    }
}
