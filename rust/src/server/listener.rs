//! Listening sockets: the loop binds them, so that errors reach the operator, and the network
//! thread accepts connections.

use crate::server::incidents::Incident;
use crate::server::network::{Network, Origin};
use crate::sockets::transport::{Stream, Transport};
use crate::tls::server::Tls;
use socket2::{Domain, Protocol, SockAddr, TcpKeepalive, Type};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};

const BACKLOG: i32 = 4096;

/// Silence after which the system probes whether the client's machine is still there.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Pause after a failed accept, such as for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

enum Bound {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

/// The protocols served at a listener; see `kvorum.network.edge.interface.Serves`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Serves {
    Both,
    Http,
    Grpc,
}

impl Serves {
    pub fn from_number(number: usize) -> Option<Serves> {
        [Serves::Both, Serves::Http, Serves::Grpc].get(number).copied()
    }
}

/// The settings that a connection inherits from its listener.
#[derive(Clone, Copy)]
pub struct ListenerFacts {
    pub number: usize,
    /// The `ListenerKind` whose limit on connections counts its clients.
    pub kind: usize,
    pub http1_only: bool,
    pub serves: Serves,
}

pub struct BoundSocket {
    socket: Bound,
    facts: ListenerFacts,
    tls: Option<Tls>,
    /// The file of a unix socket, removed when the listener is dropped.
    path: Option<PathBuf>,
    creator: u32,
}

impl BoundSocket {
    /// Binds `host:port`, `[v6 host]:port` or `unix:path`; returns the address in that form.
    pub fn new(
        address: &str,
        facts: ListenerFacts,
        tls: Option<Tls>,
        reuse_port: bool,
    ) -> io::Result<(BoundSocket, String)> {
        let creator = std::process::id();
        if let Some(path) = address.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            remove_stale_socket(&path)?;
            let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.bind(&SockAddr::unix(&path)?)?;
            socket.listen(BACKLOG)?;
            socket.set_nonblocking(true)?;
            let socket = Bound::Unix(socket.into());
            let bound = BoundSocket { socket, facts, tls, path: Some(path), creator };
            return Ok((bound, address.to_owned()));
        }
        let resolved: SocketAddr = address
            .to_socket_addrs()?
            .next()
            .ok_or_else(|| io::Error::other("the host has no address"))?;
        let socket =
            socket2::Socket::new(Domain::for_address(resolved), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(reuse_port)?;
        // Accepted sockets inherit the keepalive.
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
        socket.set_tcp_keepalive(&keepalive)?;
        socket.bind(&resolved.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let listener: std::net::TcpListener = socket.into();
        let bound = listener.local_addr()?.to_string();
        let socket = Bound::Tcp(listener);
        Ok((BoundSocket { socket, facts, tls, path: None, creator }, bound))
    }
}

fn remove_stale_socket(path: &PathBuf) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path),
        Ok(_) => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path exists and is not a socket"))
        }
        Err(_) => Ok(()),
    }
}

/// Removes a socket's file together with its listener, except in a forked child.
struct SocketFile(Option<PathBuf>, u32);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0
            && self.1 == std::process::id()
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    async fn accept(&self) -> io::Result<(Stream, String)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((Stream::Tcp(stream), peer.to_string()))
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((Stream::Unix(stream), "@".to_owned()))
            }
        }
    }
}

/// Accepts clients until the task is aborted.
pub async fn accept(network: Rc<Network>, bound: BoundSocket, _listening: Listening) {
    let _file = SocketFile(bound.path, bound.creator);
    let listener = match bound.socket {
        Bound::Tcp(listener) => TcpListener::from_std(listener).map(Listener::Tcp),
        Bound::Unix(listener) => UnixListener::from_std(listener).map(Listener::Unix),
    }
    .expect("a bound socket is usable");
    let (tls, facts) = (bound.tls.map(Rc::new), bound.facts);
    loop {
        wait_for_room(&network, facts).await;
        match listener.accept().await {
            Ok((stream, peer)) => {
                let transport = Transport::new(stream, &network.shared.descriptors);
                network.serve(transport, Origin { listener: facts, tls: tls.clone(), peer });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn wait_for_room(network: &Network, listener: ListenerFacts) {
    let limit = network.shared.limits.connections_max[listener.kind];
    if network.connections_open(listener.kind) >= limit {
        let text = format!("{limit} connections are open; more wait to be accepted");
        network.shared.incidents.note(Incident::ConnectionsDelayed, listener.number, "", text);
    }
    while network.connections_open(listener.kind) >= limit {
        network.closed.notified().await;
    }
}

/// Counts a listening socket as open; dropped after the socket.
pub struct Listening {
    network: Rc<Network>,
    descriptor: RawFd,
}

impl Listening {
    pub fn new(network: &Rc<Network>, bound: &BoundSocket) -> Listening {
        let descriptor = match &bound.socket {
            Bound::Tcp(listener) => listener.as_raw_fd(),
            Bound::Unix(listener) => listener.as_raw_fd(),
        };
        network.shared.descriptors.insert(descriptor);
        Listening { network: network.clone(), descriptor }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.network.shared.descriptors.remove(self.descriptor);
        self.network.forget_listener();
    }
}
