"""The log line about a slow unary request: its content, and the time of each step.

The line is etcd's `request stats`, with etcd's names for the fields that etcd has. It shows
truncated keys, and never values. The content is looked up while the request is in flight and about
to become slow, so that nothing need be kept for all other requests.

After a pause, thousands of requests are slow at once for the same reason. Because a line costs more
than a request, logging all of them would make the pause several times as long. So at most
`LINES_MAX` are logged in a second, and the others are counted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from google.protobuf.message import DecodeError

from kvorum.api.codec import read_varint
from kvorum.api.durations import SECOND, duration_text
from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import ResponseHeader
from kvorum.api.requests import DeleteRange, Operation, Put, Range, Txn
from kvorum.member.member import Member
from kvorum.member.reads import Read
from kvorum.server.rpc.table import RPCS
from kvorum.server.telemetry.counting import PROPOSAL_FAILURES
from kvorum.server.telemetry.logs import time_text
from kvorum.server.telemetry.milestones import Milestones, Step, Way

KEY_BYTES_MAX: Final = 64
OPERATIONS_SHOWN_MAX: Final = 4
"""Bytes of a key, and operations of a transaction, that a line shows."""

LINES_MAX: Final = 20
"""Requests logged per second, of those that ended and of those still in flight each."""
LINES_SECONDS: Final = 1.0

_HEADER_TAG: Final = 0x0A
_READS: Final = frozenset({"/etcdserverpb.KV/Range"})
_WRITES: Final = frozenset(
    {
        "/etcdserverpb.KV/Put",
        "/etcdserverpb.KV/DeleteRange",
        "/etcdserverpb.KV/Txn",
        "/etcdserverpb.KV/Compact",
        "/etcdserverpb.Lease/LeaseGrant",
        "/etcdserverpb.Lease/LeaseRevoke",
    }
)


class Logger(Protocol):
    """Logs lines with named fields."""

    def warning(self, message: str, /, **fields: object) -> None:
        """Log a warning."""


class SlowRequests:
    """Logs slow requests when they end."""

    def __init__(
        self,
        member: Member,
        milestones: Milestones,
        remote: Callable[[int], str],
        logger: Logger,
        slow_seconds: float,
    ) -> None:
        """Log requests slower than `slow_seconds`; `remote` returns the client of a call."""
        self._member = member
        self._milestones = milestones
        self._remote = remote
        self._logger = logger
        self._slow_seconds = slow_seconds
        # The kind and content of requests that may become slow, as far as known.
        self._contents: dict[int, tuple[Way, object]] = {}
        self._until = 0.0
        """The end of the second for which lines are counted."""
        self._ended_logged = self._waiting_logged = 0
        self._left_out = 0
        """Slow requests that ended in this second and were not logged."""

    def remember(self, calls: Mapping[int, float]) -> None:
        """Look up the content of these calls, and forget all others."""
        contents = {call: self._contents[call] for call in calls if call in self._contents}
        for waiter, _, _, request, _, _ in self._member.replica.proposals.pending.values():
            if isinstance(waiter, int) and waiter in calls:
                contents[waiter] = Way.WRITE, request
        for waiter, _, _, request, _ in _reads_in_flight(self._member):
            if isinstance(waiter, int) and waiter in calls:
                contents[waiter] = Way.READ, request
        self._contents = contents

    def log_if_slow(
        self, call: int, method: int, arrived: float, result: bytes | Status | None
    ) -> bool:
        """Log a call that ends now, if it was slow; return whether it was logged.

        A call without a result is one whose client left.
        """
        member = self._member
        now = member.clock()
        rpc = RPCS[method]
        way, request = self._contents.pop(call, (way_of(rpc.path), None))
        if now - arrived <= self._slow_seconds or rpc.waits_for_others:
            return False
        self._begin_second(now)
        if self._ended_logged == LINES_MAX:
            self._left_out += 1
            return False
        self._ended_logged += 1
        try:
            self._log_request(call, rpc.path, (arrived, now), result, way, request)
        except Exception as error:
            member.boundary.take(error, "call", "the line about a slow request")
            return False
        return True

    def tick(self, now: float, overdue: Sequence[tuple[int, int]]) -> None:
        """Log calls that have become slow in flight, and how many others were not logged."""
        self._begin_second(now)
        for call, method in overdue:
            rpc = RPCS[method]
            if not rpc.waits_for_others and self._waiting_logged < LINES_MAX:
                self._waiting_logged += 1
                self._logger.warning(
                    "slow request is still in flight", method=rpc.path, remote=self._remote(call)
                )

    def _begin_second(self, now: float) -> None:
        """Reset the counts if the counted second is over, after logging how many were left out."""
        if now >= self._until:
            if self._left_out:
                self._logger.warning("slow requests were not logged", count=self._left_out)
            self._until = now + LINES_SECONDS
            self._ended_logged = self._waiting_logged = self._left_out = 0

    def _log_request(
        self,
        call: int,
        path: str,
        moments: tuple[float, float],
        result: bytes | Status | None,
        way: Way,
        request: object,
    ) -> None:
        member, (arrived, now) = self._member, moments
        is_done = isinstance(result, bytes) or (
            result is not None and result not in PROPOSAL_FAILURES
        )
        fields: dict[str, object] = {
            "start time": time_text(member.seams.wall_clock() - (now - arrived)),
            "time spent": _span(now - arrived),
            "remote": self._remote(call),
            "response type": path,
        }
        if isinstance(result, bytes):
            fields["response size"] = len(result)
        if request is not None:
            fields["request content"] = content(request)
        if isinstance(result, bytes):
            fields["revision"] = revision(result)
        else:
            fields["error"] = "the client went away" if result is None else result.text
        steps = self._milestones.steps(way, arrived, now, is_done=is_done)
        self._logger.warning("request stats", **fields, steps=steps_text(steps))


def _reads_in_flight(member: Member) -> Iterator[Read]:
    yield from member.replica.reads.in_flight()
    yield from member.replica.ready_reads
    yield from member.replica.long_reads.in_flight()


def way_of(path: str) -> Way:
    """Return the kind of steps that a method usually takes."""
    if path in _READS:
        return Way.READ
    return Way.WRITE if path in _WRITES else Way.OTHER


def steps_text(steps: list[Step]) -> dict[str, str]:
    """Return the duration of each step."""
    return {name: _span(ended - began) for name, began, ended in steps}


def _span(seconds: float) -> str:
    """Return a duration in Go's notation, rounded to microseconds."""
    return duration_text(round(seconds * 1e6) * (SECOND // 1_000_000))


def content(request: object) -> str:
    """Return a request's content as text of bounded length, without values."""
    if isinstance(request, Put):
        text = f"{_key('key', request.key)} value_size:{len(request.value)}"
        return f"{text} lease:{request.lease}" if request.lease else text
    if isinstance(request, Range):
        parts = [_keys(request.key, request.range_end)]
        parts += [f"limit:{request.limit}"] if request.limit else []
        parts += [f"revision:{request.revision}"] if request.revision else []
        for name in ("serializable", "keys_only", "count_only"):
            parts += [f"{name}:true"] if getattr(request, name) else []
        return " ".join(parts)
    if isinstance(request, DeleteRange):
        return _keys(request.key, request.range_end)
    if isinstance(request, Txn):
        compares = [
            _keys(each.key, each.range_end) for each in request.compares[:OPERATIONS_SHOWN_MAX]
        ]
        parts = [f"compare:<{text}>" for text in compares]
        for name, operations in (("success", request.success), ("failure", request.failure)):
            parts += [f"{name}:<{_operation(each)}>" for each in operations[:OPERATIONS_SHOWN_MAX]]
        lengths = len(request.compares), len(request.success), len(request.failure)
        if max(lengths) > OPERATIONS_SHOWN_MAX:
            parts.append(f"lengths:<{','.join(map(str, lengths))}>")
        return " ".join(parts)
    return type(request).__name__


def revision(response: bytes) -> int:
    """Return the revision in the header of a response; 0 if it has none."""
    if not response or response[0] != _HEADER_TAG:
        return 0
    length, start = read_varint(response, 1)
    try:
        return ResponseHeader.FromString(response[start : start + length]).revision
    except DecodeError:
        return 0  # the first field is no header


def shown(key: bytes) -> str:
    """Return a key as text, truncated to `KEY_BYTES_MAX`."""
    text = key[:KEY_BYTES_MAX].decode("utf-8", "backslashreplace")
    return text if len(key) <= KEY_BYTES_MAX else f"{text}… ({len(key)} bytes)"


def _key(name: str, key: bytes) -> str:
    return f'{name}:"{shown(key)}"'


def _keys(key: bytes, range_end: bytes) -> str:
    text = _key("key", key)
    return f"{text} {_key('range_end', range_end)}" if range_end else text


def _operation(operation: Operation) -> str:
    # The content of a nested transaction is left out, because its length has no bound.
    return "txn" if isinstance(operation, Txn) else content(operation)
