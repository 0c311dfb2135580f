"""Check, before the member starts, that the process can listen at its addresses.

The check binds each address and releases it. If another process has the address, the error names
that process if /proc shows it: to root always, to other users only for their own processes.
"""

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from kvorum.network.urls import Url, split_host_port
from kvorum.process.start_errors import AddressRefusedError, system_text
from kvorum.storage.platform.processes import PROC, read_proc

PORT_MAX = 65_535
_LISTENING = "0A"
"""The state of a listening socket in /proc/net/tcp."""
_ACCEPTING = 0x10000
"""The flag of a listening socket in /proc/net/unix."""


def listen_address(text: str, flag: str = "--listen-addr") -> Url:
    """Return the URL of `host:port`, where the port may be a service name, after a trial bind.

    Raises AddressRefusedError with etcd's text and advice.
    """
    try:
        host, port = split_host_port(text)
    except ValueError as error:
        raise AddressRefusedError(f"listen tcp: {error} ({flag} takes host:port)") from None
    if not port.removeprefix("-").isdecimal() and port:
        try:
            port = str(socket.getservbyname(port, "tcp"))
        except OSError:
            raise AddressRefusedError(f"listen tcp: lookup tcp/{port}: unknown port") from None
    if not 0 <= int(port or 0) <= PORT_MAX:
        raise AddressRefusedError(f"listen tcp: address {port}: invalid port")
    address = f"[{host}]:{port or 0}" if ":" in host else f"{host}:{port or 0}"
    url = Url("http", address, "", text)
    check_address(url, flag, reuse_port=False)
    return url


def check_address(url: Url, flag: str, *, reuse_port: bool) -> None:
    """Raise AddressRefusedError if this process cannot listen at the address of a flag."""
    if url.scheme.startswith("unix"):
        _check_unix(Path(url.address.removeprefix("unix:")), flag)
        return
    host, port = split_host_port(url.address)
    try:
        number = int(port or 0)
        if number > PORT_MAX:
            raise OSError(errno.EINVAL, f"expected a port of at most {PORT_MAX}")
        _bind(host, number, reuse_port=reuse_port)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        advice = _advice(error.errno or 0, number, flag)
        raise AddressRefusedError(f"listen tcp {url.address}: bind: {reason}; {advice}") from None


def _bind(host: str, port: int, *, reuse_port: bool) -> None:
    (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    )
    with socket.socket(family, kind, protocol) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse_port)
        bound.bind(address)
        if not reuse_port:
            # Not on a shared port: that would take connections away from the processes serving it.
            bound.listen(1)


def _advice(number: int, port: int, flag: str) -> str:
    if number == errno.EADDRINUSE:
        owner = _owner(_tcp_sockets(port))
        return f"{owner} listens there. Stop it, or give another address with {flag}"
    if number in (errno.EACCES, errno.EPERM):
        return (
            "ports below 1024 need root or CAP_NET_BIND_SERVICE. Give one of them, or another port "
            f"with {flag}"
        )
    if number == errno.EADDRNOTAVAIL:
        return f"this machine has no such address. Give one that it has, or 0.0.0.0, with {flag}"
    return f"give another address with {flag}"


def _check_unix(path: Path, flag: str) -> None:
    """Refuse a path where no socket can be made, or where another process serves."""
    try:
        if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
            raise OSError(errno.EEXIST, "the path exists and is not a socket", str(path))
        if not os.access(path.parent, os.W_OK | os.X_OK):
            missing = errno.ENOENT if not path.parent.exists() else errno.EACCES
            raise OSError(missing, os.strerror(missing), str(path.parent))
    except OSError as error:
        raise AddressRefusedError(
            f"listen unix {path}: bind: {system_text(error)} ({flag})"
        ) from None
    inodes = _unix_sockets(str(path))
    # Connecting disturbs a server, so /proc is asked first.
    if (inodes or inodes is None) and _is_served(path):
        owner = _owner(inodes or set())
        raise AddressRefusedError(
            f"listen unix {path}: bind: address already in use; {owner} listens there. "
            f"Stop it, or give another path with {flag}"
        )


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, suppress(OSError):
        probe.setblocking(False)
        probe.connect(str(path))
        return True
    return False


def _tcp_sockets(port: int) -> set[str]:
    """Return the inodes of the sockets that listen on a port."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in (read_proc(f"self/net/{name}") or "").splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
                found.add(rest[5])
    return found


def _unix_sockets(path: str) -> set[str] | None:
    """Return the inodes of the sockets that listen at a path; None if the system does not tell."""
    table = read_proc("self/net/unix")
    if table is None:
        return None
    found = set()
    for line in table.splitlines()[1:]:
        _, _, _, flags, _, _, inode, *name = line.split(maxsplit=7)
        if name and name[0] == path and int(flags, 16) & _ACCEPTING:
            found.add(inode)
    return found


def _owner(inodes: set[str]) -> str:
    """Return a text that names the process that has one of these sockets open."""
    targets = {f"socket:[{inode}]" for inode in inodes}
    for process in PROC.glob("[0-9]*"):
        with suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()) in targets:
                        name = (process / "comm").read_text(errors="replace").strip()
                        return f"process {process.name} ({name})"
    return "another process"
