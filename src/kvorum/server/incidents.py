"""Tells of clients that the edge refused or held back: once per burst, however many they are."""

import asyncio
from collections.abc import Container

from kvorum.edge import Edge, Incident
from kvorum.server.logs import Logger

LOOK_SECONDS = 1.0
BURST_SECONDS = 10.0
"""What happens again within this time belongs to the same burst."""

REJECTED = "rejected connection on client endpoint"
REJECTED_PEER = "rejected connection on peer endpoint"
MESSAGES = {
    "tls_handshakes_failed": REJECTED,
    "tls_handshakes_timed_out": REJECTED,
    "tls_reloads_failed": "changed TLS files cannot be used; the ones before go on being used",
    "headers_timed_out": "closed a connection that sent no request",
    "bodies_timed_out": "closed a connection that stopped in the middle of a request",
    "connections_delayed": "too many connections",
    "pings_excessive": "closed a connection with too many pings",
    "keepalives_unanswered": "closed a connection that answers no pings",
    "resets_excessive": "closed a connection that cancels too many calls",
    "partial_messages_refused": "refused a call: too much of unfinished messages",
    "calls_delayed": "calls wait for a client that does not read its answers",
    "unread_excessive": "closed a connection that asks and does not read",
}


class IncidentLog:
    """Looks at the edge's incidents once a second."""

    def __init__(self, edge: Edge, logger: Logger, peer_listeners: Container[int]) -> None:
        self._edge = edge
        self._peer_listeners = peer_listeners
        self._logger = logger
        self._told: dict[str, float] = {}
        """When a line about each name was last written."""
        self._untold: dict[str, int] = {}

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look now and from now on, until the edge is closed."""
        try:
            taken = self._edge.incidents()
        except ValueError:
            return
        self.tell(taken, loop.time())
        loop.call_later(LOOK_SECONDS, self.start, loop)

    def tell(self, taken: list[tuple[str, int, str, str, int]], now: float) -> None:
        """Write a line for each name that was quiet for a while."""
        for incident in map(Incident._make, taken):
            name = incident.name
            times = self._untold.pop(name, 0) + incident.times
            told = self._told.get(name)
            if told is not None and now - told < BURST_SECONDS:
                self._untold[name] = times
                continue
            self._told[name] = now
            write = self._logger.debug if incident.text == "EOF" else self._logger.warning
            message = MESSAGES[name]
            if message == REJECTED and incident.listener in self._peer_listeners:
                message = REJECTED_PEER
            write(
                message,
                remote_addr=incident.peer,
                error=incident.text,
                times=times,
            )
