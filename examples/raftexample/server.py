"""The environment of a node: two listeners, the dialer, the clock, and the loop that runs it."""

import asyncio
import logging
import random
import signal
import time
from typing import Any
from urllib.parse import urlsplit

from examples.raftexample.node import Node
from examples.raftexample.service import Service
from kvorum.network.dialer.dialer import HttpDialer
from kvorum.network.edge import EdgeEventKind, open_edge
from kvorum.network.tls.credentials import DialSettings, TlsCredentials
from kvorum.server.peer.transport import Identity, Transport, TransportSettings
from kvorum.server.peer.transport.headers import READ_HEADERS
from kvorum.storage.files.real import RealFiles

CLUSTER_ID = 0x1000
TICK_SECONDS = 0.1
ELECTION_SECONDS = 1.0


class Server:
    """One node with its listeners, connections and timer."""

    def __init__(self, node_id: int, urls: list[str], port: int, *, joins: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._logger = logging.getLogger("raftexample")
        self.ended = asyncio.Event()
        directory = f"raftexample-{node_id}"
        draw = random.SystemRandom().randrange
        self._node = Node(node_id, urls, RealFiles(), directory, self._logger, draw, joins=joins)
        self._edge = open_edge([], http_headers=READ_HEADERS)
        own_url = urls[node_id - 1]
        self._peer_listener, _ = self._edge.listen(urlsplit(own_url).netloc, http1_only=True)
        self._edge.listen(f"127.0.0.1:{port}")
        self._dialer = HttpDialer(
            self._loop,
            TlsCredentials(DialSettings(), self._logger.warning),
            connect_seconds_max=ELECTION_SECONDS,
            wake=self._wake,
        )
        self._transport = Transport(
            self._node,
            self._edge,
            self._dialer,
            Identity(node_id, CLUSTER_ID, (own_url,), "3.7.1"),
            TransportSettings(
                snap_directory=None, election_seconds=ELECTION_SECONDS, unix_seconds=time.time
            ),
            self._logger,
        )
        self._service = Service(self._node, self._edge)
        self._timer: asyncio.TimerHandle | None = None
        self._is_scheduled = False
        self._tick_at = time.monotonic()
        self._node.connect(self._transport, urls, self._tick_at)
        self._loop.add_reader(self._edge.fileno(), self._wake)
        self._wake()

    def _wake(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Handle input and timers, let the node work, and sleep until the next event."""
        self._is_scheduled = False
        if self.ended.is_set():
            return
        self._edge.awake()
        now = time.monotonic()
        _, events = self._edge.poll(256, 1 << 20)
        for kind, call, detail in events:
            self._handle(kind, call, detail, now)
        for event in self._dialer.poll():
            self._transport.handle_answer(event, now)
        while now >= self._tick_at:
            self._tick_at += TICK_SECONDS
            self._node.tick(now)
        self._node.turn(now)
        wake_at = min(self._tick_at, self._transport.pass_time(now))
        if not self._node.is_running:
            self.ended.set()
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0.0, wake_at - now), self._wake)
        if not self._edge.announce_sleep():
            self._wake()

    def _handle(self, kind: int, call: int, detail: Any, now: float) -> None:
        if kind == EdgeEventKind.HTTP_OPENED:
            listener, method, target, headers = detail
            if listener != self._peer_listener:
                self._service.open_request(call, method, target)
            elif self._transport.serves(method, target):
                self._transport.open_request(call, method, target, headers, now)
            else:
                self._edge.respond(call, 404, (), b"404 page not found\n")
        else:
            # The transport and the service each ignore calls of the other.
            self._transport.handle(kind, call, detail, now)
            self._service.handle(kind, call, detail, now)

    def close(self) -> None:
        """Close the node and all its connections."""
        self._loop.remove_reader(self._edge.fileno())
        if self._timer is not None:
            self._timer.cancel()
        self._node.close()
        self._dialer.stop()
        self._edge.stop()


async def serve(node_id: int, urls: list[str], port: int, *, joins: bool) -> None:
    """Run a node until a signal ends it or the group removes it."""
    server = Server(node_id, urls, port, joins=joins)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.ended.set)
    await server.ended.wait()
    server.close()
