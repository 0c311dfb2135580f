"""The graceful shutdown of a server: finish calls, transfer the leadership, flush, close the files.

The edge asks clients to open no more calls. The server answers calls that still arrive until every
client has confirmed, and the last call has its answer. It waits for clients that do not confirm for
one election timeout, and at least a second. Then it transfers the leadership, ends the streams,
flushes all applied entries to the disk, and closes the files.

The phases follow two rules. A phase is never entered twice: the server only moves on. And only the
transitions of the table happen; anything else is a bug, and stops the server. `make diagrams` draws
the table in docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final

from kvorum.member.leadership_transfer import transfer_leadership
from kvorum.member.procedures import Exclusive

if TYPE_CHECKING:
    from kvorum.server.interface import Logger, ServerEdge
    from kvorum.server.server import Server

DRAIN_SECONDS_MAX: Final = 1.0
"""How long clients have at least to confirm the shutdown, and at most to read the last answers."""
CLOSE_SECONDS_MAX: Final = 10.0
CLOSE_CHECK_SECONDS: Final = 0.01


class ServerPhase(Enum):
    """The phase of a server's life."""

    SERVING = "takes calls"
    DRAINING = "finishes the calls in flight"
    FLUSHING = "brings to the disk what is applied; clients get no more answers"
    CLOSING = "closes the files; the member takes no turn any more"
    ENDED = "everything is closed"


class PhaseEnd(Enum):
    """What ends a phase of a server's life."""

    SHUTDOWN_REQUESTED = "a signal, or the cluster removed this member a second ago"
    CALLS_FINISHED = "every client has confirmed and every call has its answer, or time is up"
    STATE_FLUSHED = "the flush is durable and clients have read their answers, or time is up"
    FILES_CLOSED = "the last job has ended, or time is up"


TRANSITIONS: Final[Mapping[ServerPhase, Mapping[PhaseEnd, ServerPhase]]] = {
    ServerPhase.SERVING: {PhaseEnd.SHUTDOWN_REQUESTED: ServerPhase.DRAINING},
    ServerPhase.DRAINING: {PhaseEnd.CALLS_FINISHED: ServerPhase.FLUSHING},
    ServerPhase.FLUSHING: {PhaseEnd.STATE_FLUSHED: ServerPhase.CLOSING},
    ServerPhase.CLOSING: {PhaseEnd.FILES_CLOSED: ServerPhase.ENDED},
    ServerPhase.ENDED: {},
}
"""The next phase, by the current one and what ends it."""


def next_phase(phase: ServerPhase, end: PhaseEnd) -> ServerPhase:
    """Return the phase that follows; only transitions of the table may happen."""
    following = TRANSITIONS[phase].get(end)
    assert following is not None, f"the phase {phase.name} does not end with {end.name}"
    return following


class Shutdown:
    """Shuts a server down, phase by phase, one step a turn."""

    __slots__ = (
        "_drained_by",
        "_edge",
        "_logger",
        "_quiet_by",
        "_server",
        "_transfer_term",
        "_until",
        "check_at",
    )

    def __init__(self, server: Server, edge: ServerEdge, logger: Logger) -> None:
        self._server = server
        self._edge = edge
        self._logger = logger
        # The last term in which this member, as leader, started a transfer.
        self._transfer_term = 0
        self._until = self._quiet_by = self._drained_by = 0.0
        self.check_at = 0.0
        """When to check again, while the member closes its files."""

    def begin(self, now: float) -> None:
        """Start the shutdown, unless it has started."""
        if self._server.phase is ServerPhase.SERVING:
            config = self._server.member.config
            self._quiet_by = now + max(DRAIN_SECONDS_MAX, config.election_seconds)
            self._enter_next(PhaseEnd.SHUTDOWN_REQUESTED, now + config.request_seconds_max)
            self._edge.drain()

    def advance(self, now: float) -> None:
        """Take the steps that are possible now."""
        if self._server.phase is ServerPhase.DRAINING:
            self._drain(now)
        elif self._server.phase is ServerPhase.FLUSHING:
            self._flush(now)
        elif self._server.phase is ServerPhase.CLOSING:
            self._close(now)

    def _drain(self, now: float) -> None:
        server = self._server
        in_flight = len(server.calls.unary) + len(server.front.open) + server.waiting
        # A leader takes no proposals during a transfer, and a client that has not confirmed the
        # shutdown may still call: so give clients and their calls a moment first.
        if (in_flight or not self._edge.is_quiet()) and now < self._quiet_by:
            return
        if not self._transfer_leadership() or (in_flight and now < self._until):
            return
        if in_flight:
            self._logger.warning("calls in flight are cut off", calls=in_flight)
        server.forget_waiting()
        server.services.stop()
        server.gateway.stop()
        server.peers.stop()
        self._enter_next(PhaseEnd.CALLS_FINISHED, now + CLOSE_SECONDS_MAX)
        self._drained_by = now + DRAIN_SECONDS_MAX
        if not server.keeps_nothing:
            server.member.replica.flush_soon()
        server.is_busy = True

    def _transfer_leadership(self) -> bool:
        """Transfer the leadership before this member stops; return whether nothing is left to do.

        A leader takes no proposals during a transfer. This member may be elected again while calls
        finish, and then transfers the leadership once more.
        """
        member = self._server.member
        if member.procedures.is_running(Exclusive.TRANSFER):
            return False
        leads = member.is_leader and not member.is_alone
        if not leads or member.term == self._transfer_term:
            return True
        self._transfer_term = member.term
        transfer_leadership(member)
        self._server.is_busy = True
        return False

    def _flush(self, now: float) -> None:
        server = self._server
        member = server.member
        is_flushing = member.state.backend.is_flushing or member.out.jobs or server.jobs_under_way
        # Clients read their last answers meanwhile, for at most `DRAIN_SECONDS_MAX`.
        is_draining = not self._edge.is_drained() and now < self._drained_by
        if (is_flushing or is_draining) and now < self._until:
            return
        self._enter_next(PhaseEnd.STATE_FLUSHED, now + CLOSE_SECONDS_MAX)
        self.check_at = now
        member.close()

    def _close(self, now: float) -> None:
        """Wait for the last jobs; the end of a job may start another."""
        server = self._server
        if (server.member.out.jobs or server.jobs_under_way) and now < self._until:
            self.check_at = now + CLOSE_CHECK_SECONDS
        else:
            if server.calls.access is not None:
                server.calls.access.flush()
            self._enter_next(PhaseEnd.FILES_CLOSED, now)

    def _enter_next(self, end: PhaseEnd, until: float) -> None:
        """Enter the next phase, which lasts until some moment at most."""
        self._server.phase = next_phase(self._server.phase, end)
        self._until = until
