"""Keep-alive streams: the leader renews leases, at once if it is this member.

Clients keep a stream open, or open one for each renewal: both have to be cheap. The immediate
answers to a batch go to the edge together.
"""

from collections import deque
from typing import Final

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import LeaseKeepAliveRequest
from kvorum.api.requests import parse_lease_id
from kvorum.api.responses import renewed_body
from kvorum.api.wire import parse_message
from kvorum.member.leases import renew, renewal_refusal, try_renew
from kvorum.member.member import Member
from kvorum.member.waits import Send, Steps
from kvorum.server.rpc.interface import OK, RpcOutput
from kvorum.state.apply.callers import Caller
from kvorum.state.mvcc.slices import run_to_end

WAITING_MAX: Final = 10_000
"""How many requests of one stream may wait for an answer."""
UNTAKEN_BYTES_MAX: Final = 1024 * 1024
"""How many bytes of answers a client may leave unread while it sends further requests."""

Renewal = tuple[int, Caller]
"""A lease to renew, and the caller that asked."""


class KeepAliveStreams:
    """All keep-alive streams: every request gets one answer, in the order of the requests.

    If this member cannot answer a renewal at once, a procedure does; later requests of the stream
    wait for it.
    """

    def __init__(self, member: Member, edge: RpcOutput) -> None:
        self._member = member
        self._edge = edge
        # The requests that wait for each stream's procedure, None if it has no procedure. A None
        # in the queue stands for the client's half-close.
        self._waiting: dict[int, deque[Renewal | None] | None] = {}
        self._outgoing: list[tuple[int, bytes]] = []

    def open_stream(self, call: int) -> None:
        """Open a stream."""
        self._waiting[call] = None

    def take_message(self, call: int, caller: Caller, payload: bytes) -> Status | None:
        """Renew a lease."""
        lease = parse_lease_id(payload)
        if lease is None:
            lease = parse_message(LeaseKeepAliveRequest, payload).ID
        waiting = self._waiting[call]
        if waiting is not None:
            waiting.append((lease, caller))
            return errors.REQUEST_TOO_MANY_REQUESTS if len(waiting) > WAITING_MAX else None
        member = self._member
        # Make the header first: its revision must not be newer than the renewal.
        header = member.state.header.field(member.state.store.revision)
        renewed: int | None = None
        if not member.state.auth.is_enabled:
            renewed = try_renew(member, lease)
        elif member.state.lessor.key_count(lease) <= member.config.limits.slice_keys:
            if (refusal := run_to_end(renewal_refusal(member, caller, lease))) is not None:
                return refusal
            renewed = try_renew(member, lease)
        if renewed is None:
            first: Renewal | None = (lease, caller)
            waiting = self._waiting[call] = deque([first])
            member.start(call, caller, self._serve(call, waiting))
            return None
        if self._edge.pending_bytes(call) > UNTAKEN_BYTES_MAX:
            return errors.REQUEST_TOO_MANY_REQUESTS
        self._outgoing.append((call, header + renewed_body(lease, renewed)))
        return None

    def take_half_close(self, call: int) -> Status | None:
        """End the stream after its last answer."""
        waiting = self._waiting[call]
        if waiting is None:
            return OK
        waiting.append(None)
        return None

    def end_stream(self, call: int) -> None:
        """Forget a stream."""
        if self._waiting.pop(call) is not None:
            self._member.cancel(call)

    def pause_stream(self, call: int) -> None:
        """Suspend the stream's procedure."""
        self._member.hold(call)

    def resume_stream(self, call: int) -> None:
        """Resume the stream's procedure."""
        self._member.release(call)

    def deliver(self) -> None:
        """Give the edge the answers that needed no procedure."""
        if self._outgoing:
            outgoing, self._outgoing = self._outgoing, []
            self._edge.send(outgoing)

    def _serve(self, call: int, waiting: "deque[Renewal | None]") -> Steps:
        """Answer the waiting requests; then let `received` answer the stream again."""
        member = self._member
        while waiting:
            first = waiting.popleft()
            if first is None:
                return OK
            lease, caller = first
            header = member.state.header.field(member.state.store.revision)
            renewed = yield from renew(member, caller, lease)
            if isinstance(renewed, Status):
                return renewed
            yield Send(header + renewed_body(lease, renewed))
        self._waiting[call] = None
        return None
