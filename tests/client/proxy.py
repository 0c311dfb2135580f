"""A network between a client and a server that can be made to misbehave."""

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

CHUNK_BYTES = 1 << 16


class Mode(Enum):
    """What becomes of what is sent."""

    PASS = "is passed on"
    STALL = "stays where it is: connections are accepted, and nothing is read"
    DISCARD = "is taken and thrown away"
    REFUSE = "ends the connection"


class Proxy:
    """Connections to one server, one thread for all of them."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._mode = Mode.PASS
        self._peers: dict[socket.socket, socket.socket] = {}
        self._bell, self._ringer = socket.socketpair()
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def set_mode(self, mode: Mode) -> None:
        self._mode = mode
        self._ringer.send(b"\0")

    def close(self) -> None:
        self._is_closed = True
        self._ringer.send(b"\0")
        self._thread.join()
        for each in (*self._peers, self._listener, self._bell, self._ringer):
            each.close()

    def _serve(self) -> None:
        while not self._is_closed:
            if self._mode is Mode.REFUSE:
                for each in list(self._peers):
                    self._drop(each)
            peers = [] if self._mode is Mode.STALL else list(self._peers)
            ready, _, _ = select.select([self._bell, self._listener, *peers], [], [])
            if self._bell in ready:
                self._bell.recv(CHUNK_BYTES)
                # The mode may be another: what is ready is looked at anew.
                continue
            for each in ready:
                if each is self._listener:
                    self._accept()
                elif each in self._peers:
                    self._pass_on(each)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if self._mode is Mode.REFUSE:
            client.close()
            return
        server = socket.create_connection(self._target)
        self._peers[client], self._peers[server] = server, client

    def _pass_on(self, source: socket.socket) -> None:
        if self._mode is Mode.STALL:
            # It was set since this was seen to be ready.
            return
        try:
            data = source.recv(CHUNK_BYTES)
            if data and self._mode is Mode.PASS:
                self._peers[source].sendall(data)
        except OSError:
            data = b""
        if not data:
            self._drop(source)

    def _drop(self, one: socket.socket) -> None:
        other = self._peers.pop(one, None)
        if other is not None:
            self._peers.pop(other, None)
            other.close()
        one.close()


@contextmanager
def proxied(target: str) -> Iterator[Proxy]:
    """Put a proxy before a server for as long as the block takes."""
    proxy = Proxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
