"""Relay bytes, half-closes and resets between two sockets, both ways.

A relay forwards exactly the bytes it receives, in order. The directions end independently: when one
side half-closes, the relay half-closes the other after the last byte, and that side may go on
sending. If one side resets its connection, the relay resets the other.

Each direction buffers at most `CHUNK_BYTES` or the capacity of a pipe: while one side does not
read, the relay does not read from the other. Large transfers go through a pipe, from socket to
socket within the kernel (splice), if the system supports it and pipes are left; small ones are
copied.
"""

import errno
import os
import socket
import struct
from contextlib import suppress

from kvorum.storage.platform.readiness import make_pipe, splice
from kvorum.storage.platform.sockets import keep_alive

CHUNK_BYTES = 64 * 1024
"""The size of one read; after a full read, the flow switches to a pipe."""
PIPE_BYTES = 1024 * 1024
"""The capacity of a pipe, if the system allows it."""
PIPES_MAX = 64
"""How many pipes all relays have together; beyond that, flows copy everything."""
FLOW_BYTES_MAX = 4 * 1024 * 1024
"""How many bytes one direction moves before other relays get their turn."""

_RESET = struct.pack("ii", 1, 0)
"""The SO_LINGER option that makes closing a socket reset its connection."""
_NOTHING = b""


class Pipe:
    """A pipe for splicing between two sockets."""

    __slots__ = ("count", "reading", "writing")

    def __init__(self) -> None:
        self.reading, self.writing = make_pipe(PIPE_BYTES)
        self.count = 0
        """How many bytes the pipe holds."""

    def close(self) -> None:
        """Close both ends."""
        os.close(self.reading)
        os.close(self.writing)


class Pipes:
    """The pool of pipes that all relays share."""

    __slots__ = ("_free", "_max", "made")

    def __init__(self, pipes_max: int = PIPES_MAX) -> None:
        self._max = pipes_max if splice is not None else 0
        self._free: list[Pipe] = []
        self.made = 0

    def take(self) -> Pipe | None:
        """Return an empty pipe, or None if none is left."""
        if self._free:
            return self._free.pop()
        if self.made >= self._max:
            return None
        try:
            pipe = Pipe()
        except OSError:
            return None
        self.made += 1
        return pipe

    def give_back(self, pipe: Pipe) -> None:
        """Take a pipe back into the pool; close it if it still holds bytes."""
        if pipe.count:
            pipe.close()
            self.made -= 1
        else:
            self._free.append(pipe)

    def close(self) -> None:
        """Close the unused pipes."""
        for pipe in self._free:
            pipe.close()
        self.made -= len(self._free)
        self._free.clear()


class Flow:
    """One direction of a relay."""

    __slots__ = (
        "_held",
        "_is_ended",
        "_pipe",
        "_pipes",
        "_sink",
        "_source",
        "is_done",
        "is_ending",
        "is_held_back",
    )

    def __init__(self, source: socket.socket, sink: socket.socket, pipes: Pipes) -> None:
        self._source = source
        self._sink = sink
        self._pipes = pipes
        self._held: bytes | memoryview = _NOTHING
        """Bytes read from the source and not yet sent to the sink."""
        self._pipe: Pipe | None = None
        self._is_ended = False
        self.is_ending = False
        """Whether the poller reported the source's end: read on until the end of the stream."""
        self.is_held_back = False
        """Whether the sink's socket buffer is full."""
        self.is_done = False
        """Whether the sink has got all bytes and the half-close."""

    def pump(self) -> bool:
        """Move as many bytes as possible; return whether more may be ready without an event.

        Raises OSError if either side has reset its connection.
        """
        left = FLOW_BYTES_MAX
        while left > 0 and not self.is_done:
            if not self._empty():
                return False
            if self._is_ended:
                self._finish()
                return False
            count = self._fill()
            if count <= 0:
                return False
            left -= count
        return not self.is_done

    def release(self) -> None:
        """Discard the buffered bytes and return the pipe."""
        self._held = _NOTHING
        self._leave_pipe()

    def _empty(self) -> bool:
        """Send the buffered bytes; return whether the sink took all of them."""
        try:
            while self._held:
                self._held = memoryview(self._held)[self._sink.send(self._held) :]
            self._held = _NOTHING
            pipe = self._pipe
            while pipe is not None and pipe.count:
                pipe.count -= splice(pipe.reading, self._sink.fileno(), pipe.count)
        except BlockingIOError:
            self.is_held_back = True
            return False
        self.is_held_back = False
        return True

    def _fill(self) -> int:
        """Read once; return the bytes read, 1 at the end of the stream, 0 to wait for an event."""
        pipe = self._pipe
        try:
            if pipe is not None:
                pipe.count = splice(self._source.fileno(), pipe.writing, PIPE_BYTES)
                count = pipe.count
            else:
                self._held = self._source.recv(CHUNK_BYTES)
                count = len(self._held)
        except BlockingIOError:
            self._leave_pipe()
            return 0
        if not count:
            self._is_ended = True
            self._leave_pipe()
            # Let `pump` go on, to half-close the sink.
            return 1
        if pipe is None and count == CHUNK_BYTES:
            self._pipe = self._pipes.take()
        elif pipe is None and not self.is_ending:
            # A short read emptied the socket: the poller reports the next bytes.
            self._empty()
            return 0
        return count

    def _leave_pipe(self) -> None:
        """Return the pipe to the pool."""
        if self._pipe is not None:
            self._pipes.give_back(self._pipe)
            self._pipe = None

    def _finish(self) -> None:
        self.is_done = True
        try:
            self._sink.shutdown(socket.SHUT_WR)
        except OSError as error:
            # The sink closed its connection already, after both directions were complete.
            if error.errno != errno.ENOTCONN:
                raise


class SocketRelay:
    """A client's connection, and the connection to the member that it is forwarded to."""

    __slots__ = ("backward", "client", "forward", "is_over", "is_queued", "remote")

    def __init__(self, client: socket.socket, remote: socket.socket, pipes: Pipes) -> None:
        self.client = client
        self.remote = remote
        self.forward = Flow(client, remote, pipes)
        self.backward = Flow(remote, client, pipes)
        self.is_queued = False
        """Whether the loop's queue holds this relay, so that it moves on without an event."""
        self.is_over = False

    @property
    def is_done(self) -> bool:
        """Whether both directions are complete."""
        return self.forward.is_done and self.backward.is_done

    def release(self) -> None:
        """Stop both directions, and discard the buffered bytes."""
        self.is_over = True
        self.forward.release()
        self.backward.release()


def break_off(connection: socket.socket) -> None:
    """Close a connection with a reset, so that the other side does not see a clean end."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()


def configure(connection: socket.socket) -> None:
    """Set Go's socket options: no delay, and keep-alives to detect dead peers."""
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(connection, 15, 15, 9)
