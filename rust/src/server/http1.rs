//! Serves an HTTP/1.1 connection: hyper speaks the protocol, the loop sees calls as on HTTP/2.

use crate::server::exchange::{Exchanges, Server};
use crate::server::incidents::Incident;
use crate::server::link::{Io, Link};
use crate::server::network::{Connection, Network};
use crate::sockets::link::farewell;
use bytes::{Buf, Bytes};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Bytes of an upgraded connection that are read at a time.
const RAW_READ_BYTES: usize = 16 * 1024;

pub async fn serve(network: &Rc<Network>, connection: &Rc<Connection>, io: Io) {
    let limits = &network.shared.limits;
    let exchanges = Rc::new(RefCell::new(Exchanges::new(network.clone(), connection.clone())));
    let link = io.link();
    let hyper = http1::Builder::new()
        .max_header_size(limits.http_header_bytes_max)
        .serve_connection(TokioIo::new(io), Server(exchanges.clone()));
    let mut driver = Driver {
        network: network.clone(),
        connection: connection.clone(),
        link,
        exchanges,
        stage: Stage::Http(Box::new(hyper)),
        patience: None,
        closing: false,
    };
    poll_fn(|cx| driver.poll(cx)).await;
    network.detach(connection, std::iter::empty());
    farewell(&driver.link).await;
}

enum Stage {
    Http(Box<http1::Connection<TokioIo<Io>, Server>>),
    /// After status 101 the loop sends and receives the raw bytes.
    Raw(Io),
    Closed,
}

/// The client's next step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// Send a request; only listeners for HTTP/1.1 alone close a connection that sends none.
    Idle,
    /// Send the rest of a request's headers.
    Head,
    /// Send more of a request's body.
    Body,
}

/// The timeout of the client's next step.
struct Patience {
    waiting: Waiting,
    alarm: Pin<Box<Sleep>>,
}

struct Driver {
    network: Rc<Network>,
    connection: Rc<Connection>,
    link: Rc<RefCell<Link>>,
    exchanges: Rc<RefCell<Exchanges>>,
    stage: Stage,
    patience: Option<Patience>,
    closing: bool,
}

impl Driver {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.connection.waker.set(cx.waker());
        // The loop does not write to the socket during a pass.
        let rest = self.exchanges.borrow_mut().take_back();
        self.link.borrow_mut().socket.say(&rest);
        self.network.dispatch();
        self.exchanges.borrow_mut().apply_commands();
        if self.network.draining.get() && !self.closing {
            self.closing = true;
            if let Stage::Http(hyper) = &mut self.stage {
                Pin::new(&mut **hyper).graceful_shutdown();
            }
        }
        let mut polled = self.poll_stage(cx);
        if let Some(missing) = self.missing(cx) {
            let told = match missing {
                Waiting::Idle => None,
                Waiting::Head => Some((Incident::HeadersTimedOut, "the headers of a request")),
                Waiting::Body => Some((Incident::BodiesTimedOut, "the body of a request")),
            };
            if let Some((kind, what)) = told {
                let text = format!("{what} did not come in time");
                self.network.note(kind, &self.connection, text);
            }
            polled = Poll::Ready(());
        }
        if self.connection.expelled.get() && polled.is_pending() {
            let text = "the client does not read its answer";
            self.network.note(Incident::UnreadExcessive, &self.connection, text);
            polled = Poll::Ready(());
        }
        if let Poll::Ready(Err(_)) = self.link.borrow_mut().socket.poll_drain(cx) {
            polled = Poll::Ready(());
        }
        let mut exchanges = self.exchanges.borrow_mut();
        if polled.is_ready() {
            exchanges.end();
        } else if let Some(descriptor) = self.link.borrow().socket.idle() {
            exchanges.lend(descriptor);
        }
        exchanges.publish();
        polled
    }

    /// The step that the client has failed to take in time, if any.
    ///
    /// hyper's own timeout would also close connections that are merely idle.
    fn missing(&mut self, cx: &mut Context<'_>) -> Option<Waiting> {
        let (limits, strict) = (&self.network.shared.limits, self.connection.listener.http1_only);
        let mut exchanges = self.exchanges.borrow_mut();
        let mut link = self.link.borrow_mut();
        let has_read = link.read > 0;
        let (waiting, limit) = if exchanges.is_busy() {
            link.read = 0;
            if !strict || !exchanges.awaits_body() || link.is_paused() {
                self.patience = None;
                return None;
            }
            (Waiting::Body, limits.http1_read_max)
        } else if has_read {
            (Waiting::Head, if strict { limits.http1_read_max } else { limits.header_read_max })
        } else if strict {
            (Waiting::Idle, limits.http1_idle_max)
        } else {
            self.patience = None;
            return None;
        };
        let begins_anew = waiting == Waiting::Body && has_read;
        let patience = self
            .patience
            .take_if(|patience| patience.waiting == waiting && !begins_anew)
            .unwrap_or_else(|| Patience { waiting, alarm: Box::pin(sleep(limit)) });
        let patience = self.patience.insert(patience);
        patience.alarm.as_mut().poll(cx).is_ready().then_some(waiting)
    }

    fn poll_stage(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match &mut self.stage {
                Stage::Http(hyper) => {
                    // First make room for what hyper can read, then take what it has read.
                    self.exchanges.borrow_mut().poll_body(cx);
                    let polled = Pin::new(&mut **hyper).poll(cx);
                    self.exchanges.borrow_mut().poll_body(cx);
                    if self.exchanges.borrow().broken {
                        return Poll::Ready(());
                    }
                    let result = ready!(polled);
                    let Stage::Http(hyper) = std::mem::replace(&mut self.stage, Stage::Closed)
                    else {
                        unreachable!("the stage was matched above");
                    };
                    let parts = hyper.into_parts();
                    let io = parts.io.into_inner();
                    let mut exchanges = self.exchanges.borrow_mut();
                    if result.is_ok() && exchanges.is_upgraded() {
                        exchanges.raw_bytes(parts.read_buf);
                        self.stage = Stage::Raw(io);
                    } else {
                        return Poll::Ready(());
                    }
                }
                Stage::Raw(io) => {
                    let mut exchanges = self.exchanges.borrow_mut();
                    let read = poll_raw_read(io, &mut exchanges, cx);
                    let written = poll_raw_write(io, &mut exchanges, cx);
                    return if read.is_ready() { read } else { written };
                }
                Stage::Closed => return Poll::Ready(()),
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The loop must not write to a socket that may be closed next.
        if let Ok(mut exchanges) = self.exchanges.try_borrow_mut() {
            exchanges.take_back();
        }
    }
}

/// Reads what fits into the queue. Ready means that the connection ends: reading failed, or the
/// client closed, even if only its sending half, before the loop had finished.
fn poll_raw_read(io: &mut Io, exchanges: &mut Exchanges, cx: &mut Context<'_>) -> Poll<()> {
    let mut data = [0; RAW_READ_BYTES];
    while exchanges.may_receive() {
        let mut buffer = ReadBuf::new(&mut data);
        if ready!(Pin::new(&mut *io).poll_read(cx, &mut buffer)).is_err() {
            return Poll::Ready(());
        }
        if buffer.filled().is_empty() {
            if !exchanges.is_finished() {
                return Poll::Ready(());
            }
            exchanges.raw_end();
        }
        exchanges.raw_bytes(Bytes::copy_from_slice(buffer.filled()));
    }
    Poll::Pending
}

/// Writes what the loop sent. Ready means that the connection ends, finished or broken.
fn poll_raw_write(io: &mut Io, exchanges: &mut Exchanges, cx: &mut Context<'_>) -> Poll<()> {
    while let Some(mut piece) = exchanges.take_piece() {
        while piece.has_remaining() {
            match Pin::new(&mut *io).poll_write(cx, piece.chunk()) {
                Poll::Ready(Ok(length)) => piece.advance(length),
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => {
                    exchanges.put_back(piece);
                    return Poll::Pending;
                }
            }
        }
    }
    if !exchanges.is_finished() {
        return Poll::Pending;
    }
    Pin::new(io).poll_shutdown(cx).map(|_| ())
}
