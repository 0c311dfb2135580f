"""Reduces requests of clients to operations: the values that they saw and wrote.

Values are written once in a run, so a compare of revisions says which value it expects. Deletions
that no answer reported, by a lease that ended or by a request whose answer was lost, are taken
from the history, with the moments between which they must have happened.
"""

from collections.abc import Sequence
from typing import Any

from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import (
    DeleteRangeRequest,
    PutRequest,
    RangeRequest,
    RequestOp,
    TxnRequest,
)
from kvorum.sim.history import History, Record, is_in_range
from kvorum.sim.operations import NEVER, Operation, Value
from kvorum.sim.workloads import is_clients_key
from kvorum.state.mvcc.keyvalue import key_of


def reduce_history(history: History) -> list[Operation]:
    """Return all operations of a run whose answers have been checked."""
    operations = []
    for record in history.records:
        operation = _reduce(history, record)
        if operation is not None:
            operations.append(operation)
    return operations + _unclaimed_deletions(history)


def _reduce(history: History, record: Record) -> Operation | None:
    request, response = record.request, record.response
    if not record.linearizable or isinstance(response, Status):
        return None
    if not isinstance(request, PutRequest | RangeRequest | DeleteRangeRequest | TxnRequest):
        return None
    facts = _Facts(history)
    if response is not None:
        facts.take(request, response)
        if isinstance(request, TxnRequest) and response.succeeded:
            facts.expect(record.expected)
        returned = record.returned
        assert returned is not None
    else:
        facts.expect(record.expected)
        facts.write(request)
        returned = NEVER
    observed = tuple(pair for pair in facts.observed.items() if is_clients_key(pair[0]))
    written = tuple(pair for pair in facts.written.items() if is_clients_key(pair[0]))
    if not observed and not written:
        return None
    return Operation(record.invoked, returned, observed, written, response is not None)


class _Facts:
    """The values that one request saw before it wrote, and the values that it wrote."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.observed: dict[bytes, Value] = {}
        self.written: dict[bytes, Value] = {}

    def expect(self, expected: Sequence[tuple[bytes, Value]]) -> None:
        """Add the values that the compares found."""
        for key, value in expected:
            self.observed.setdefault(key, value)

    def see(self, key: bytes, value: Value) -> None:
        """Add a value that an answer shows, unless the request wrote it itself."""
        if key not in self.written:
            self.observed[key] = value

    def take(self, request: Any, response: Any) -> None:
        """Add a request and its answer."""
        if isinstance(request, PutRequest):
            if request.prev_kv:
                has_previous = response.HasField("prev_kv")
                self.see(request.key, response.prev_kv.value if has_previous else None)
            self.written[request.key] = request.value
        elif isinstance(request, RangeRequest):
            self._take_range(request, response)
        elif isinstance(request, DeleteRangeRequest):
            for kv in response.prev_kvs:
                self.see(kv.key, kv.value)
            found = {kv.key for kv in response.prev_kvs}
            for key in self._keys(request.key, request.range_end):
                if key in found or (response.deleted and not request.prev_kv):
                    self.written[key] = None
                elif request.prev_kv or not response.deleted:
                    self.see(key, None)
        else:
            operations = request.success if response.succeeded else request.failure
            for operation, answer in zip(operations, response.responses, strict=True):
                self.take(_inner(operation), getattr(answer, answer.WhichOneof("response") or ""))

    def _take_range(self, request: RangeRequest, response: Any) -> None:
        if request.revision or request.count_only or request.keys_only:
            return
        for kv in response.kvs:
            self.see(kv.key, kv.value)
        found = {kv.key for kv in response.kvs}
        for key in self._keys(request.key, request.range_end):
            if key not in found and not (response.more and key > response.kvs[-1].key):
                self.see(key, None)

    def write(self, request: Any) -> None:
        """Add the values that a request writes if it succeeds; the history has its deletions."""
        if isinstance(request, PutRequest):
            self.written[request.key] = request.value
        elif isinstance(request, TxnRequest):
            for operation in request.success:
                self.write(_inner(operation))

    def _keys(self, key: bytes, end: bytes) -> list[bytes]:
        if not end:
            return [key]
        return [each for each in self._history.all_keys() if is_in_range(each, key, end)]


def _inner(operation: RequestOp) -> Any:
    return getattr(operation, operation.WhichOneof("request") or "")


def _unclaimed_deletions(history: History) -> list[Operation]:
    """Return the deletions that no answer reported to a client."""
    # A revision cannot be older than the invocation of any request that wrote one before it.
    invoked: dict[int, int] = {}
    claimed = set()
    for record in history.records:
        if record.wrote:
            main = record.response.header.revision
            claimed.add(main)
            invoked[main] = record.invoked
    operations = []
    earliest = 0
    for main in sorted(history.effects):
        earliest = max(earliest, invoked.get(main, 0))
        if main in claimed:
            continue
        deleted = {
            key_of(kv)
            for revision, kv in history.effects[main]
            if revision & 1 and is_clients_key(key_of(kv))
        }
        if deleted:
            written = tuple((key, None) for key in sorted(deleted))
            operations.append(Operation(earliest, history.seen_moments[main], (), written))
    return operations
