"""Logs the clients that the edge refused or held back, once per burst of incidents.

A line is written when a burst begins, every `BURST_SECONDS` while it lasts, and after its end. The
line says what happened, how often since the last line, and which hosts caused it.
"""

import asyncio
from collections.abc import Container

from kvorum.network.edge import Edge, Incident
from kvorum.server.telemetry.logs import Logger

READ_SECONDS = 1.0
BURST_SECONDS = 10.0
"""Incidents of one name within this time belong to the same burst."""
FLOOD_TIMES = 100
"""This many incidents between two lines are a warning, even if each alone is harmless."""
HOSTS_MAX = 8
"""How many hosts a line names; the edge itself reports one a second."""

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


class _Burst:
    """The incidents of one name since they were last logged."""

    __slots__ = ("hosts", "last", "logged_at", "times")

    def __init__(self) -> None:
        self.logged_at = -BURST_SECONDS
        self.times = 0
        self.hosts: dict[str, None] = {}
        self.last: Incident | None = None

    def add(self, incident: Incident) -> None:
        self.times += incident.times
        self.last = incident
        host = incident.peer.rpartition(":")[0] or incident.peer
        if host and len(self.hosts) < HOSTS_MAX:
            self.hosts[host] = None


class IncidentLog:
    """Reads the edge's incidents once a second."""

    def __init__(self, edge: Edge, logger: Logger, peer_listeners: Container[int]) -> None:
        self._edge = edge
        self._peer_listeners = peer_listeners
        self._logger = logger
        self._bursts: dict[str, _Burst] = {}

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read the incidents now, and then every second until the edge is closed."""
        try:
            taken = self._edge.incidents()
        except ValueError:
            return
        self.log(taken, loop.time())
        loop.call_later(READ_SECONDS, self.start, loop)

    def log(self, taken: list[tuple[str, int, str, str, int]], now: float) -> None:
        """Write a line for each incident name that was not logged within `BURST_SECONDS`."""
        for incident in map(Incident._make, taken):
            self._bursts.setdefault(incident.name, _Burst()).add(incident)
        for name, burst in self._bursts.items():
            if burst.last is not None and now - burst.logged_at >= BURST_SECONDS:
                self._write(name, burst.last, burst)
                burst.logged_at, burst.times, burst.last = now, 0, None
                burst.hosts.clear()

    def _write(self, name: str, last: Incident, burst: _Burst) -> None:
        is_harmless = last.text == "EOF" and burst.times < FLOOD_TIMES
        write = self._logger.debug if is_harmless else self._logger.warning
        message = MESSAGES.get(name, name.replace("_", " "))
        if message == REJECTED and last.listener in self._peer_listeners:
            message = REJECTED_PEER
        fields: dict[str, object] = {"incident": name, "remote_addr": last.peer}
        if len(burst.hosts) > 1:
            fields["from"] = list(burst.hosts)
        write(message, **fields, error=last.text, times=burst.times)
