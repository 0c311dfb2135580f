"""The clean end of a server: finish calls, hand the leadership over, flush, close the files.

Clients are asked to begin no more calls; calls that still come are served until every client has
confirmed that, and the last call is answered. A client that does not confirm is waited for as long
as an election timeout, a second at least. Then the leadership is handed over, streams end, what is
applied is flushed to the disk, and the files are closed.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from kvorum.member.handover import hand_over

if TYPE_CHECKING:
    from kvorum.server.interface import Logger, ServerEdge
    from kvorum.server.server import Server

DRAIN_SECONDS_MAX: Final = 1.0
"""How long clients have to learn of the end, and then to take their last answers."""
CLOSE_SECONDS_MAX: Final = 10.0
CLOSE_LOOK_SECONDS: Final = 0.01


class Phase(Enum):
    """How far a server is on its way to its end."""

    SERVING = "takes calls"
    DRAINING = "finishes the calls in flight"
    FLUSHING = "brings to the disk what is applied; clients get no more answers"
    CLOSING = "closes the files; the member takes no turn any more"
    ENDED = "everything is closed"


class Ending:
    """Leads a server through its phases, one step a turn."""

    __slots__ = (
        "_drained_by",
        "_edge",
        "_handed_over_term",
        "_logger",
        "_quiet_by",
        "_server",
        "_until",
        "look_at",
    )

    def __init__(self, server: Server, edge: ServerEdge, logger: Logger) -> None:
        self._server = server
        self._edge = edge
        self._logger = logger
        # The last term whose leadership was offered to others.
        self._handed_over_term = 0
        self._until = self._quiet_by = self._drained_by = 0.0
        self.look_at = 0.0
        """When to check again, while the files are being closed."""

    def begin(self, now: float) -> None:
        """Begin the end, unless it has begun."""
        if self._server.phase is Phase.SERVING:
            config = self._server.member.config
            self._quiet_by = now + max(DRAIN_SECONDS_MAX, config.election_seconds)
            self._enter(Phase.DRAINING, now + config.request_seconds_max)
            self._edge.drain()

    def advance(self, now: float) -> None:
        """Take the steps that are possible now."""
        if self._server.phase is Phase.DRAINING:
            self._drain(now)
        elif self._server.phase is Phase.FLUSHING:
            self._flush(now)
        elif self._server.phase is Phase.CLOSING:
            self._close(now)

    def _drain(self, now: float) -> None:
        server = self._server
        in_flight = len(server.calls.unary) + len(server.front.open) + server.waiting
        # A client that does not know of the end yet may still call, and a leader that hands over
        # takes no proposals: so the handover waits a moment for clients and their calls.
        if (in_flight or not self._edge.is_quiet()) and now < self._quiet_by:
            return
        if not self._hand_over() or (in_flight and now < self._until):
            return
        if in_flight:
            self._logger.warning("calls in flight are cut off", calls=in_flight)
        server.forget_waiting()
        server.services.stop()
        server.gateway.stop()
        server.peers.stop()
        self._enter(Phase.FLUSHING, now + CLOSE_SECONDS_MAX)
        self._drained_by = now + DRAIN_SECONDS_MAX
        if not server.keeps_nothing:
            server.member.flush_soon()
        server.is_busy = True

    def _hand_over(self) -> bool:
        """Let another member lead before this one ends; return whether that is settled.

        A leader that hands over takes no proposals. It may be elected again while calls finish.
        """
        member = self._server.member
        if member.is_handing_over:
            return False
        leads = member.is_leader and not member.is_alone
        if not leads or member.term == self._handed_over_term:
            return True
        self._handed_over_term = member.term
        hand_over(member)
        self._server.is_busy = True
        return False

    def _flush(self, now: float) -> None:
        server = self._server
        member = server.member
        is_flushing = member.backend.is_flushing or member.out.jobs or server.jobs_under_way
        # Clients take their last answers meanwhile; a slow one is not waited for long.
        is_draining = not self._edge.is_drained() and now < self._drained_by
        if (is_flushing or is_draining) and now < self._until:
            return
        self._enter(Phase.CLOSING, now + CLOSE_SECONDS_MAX)
        self.look_at = now
        member.close()

    def _close(self, now: float) -> None:
        """Wait for the last jobs; one that ends may start another."""
        server = self._server
        if (server.member.out.jobs or server.jobs_under_way) and now < self._until:
            self.look_at = now + CLOSE_LOOK_SECONDS
        else:
            if server.calls.access is not None:
                server.calls.access.flush()
            server.phase = Phase.ENDED

    def _enter(self, phase: Phase, until: float) -> None:
        self._server.phase, self._until = phase, until
