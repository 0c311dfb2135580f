"""Options of sockets whose names or effects differ, and ports held for a server."""

import errno
import socket

_IDLE = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)
"""The option for the idle time before the first probe; macOS has it by another name."""


def keep_alive(
    connection: socket.socket, idle_seconds: int, interval_seconds: int, probes_max: int = 0
) -> None:
    """Have the system probe the other side of an idle connection; 0 is the system's own number."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if _IDLE is not None:
        connection.setsockopt(socket.IPPROTO_TCP, _IDLE, idle_seconds)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_seconds)
    if probes_max:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes_max)


def hold_port(host: str) -> tuple[int, socket.socket]:
    """Return a free port, and a socket that keeps it for a server of this machine.

    The socket is bound but does not listen. On Linux a server can bind the port, too, because both
    set SO_REUSEADDR, and no program gets it that asks for any free port. Elsewhere the option does
    not permit that, so the socket returned is closed, and the port is merely likely to stay free.
    """
    holder = _bound(host, 0)
    number: int = holder.getsockname()[1]
    try:
        _bound(host, number).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        holder.close()
    return number, holder


def _bound(host: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound
