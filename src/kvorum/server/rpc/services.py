"""Dispatch a batch of calls from the edge to the member, and its answers back.

`serve` and `take_event` take requests and events from the edge, `deliver` gives the edge the
answers; between the two the member has its turn. The services send a refusal at once, and an answer
that needs the log or the cluster when the member has it. Plain puts and reads, which are most of
the calls, take a fast path: no message object, and few function calls.

Every call passes the same checks before its service sees it: a learner serves few RPCs, and a
client may require that this member knows a leader. While authentication is enabled, `Admission`
must admit the call; otherwise the services ignore tokens.

An unforeseen error in parsing or checking a call ends that call with INTERNAL (see
`kvorum.api.boundary`). A service therefore proposes last: an error after that stops the member,
because nothing can withdraw the proposal.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final

from google.protobuf.message import DecodeError

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.requests import decode_range, parse_put, parse_range
from kvorum.member.member import Member
from kvorum.member.outbox import Reply
from kvorum.network.edge.interface import EdgeEventKind, Event, Metadata, Request
from kvorum.server.rpc.admission import Admission
from kvorum.server.rpc.interface import STREAM_PENDING_BYTES_MAX, RpcOutput, Streams, Unary
from kvorum.server.rpc.streams import ServerStreams
from kvorum.server.rpc.table import GATEWAY_KEY, NUMBERS, RPCS, Handlers, Learner
from kvorum.server.rpc.undecided import AwaitingToken
from kvorum.state.apply import requests as kinds
from kvorum.state.apply.callers import Front, Origin
from kvorum.state.apply.ranges import range_response
from kvorum.storage.backend.quota import PUT_BYTES

READS_WAITING_MAX: Final = 10_000
TXN_BYTES_WAITING_MAX: Final = 32 * 1024 * 1024
"""How many reads, and bytes of long transactions, may wait here; more wait at the edge."""

LEADERLESS_CHECKS_MAX: Final = 3
"""A stream that requires a leader ends after this many election timeouts without one."""

_OPENED: Final = int(EdgeEventKind.OPENED)
_MESSAGE: Final = int(EdgeEventKind.MESSAGE)
_HALF_CLOSED: Final = int(EdgeEventKind.HALF_CLOSED)
_ENDED: Final = int(EdgeEventKind.ENDED)
_WRITABLE: Final = int(EdgeEventKind.WRITABLE)

_RANGE: Final = NUMBERS["/etcdserverpb.KV/Range"]
_PUT: Final = NUMBERS["/etcdserverpb.KV/Put"]


class Services:
    """The v3 services of one member, in front of one edge."""

    def __init__(
        self,
        member: Member,
        edge: RpcOutput,
        *,
        operations_max: int,
        origin: Origin,
        client_cert_identifies_user: bool,
        stops_for_defragmentation: bool,
    ) -> None:
        """Serve a member; with `client_cert_identifies_user`, client certificates identify users.

        With `stops_for_defragmentation` the health service reports NOT_SERVING during a
        defragmentation.
        """
        self._member = member
        self._clock = member.clock
        self._limits = member.config.limits
        self._stopwatch = member.counters.stopwatch
        self._edge = edge
        handlers = Handlers(
            member,
            edge,
            operations_max,
            stops_for_defragmentation=stops_for_defragmentation,
        )
        self._key_values, self._keep_alives = handlers.kv, handlers.keep_alives
        # Both by method number.
        self._unary: dict[int, Unary] = {}
        self._streams: dict[int, Streams] = {}
        for number, rpc in enumerate(RPCS):
            if rpc.unary is not None:
                self._unary[number] = rpc.unary(handlers)
            elif rpc.streams is not None:
                self._streams[number] = rpc.streams(handlers, member)
        self._answers = [each for each in self._streams.values() if isinstance(each, ServerStreams)]
        self.undecided: AwaitingToken[Request | Event] = AwaitingToken()
        """The calls that wait because this member cannot verify their token yet."""
        self._admission = Admission(
            member,
            Front.GRPC,
            origin,
            self.undecided,
            client_cert_identifies_user=client_cert_identifies_user,
        )
        self._gateway = Admission(
            member, Front.GATEWAY, origin, self.undecided, client_cert_identifies_user=False
        )
        self._is_deciding = False
        self.caller = self._admission.nobody
        """The caller of all calls over gRPC while authentication is disabled."""
        self.identified: Callable[[int, str], None] | None = None
        """Called with each call and its user, after authentication; the access log sets it."""
        # The method and the metadata of each open stream: every message is authenticated.
        self._opened_with: dict[int, tuple[int, Metadata | None]] = {}
        self._open: dict[int, Streams] = {}
        # Streams whose client requires a leader, and how many checks in a row found none.
        self._requiring: dict[int, None] = {}
        self._leaderless = 0
        self._leader_check_at = 0.0
        self._ends: list[tuple[int, Status]] = []

    # Requests and events from the edge.

    def serve(self, requests: Sequence[Request], deadline: float) -> int:
        """Take requests in their order, until the deadline; return how many.

        Services answer at once where they can, and hand the other requests to the member.
        """
        served, count = 0, self._limits.requests_per_clock_check
        while served < len(requests):
            some = requests[served : served + count]
            served += self._serve_requests(some, deadline)
            if self._clock() >= deadline:
                break
        return served

    def take_event(self, kind: int, call: int, detail: Any) -> None:
        """Take an event of a stream, or of a waiting call; `end_batch` must follow."""
        if call in self.undecided:
            if kind == _ENDED:
                self.undecided.drop(call)
            elif self.undecided.add(call, (kind, call, detail), len(detail) if detail else 0):
                return
            else:
                self._decide(call)
        try:
            if kind == _OPENED:
                self._opened(call, *detail)
            elif call in self._open:
                self._serve_event(kind, call, detail)
            elif kind == _ENDED:
                self._member.cancel(call)
        except Exception as error:
            self._event_failed(kind, call, detail, error)

    def end_batch(self) -> None:
        """Send the immediate answers to a batch's events, and end the streams that finished."""
        self._keep_alives.deliver()
        if self._ends:
            ends, self._ends = self._ends, []
            for call, status in ends:
                self._edge.finish(call, status)

    @property
    def has_decided(self) -> bool:
        """Whether `serve_decided` has calls to serve."""
        member = self._member
        return bool(self.undecided) and bool(self.undecided.due(member.state.applied, member.now))

    def serve_decided(self) -> None:
        """Serve the waiting calls whose token can be verified now, or that have waited too long."""
        for call in self.undecided.due(self._member.state.applied, self._member.now):
            self._decide(call)
        self.end_batch()

    def _decide(self, call: int) -> None:
        """Serve the queued items of a call, verifying its token now."""
        self._is_deciding = True
        for item in self.undecided.drop(call):
            if len(item) == 3:
                self.take_event(*item)
            else:
                self._serve_requests([item], inf)
        self._is_deciding = False

    @property
    def room(self) -> tuple[int, int]:
        """How many calls, and how many bytes of them, to take from the edge at most.

        If either is 0 or less, take none.
        """
        return (
            READS_WAITING_MAX - len(self._member.replica.ready_reads),
            TXN_BYTES_WAITING_MAX - self._key_values.waiting_bytes,
        )

    def _serve_requests(self, requests: Sequence[Request], deadline: float) -> int:
        """Serve requests, checking the clock after each off the fast path; return how many."""
        member, unary, clock = self._member, self._unary, self._clock
        propose, read, check_quota = (
            member.replica.propose,
            member.replica.read,
            member.replica.check_quota,
        )
        is_learner, is_guarded = member.is_learner, member.state.auth.is_enabled
        over_grpc, nobody = self._admission, self.caller
        put_cost, put_kind = PUT_BYTES, kinds.PUT
        replies: list[Reply] = []
        served = 0
        for call, method, payload, metadata in requests:
            served += 1
            admission, caller = over_grpc, nobody
            try:
                if metadata is not None or is_learner:
                    if metadata is not None and GATEWAY_KEY in metadata:
                        admission = self._gateway
                        caller = admission.nobody
                    refusal = self._refusal(metadata, is_learner, method, payload)
                    if refusal is not None:
                        replies.append((call, refusal))
                        continue
                if is_guarded:
                    admitted = admission.admit(call, method, metadata, is_last=self._is_deciding)
                    if admitted is None:
                        self._edge.mark_waiting(call)
                        waiting = (call, method, payload, metadata)
                        self.undecided.add(call, waiting, len(payload))
                        continue
                    if isinstance(admitted, Status):
                        replies.append((call, admitted))
                        continue
                    caller = admitted
                    if self.identified is not None:
                        self.identified(call, caller.user)
                if method == _PUT:
                    put = parse_put(payload)
                    # `KeyValues.put` checks puts that keep the value or the lease.
                    if put is not None and not (put.ignore_value or put.ignore_lease):
                        status = check_quota(put_cost + len(put.key) + len(put.value))
                        if status is None:
                            propose(call, caller, put_kind, payload, put)
                        else:
                            replies.append((call, status))
                        continue
                elif method == _RANGE:
                    request = parse_range(payload)
                    # `parse_range` rejects an empty key; only a sort order needs another check.
                    if request is not None and not (request.sort_order or request.sort_target):
                        is_linearizable = not request.serializable
                        read(call, caller, range_response, request, linearizable=is_linearizable)
                        continue
                result = unary[method](call, caller, payload)
            except DecodeError as error:
                result = errors.unparsable_request(str(error))
            except Exception as error:
                result = self._request_failed(call, method, payload, error)
            if result is not None:
                replies.append((call, result))
            if clock() >= deadline:
                break
        if replies:
            self._edge.reply(replies)
        return served

    def _request_failed(self, call: int, method: int, payload: bytes, error: Exception) -> Status:
        """End a call whose service raised an unforeseen error."""
        proposals = self._member.replica.proposals
        if proposals.ids and proposals.pending[proposals.ids[-1]][0] == call:
            raise error
        what = f"{RPCS[method].path} of {self.caller.describe(call)}"
        sent = b"" if RPCS[method].is_secret else payload
        self._member.boundary.take(error, "call", what, sent)
        self._member.cancel(call)
        return errors.INTERNAL

    def _refusal(
        self, metadata: Metadata | None, is_learner: bool, method: int, payload: bytes = b""
    ) -> Status | None:
        """Return the status that refuses a call whatever its content; None if none does."""
        if is_learner and not _is_for_learners(method, payload):
            return errors.NOT_SUPPORTED_FOR_LEARNER
        if metadata is None:
            return None
        version = metadata.get("client-api-version")
        if version is not None:
            try:
                version.decode()
            except UnicodeDecodeError:
                return errors.INVALID_CLIENT_API_VERSION
        if metadata.get("hasleader") == b"true" and not self._member.leader:
            return errors.NO_LEADER
        return None

    def _opened(self, call: int, method: int, metadata: Metadata | None) -> None:
        status = self._refusal(metadata, self._member.is_learner, method)
        if status is not None:
            self._edge.finish(call, status)
            return
        if metadata is not None and metadata.get("hasleader") == b"true":
            self._requiring[call] = None
        handler = self._streams[method]
        self._open[call] = handler
        self._opened_with[call] = (method, metadata)
        handler.open_stream(call)

    def _serve_event(self, kind: int, call: int, detail: bytes | None) -> None:
        handler = self._open[call]
        status = None
        if kind == _MESSAGE:
            assert detail is not None
            method, metadata = self._opened_with[call]
            admission = self._admission
            if metadata is not None and GATEWAY_KEY in metadata:
                admission = self._gateway
            caller = admission.nobody
            if self._member.state.auth.is_enabled:
                admitted = admission.admit(call, method, metadata, is_last=self._is_deciding)
                if admitted is None:
                    self.undecided.add(call, (kind, call, detail), len(detail))
                    return
                if isinstance(admitted, Status):
                    status = admitted
                else:
                    caller = admitted
                    if self.identified is not None:
                        self.identified(call, caller.user)
            try:
                if status is None:
                    status = handler.take_message(call, caller, detail)
            except DecodeError as error:
                status = errors.unparsable_message(str(error))
        elif kind == _HALF_CLOSED:
            status = handler.take_half_close(call)
        elif kind == _WRITABLE:
            handler.resume_stream(call)
        elif kind == _ENDED:
            self._forget(call)
        if status is not None:
            self._finish(call, status)

    def _event_failed(self, kind: int, call: int, detail: object, error: Exception) -> None:
        """End a stream whose service raised an unforeseen error."""
        if kind == _ENDED:
            # Nothing was parsed, so the stream's cleanup failed.
            raise error
        sent = detail if isinstance(detail, bytes) else str(detail)
        what = f"a stream of {self.caller.describe(call)}"
        self._member.boundary.take(error, "call", what, sent)
        if call in self._open:
            self._finish(call, errors.INTERNAL)
        else:
            self._edge.finish(call, errors.INTERNAL)

    def _finish(self, call: int, status: Status) -> None:
        """End a stream after the current batch, so that its earlier answers are sent first."""
        self._forget(call)
        self._ends.append((call, status))

    def _forget(self, call: int) -> None:
        self._requiring.pop(call, None)
        self._opened_with.pop(call, None)
        if call in self.undecided:
            self.undecided.drop(call)
        self._open.pop(call).end_stream(call)

    # Answers to the edge.

    def deliver(self, now: float) -> None:
        """Give the edge the member's answers; called after each of the member's turns."""
        out, edge = self._member.out, self._edge
        sends = out.take_sends()
        if sends:
            began = self._stopwatch()
            edge.send(sends)
            self._member.hub.counters.sent(self._stopwatch() - began, len(sends))
            streams = self._open
            for call in {call: None for call, _ in sends}:
                if call in streams and edge.pending_bytes(call) >= STREAM_PENDING_BYTES_MAX:
                    streams[call].pause_stream(call)
        replies = out.take_replies()
        if replies:
            if self._open:
                replies = self._end_streams(replies)
            edge.reply(replies)
        if now >= self._leader_check_at:
            self._check_leader(now)
        self.end_batch()

    def _end_streams(self, replies: list[Reply]) -> list[Reply]:
        """End the streams whose procedures have ended; return the replies to unary calls."""
        streams = self._open
        ends = [reply for reply in replies if reply[0] in streams]
        if not ends:
            return replies
        unary = [reply for reply in replies if reply[0] not in streams]
        for call, result in ends:
            if isinstance(result, Status):
                self._finish(call, result)
        return unary

    def _check_leader(self, now: float) -> None:
        """End the streams that require a leader, if there has been none for a while.

        Also end the streams that hold a resource and whose clients have read nothing for too long.
        """
        member = self._member
        self._leader_check_at = now + member.config.election_seconds
        self._leaderless = 0 if member.leader else self._leaderless + 1
        if self._leaderless >= LEADERLESS_CHECKS_MAX:
            for call in list(self._requiring):
                self._finish(call, errors.NO_LEADER)
        for answers in self._answers:
            for call in answers.overdue(now):
                self._finish(call, errors.TIMEOUT)

    def stop(self) -> None:
        """End every stream, because the server stops; the member answers its unary calls.

        Calls that wait for the verification of their token get no answer.
        """
        for call in list(self._open):
            self._finish(call, errors.STOPPED)
        self.end_batch()
        self.undecided.clear()


def _is_for_learners(method: int, payload: bytes) -> bool:
    """Return whether a learner serves a call; true if the payload cannot be decoded."""
    learner = RPCS[method].learner
    if learner is not Learner.SERVES_STALE:
        return learner is Learner.SERVES
    try:
        return decode_range(payload).serializable
    except DecodeError:
        return True
