"""Two sockets, and what one says given to the other: bytes, ends and breaks, both ways.

What arrives at one end leaves at the other, in order, and nothing else does. Each direction ends by
itself: when one side has said everything, the other hears that after the last byte, and may go on
speaking. If one side breaks off, so does the other.

At most `CHUNK_BYTES`, or what a pipe holds, is between the two in each direction: while one side
does not read, the other is not read from. Much at once goes through a pipe, from socket to socket
within the system (splice), where it has that and pipes are left; a little is copied.
"""

import errno
import os
import socket
import struct
from contextlib import suppress

CHUNK_BYTES = 64 * 1024
"""What is copied at once; when there is as much to read, a pipe is used."""
PIPE_BYTES = 1024 * 1024
"""How much a pipe may hold, where the system allows it."""
PIPES_MAX = 64
"""Pipes of all relays together; where they are used up, everything is copied."""
FLOW_BYTES_MAX = 4 * 1024 * 1024
"""After so much of one direction, it is the turn of others."""

_RESET = struct.pack("ii", 1, 0)
"""The option with which closing a socket breaks its connection off."""
_F_SETPIPE_SZ = 1031
_NOTHING = b""


class Pipe:
    """Bytes on their way within the system."""

    __slots__ = ("count", "reading", "writing")

    def __init__(self) -> None:
        import fcntl

        self.reading, self.writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.count = 0
        """How many bytes are in it."""
        # Refused where one user's pipes have too much memory already.
        with suppress(OSError):
            fcntl.fcntl(self.writing, _F_SETPIPE_SZ, PIPE_BYTES)

    def close(self) -> None:
        """Give its descriptors back."""
        os.close(self.reading)
        os.close(self.writing)


class Pipes:
    """The pipes of all relays: made when needed, kept for others."""

    __slots__ = ("_free", "_max", "made")

    def __init__(self, pipes_max: int = PIPES_MAX) -> None:
        # Other systems than Linux have no such call.
        self._max = pipes_max if hasattr(os, "splice") else 0
        self._free: list[Pipe] = []
        self.made = 0

    def take(self) -> Pipe | None:
        """Return an empty pipe, or None if there is none."""
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
        """Take a pipe back; one that is not empty is closed."""
        if pipe.count:
            pipe.close()
            self.made -= 1
        else:
            self._free.append(pipe)

    def close(self) -> None:
        """Close those that nobody uses."""
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
        """What was read and not taken."""
        self._pipe: Pipe | None = None
        self._is_ended = False
        self.is_ending = False
        """Whether the source may have said everything: it is read until that shows."""
        self.is_held_back = False
        """Whether the sink takes nothing now."""
        self.is_done = False
        """Whether the sink has everything, and has heard that this was all."""

    def pump(self) -> bool:
        """Move what can be moved; return whether there may be more to move at once.

        Raises OSError if either side has broken off.
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
        """Let go of everything; what is still held is lost."""
        self._held = _NOTHING
        self._leave_pipe()

    def _empty(self) -> bool:
        """Give the sink what is there; return whether it took everything."""
        try:
            while self._held:
                self._held = memoryview(self._held)[self._sink.send(self._held) :]
            self._held = _NOTHING
            pipe = self._pipe
            while pipe is not None and pipe.count:
                pipe.count -= os.splice(
                    pipe.reading,
                    self._sink.fileno(),
                    pipe.count,
                    flags=os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK,
                )
        except BlockingIOError:
            self.is_held_back = True
            return False
        self.is_held_back = False
        return True

    def _fill(self) -> int:
        """Read once; return how much there was, 0 if that was all for now, or for ever."""
        pipe = self._pipe
        try:
            if pipe is not None:
                pipe.count = os.splice(
                    self._source.fileno(),
                    pipe.writing,
                    PIPE_BYTES,
                    flags=os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK,
                )
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
            # One more round tells the sink.
            return 1
        if pipe is None and count == CHUNK_BYTES:
            self._pipe = self._pipes.take()
        elif pipe is None and not self.is_ending:
            # Less than was asked for: the next bytes will be announced.
            self._empty()
            return 0
        return count

    def _leave_pipe(self) -> None:
        """Let others have the pipe."""
        if self._pipe is not None:
            self._pipes.give_back(self._pipe)
            self._pipe = None

    def _finish(self) -> None:
        self.is_done = True
        try:
            self._sink.shutdown(socket.SHUT_WR)
        except OSError as error:
            # It was closed from its side already, with everything said both ways.
            if error.errno != errno.ENOTCONN:
                raise


class Relay:
    """A client's connection and the one to a member that it is forwarded to."""

    __slots__ = ("backward", "client", "forward", "is_over", "is_queued", "remote")

    def __init__(self, client: socket.socket, remote: socket.socket, pipes: Pipes) -> None:
        self.client = client
        self.remote = remote
        self.forward = Flow(client, remote, pipes)
        self.backward = Flow(remote, client, pipes)
        self.is_queued = False
        """Whether its turn comes again without an event."""
        self.is_over = False

    @property
    def is_done(self) -> bool:
        """Whether both sides have said and heard everything."""
        return self.forward.is_done and self.backward.is_done

    def release(self) -> None:
        """Move nothing more; what is still between the two is lost."""
        self.is_over = True
        self.forward.release()
        self.backward.release()


def break_off(connection: socket.socket) -> None:
    """Close a connection so that its other side does not take it for a clean end."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()


def configure(connection: socket.socket) -> None:
    """Set a connection up as Go does: nothing is delayed, dead peers are noticed."""
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 9)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
