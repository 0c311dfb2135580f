"""A proxy with real connections on both sides, in a thread."""

import os
import random
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvorum.client.endpoints import parse_endpoint
from kvorum.network.edge import make_upstream, open_edge
from kvorum.proxy.proxy import Proxy
from kvorum.proxy.settings import (
    BYTES_PER_TURN,
    CALLS_PER_TURN,
    EDGE_METADATA_KEYS,
    EDGE_METHODS,
    ProxySettings,
)
from kvorum.server.http.http import READ_HEADERS
from tests.proxy.standing import Logger


class Running:
    """A proxy that serves an address until it is drained."""

    def __init__(self, *members: str, **settings: Any) -> None:
        self.edge = open_edge(EDGE_METHODS, EDGE_METADATA_KEYS, http_headers=READ_HEADERS)
        self.upstream = make_upstream(edge=self.edge)
        _, self.address = self.edge.listen("127.0.0.1:0")
        endpoints = tuple(map(parse_endpoint, members))
        self.logger = Logger()
        self.proxy = Proxy(
            self.edge,
            self.upstream,
            ProxySettings(endpoints=endpoints, **settings),
            random.randrange,
            self.logger,
        )
        self._wake, self._woken = os.pipe()
        self._is_draining = threading.Event()
        self.has_begun_to_drain = threading.Event()
        """Set when the proxy itself knows that it is to end."""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def begin_to_drain(self) -> None:
        """Let it end as a process would."""
        self._is_draining.set()
        os.write(self._woken, b"x")

    def drain(self) -> None:
        """Let it end, and wait for that."""
        self.begin_to_drain()
        self._thread.join()
        self.edge.stop()
        self.upstream.stop()
        os.close(self._wake)
        os.close(self._woken)

    def _run(self) -> None:
        edge, upstream, proxy = self.edge, self.upstream, self.proxy
        waits_for = [edge.fileno(), upstream.fileno(), self._wake]
        while not proxy.is_ended:
            requests, events = edge.poll(CALLS_PER_TURN, BYTES_PER_TURN)
            told = upstream.poll(CALLS_PER_TURN, BYTES_PER_TURN)
            now = time.monotonic()
            if self._is_draining.is_set():
                proxy.drain(now)
                self.has_begun_to_drain.set()
            proxy.turn(now, requests, events, told)
            if requests or events or told or proxy.is_busy:
                continue
            # Both are told of the sleep, whatever the first of them says.
            if all([edge.announce_sleep(), upstream.announce_sleep()]):
                seconds = proxy.wake_at(now) - time.monotonic()
                select.select(waits_for, [], [], max(0.0, min(seconds, 1.0)))
            edge.awake()
            upstream.awake()


@contextmanager
def running_proxy(*members: str, **settings: Any) -> Iterator[Running]:
    """Run a proxy before members for as long as the block takes."""
    proxy = Running(*members, **settings)
    try:
        yield proxy
    finally:
        proxy.drain()
