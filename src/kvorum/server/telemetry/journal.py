"""Sends log lines to systemd's journal by its native protocol: one datagram per line.

A line that is too long for a datagram goes into a sealed memory file, whose descriptor is sent
instead. Sending never blocks: a line that the journal does not accept is written to stderr.
"""

import errno
import os
import socket
import struct
import sys
from pathlib import Path

from kvorum.process.settings.config import ConfigError
from kvorum.storage.platform.files import make_memory_file

SOCKET = "/run/systemd/journal/socket"
PRIORITIES = {"debug": 7, "info": 6, "warn": 4, "error": 3, "dpanic": 2, "panic": 2, "fatal": 2}
"""Syslog's priorities, by Kvorum's levels."""
_TOO_LONG = (errno.EMSGSIZE, errno.ENOBUFS)


def entry(fields: dict[str, str]) -> bytes:
    """Return an entry in the journal's format; a length precedes a value with line breaks."""
    parts: list[bytes] = []
    for name, value in fields.items():
        data = value.encode(errors="backslashreplace")
        if b"\n" in data:
            parts += [name.encode(), b"\n", struct.pack("<Q", len(data)), data, b"\n"]
        else:
            parts += [name.encode(), b"=", data, b"\n"]
    return b"".join(parts)


class Journal:
    """A socket to the journal of this machine."""

    def __init__(self, path: str = SOCKET) -> None:
        """Check that the journal is reachable; raise ConfigError in etcd's words if it is not."""
        self._path = path
        self._identifier = Path(sys.argv[0]).name or "kvorum"
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
                probe.connect(self._path)
        except OSError as error:
            text = (error.strerror or str(error)).lower()
            raise ConfigError(
                f"can't find journal (dial unixgram {self._path}: connect: {text})"
            ) from None
        # The socket stays unconnected, because the journal may be restarted.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send(self, level: str, caller: str, text: str) -> None:
        """Send a line with its level and caller."""
        data = entry(
            {
                "PRIORITY": str(PRIORITIES[level]),
                "MESSAGE": text,
                "PACKAGE": caller.rpartition("/")[0],
                "SYSLOG_IDENTIFIER": self._identifier,
            }
        )
        try:
            self._send(data)
        except OSError:
            try:
                os.write(2, text.encode(errors="backslashreplace") + b"\n")
            except OSError:
                return

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendto(data, socket.MSG_DONTWAIT, self._path)
            return
        except OSError as error:
            if error.errno not in _TOO_LONG:
                raise
        descriptor = make_memory_file("journal", data)
        try:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", descriptor))]
            self._socket.sendmsg([b""], rights, socket.MSG_DONTWAIT, self._path)
        finally:
            os.close(descriptor)
