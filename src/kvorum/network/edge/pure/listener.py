"""Listening sockets: `host:port`, `[v6 host]:port` and `unix:path`."""

import errno
import os
import socket
import stat
from pathlib import Path

from kvorum.network.edge.interface import ListenerKind, Serves, TlsSettings
from kvorum.network.edge.pure.tls import ListenerTls
from kvorum.storage.platform.sockets import keep_alive

BACKLOG = 4096
KEEPALIVE_SECONDS = 30
"""Idle time after which the kernel probes the client (TCP keepalive)."""
PORT_MAX = 65_535


class Listener:
    """One address; its socket is non-blocking."""

    __slots__ = (
        "_inode",
        "_path",
        "address",
        "http1_only",
        "kind",
        "number",
        "serves",
        "socket",
        "tls",
    )

    def __init__(
        self,
        number: int,
        address: str,
        tls: TlsSettings | None,
        *,
        http1_only: bool,
        kind: ListenerKind,
        serves: Serves,
        reuse_port: bool = False,
    ) -> None:
        """Bind the address; raise OSError that names it."""
        self.number = number
        self.kind = ListenerKind(kind)
        self.serves = Serves(serves)
        self.http1_only = http1_only
        try:
            self.tls = None if tls is None else open_tls(tls, http1_only=http1_only)
        except OSError as error:
            text = f"cannot listen at {address} with TLS: {error.strerror}"
            raise OSError(errno.EINVAL, text) from None
        self._path: Path | None = None
        self._inode = 0
        try:
            if address.startswith("unix:"):
                self._path = Path(address[5:])
                self.socket = _bound_unix(self._path)
                self._inode = self._path.stat().st_ino
                self.address = address
            else:
                self.socket = _bound_tcp(address, reuse_port=reuse_port)
                self.address = endpoint(self.socket.getsockname())
        except OSError as error:
            raise OSError(error.errno, f"cannot listen at {address}: {error.strerror}") from None

    def close(self) -> None:
        """Close the socket and remove its file, unless another server has replaced it."""
        self.socket.close()
        if self._path is not None:
            try:
                if self._path.stat().st_ino == self._inode:
                    self._path.unlink()
            except FileNotFoundError:
                pass

    def abandon(self) -> None:
        """Close a forked child's copy of the socket; its file belongs to the parent."""
        self.socket.close()


def open_tls(settings: TlsSettings, *, http1_only: bool) -> ListenerTls:
    """Read the files of TLS settings; raise OSError that names an unusable one."""
    try:
        return ListenerTls(settings, http1_only=http1_only)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OSError(errno.EINVAL, str(reason)) from None


def endpoint(address: object) -> str:
    """Format a socket's address as `host:port`, or `@` for a client's unnamed unix socket."""
    if isinstance(address, tuple):
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return "@"


def _bound_tcp(address: str, *, reuse_port: bool) -> socket.socket:
    host, colon, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdecimal() or (":" in bare) != (host != bare):
        raise OSError(errno.EINVAL, "expected host:port, [v6 host]:port or unix:path")
    if int(port) > PORT_MAX:
        raise OSError(errno.EINVAL, f"expected a port of at most {PORT_MAX}")
    found = socket.getaddrinfo(
        bare or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, where = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse_port)
        # Accepted sockets inherit this.
        keep_alive(sock, KEEPALIVE_SECONDS, KEEPALIVE_SECONDS)
        sock.bind(where)
        return _listening(sock)
    except OSError:
        sock.close()
        raise


def _bound_unix(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            path.unlink()
        sock.bind(os.fspath(path))
        return _listening(sock)
    except OSError:
        sock.close()
        raise


def _listening(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    sock.listen(BACKLOG)
    return sock
