"""The KV service: it reads from the store and proposes changes.

A request in canonical encoding is proposed in the bytes it came in; any other is encoded again,
because a log entry must mean the same to every member.
"""

from google.protobuf.message import DecodeError

from kvorum.api import errors
from kvorum.api.errors import Status, StatusError
from kvorum.api.pb.etcdserverpb import (
    CompactionRequest,
    DeleteRangeRequest,
    PutRequest,
    RangeRequest,
    TxnRequest,
)
from kvorum.api.requests import (
    Range,
    Txn,
    delete_range_of,
    parse_delete_range,
    parse_put,
    parse_range,
    parse_txn,
    parse_txn_slices,
    put_of,
    range_of,
    txn_of,
    txn_of_slices,
)
from kvorum.api.responses import RANGE_KVS, range_stream_response, repeated
from kvorum.api.wire import field_runs, parse_message
from kvorum.member.counters import PIECE
from kvorum.member.member import Member
from kvorum.member.parts import Part
from kvorum.member.waits import (
    FlushedTo,
    Propose,
    Read,
    ReadIndex,
    Send,
    Signal,
    Signalled,
    Steps,
)
from kvorum.server.rpc import checks
from kvorum.server.rpc.interface import OK, RpcOutput, canonical
from kvorum.state.apply.callers import Caller, current
from kvorum.state.apply.permissions import is_outdated, read_refusal
from kvorum.state.apply.ranges import range_answer, range_options, range_response
from kvorum.state.apply.requests import COMPACTION, DELETE_RANGE, PUT, TXN
from kvorum.state.apply.results import Result
from kvorum.state.apply.results import Slices as AnswerSlices
from kvorum.state.apply.state import State
from kvorum.state.apply.transactions import put_cost, read_txn
from kvorum.state.mvcc.keyvalue import key_of
from kvorum.state.mvcc.ranges import UNLIMITED, RangeOptions, RangeResult, SortTarget, reply_body
from kvorum.state.mvcc.slices import Slices
from kvorum.storage.backend.quota import PUT_BYTES


class KeyValueService:
    """Serves the calls of KV; `Services` has a fast path for plain requests."""

    def __init__(self, member: Member, edge: RpcOutput, operations_max: int) -> None:
        self._member = member
        self._edge = edge
        self._operations_max = operations_max
        self.waiting_bytes = 0
        """Bytes of transactions that are being parsed and checked."""

    def range(self, call: int, caller: Caller, payload: bytes) -> Result | None:
        """Read a range."""
        request = parse_range(payload) or range_of(parse_message(RangeRequest, payload))
        if (status := checks.check_range(request)) is not None:
            return status
        is_linearizable = not request.serializable
        self._member.replica.read(
            call, caller, range_response, request, linearizable=is_linearizable
        )
        return None

    def put(self, call: int, caller: Caller, payload: bytes) -> Result | None:
        """Put a key."""
        put = parse_put(payload)
        if put is None:
            message = parse_message(PutRequest, payload)
            payload, put = canonical(message), put_of(message)
        cost = PUT_BYTES + len(put.key) + len(put.value)
        if (status := self._member.replica.check_quota(cost) or checks.check_put(put)) is not None:
            return status
        self._member.replica.propose(call, caller, PUT, payload, put)
        return None

    def delete_range(self, call: int, caller: Caller, payload: bytes) -> Result | None:
        """Delete a range."""
        request = parse_delete_range(payload)
        if request is None:
            message = parse_message(DeleteRangeRequest, payload)
            payload, request = canonical(message), delete_range_of(message)
        if (status := checks.check_delete_range(request)) is not None:
            return status
        self._member.replica.propose(call, caller, DELETE_RANGE, payload, request)
        return None

    def txn(self, call: int, caller: Caller, payload: bytes) -> Result | None:
        """Run a transaction: propose it, unless it only reads."""
        if len(payload) > self._member.config.limits.txn_slice_bytes:
            self.waiting_bytes += len(payload)
            self._member.start(call, caller, self._long_txn(call, caller, payload))
            return None
        txn = parse_txn(payload)
        if txn is None:
            message = parse_message(TxnRequest, payload)
            payload, txn = canonical(message), txn_of(message)
        cost = put_cost(txn)
        if cost and (status := self._member.replica.check_quota(cost)) is not None:
            return status
        if (status := checks.check_txn(txn, self._operations_max)) is not None:
            return status
        self._begin_txn(call, caller, payload, txn, cost)
        return None

    def _long_txn(self, call: int, caller: Caller, payload: bytes) -> Steps:
        """Parse and check a transaction in slices, and then run it like any other."""
        size, limits = len(payload), self._member.config.limits
        try:
            message: TxnRequest | None = None
            txn = yield from parse_txn_slices(payload, limits.txn_slice_bytes)
            if txn is None:
                message = TxnRequest()
                for run in field_runs(payload, limits.txn_slice_bytes):
                    message.MergeFrom(parse_message(TxnRequest, run))
                    # One compare above the limit is enough for the refusal.
                    del message.compare[self._operations_max + 1 :]
                    yield None
                txn = yield from txn_of_slices(message)
            cost = put_cost(txn)
            if cost and (status := self._member.replica.check_quota(cost)) is not None:
                return status
            status = yield from checks.check_txn_slices(
                txn, self._operations_max, limits.slice_keys
            )
        except DecodeError as error:
            return errors.unparsable_request(str(error))
        finally:
            self.waiting_bytes -= size
        if status is None:
            # Encode again only after the checks: a million operations take long.
            payload = payload if message is None else canonical(message)
            self._begin_txn(call, caller, payload, txn, cost)
        return status

    def _begin_txn(self, call: int, caller: Caller, payload: bytes, txn: Txn, cost: int) -> None:
        if not cost and checks.is_read_only(txn):
            linearizable = not checks.is_serializable(txn)
            self._member.replica.read(call, caller, read_txn, txn, linearizable=linearizable)
        else:
            self._member.replica.propose(call, caller, TXN, payload, txn)

    def compact(self, call: int, caller: Caller, payload: bytes) -> Result | None:
        """Compact; with `physical`, answer once the revisions are gone from the disk."""
        message = parse_message(CompactionRequest, payload)
        if message.physical:
            # Earlier compactions run first, for as long as they take.
            self._edge.mark_waiting(call)
            self._member.start(call, caller, _compact_physically(self._member, message))
        else:
            self._member.replica.propose(call, caller, COMPACTION, canonical(message), message)
        return None


def _compact_physically(member: Member, message: CompactionRequest) -> Steps:
    answer: Result = yield Propose(COMPACTION, canonical(message), message)
    if isinstance(answer, bytes) or answer == errors.COMPACTED:
        # Wait for this compaction only: later ones might follow without end.
        compacted = member.state.store.compacted_revision
        while not member.state.store.compaction.is_done(compacted):
            yield Signalled(Signal.COMPACTED)
        yield FlushedTo(member.state.applied)
    return answer


class RangeStreams:
    """Serves RangeStream: a range at one revision, in pieces that each fit a message."""

    def __init__(self, member: Member) -> None:
        self._member = member
        member.counters.kinds[_ranged] = PIECE

    def begin(self, caller: Caller, payload: bytes) -> Steps | Status:
        """Check a request and return the procedure that answers it."""
        request = parse_range(payload) or range_of(parse_message(RangeRequest, payload))
        return checks.check_range_stream(request) or _range_stream(self._member, caller, request)


def _range_stream(member: Member, caller: Caller, request: Range) -> Steps:
    refusal: Status | None = None if request.serializable else (yield ReadIndex())
    caller = current(member.state, caller)
    refusal = refusal or read_refusal(member.state, caller, request.key, request.range_end)
    if refusal is not None:
        return refusal
    options = range_options(request)
    if options.limit < 0 or options.sort_target != SortTarget.KEY:
        # Send one piece: only a sort of all keys shows where a second one begins.
        answer: Result = yield Read(_whole, options)
        if isinstance(answer, Status):
            return answer
        yield Send(range_stream_response(answer))
        return _end(member, caller)
    try:
        revision = member.state.store.revision
        header = member.state.header.field(revision)
        options = options._replace(revision=member.state.store.readable(options.revision))
        if options.count_only:
            counted = yield from _read(options)
            yield Send(range_stream_response(header + reply_body(counted)))
            return _end(member, caller)
        wanted = options.limit if options.limit > 0 else UNLIMITED
        size, sent = member.config.limits.range_stream_first_keys, 0
        while True:
            options = options._replace(limit=min(size, wanted - sent))
            found = yield from _read(options)
            sent += len(found.kvs)
            body = repeated(RANGE_KVS, found.kvs)
            if not found.more or sent == wanted:
                count = sent - len(found.kvs) + found.count
                total = RangeResult([], count, found.more, revision)
                yield Send(range_stream_response(header + body + reply_body(total)))
                return _end(member, caller)
            yield Send(range_stream_response(body))
            options = options._replace(key=key_of(found.kvs[-1]) + b"\0")
            size = _next_size(size, len(body), member.config.request_bytes_max)
    except StatusError as error:
        return error.status


def _end(member: Member, caller: Caller) -> Status:
    """Return the final status: AUTH_OLD_REVISION if users or roles changed meanwhile, else OK."""
    return errors.AUTH_OLD_REVISION if is_outdated(member.state, caller) else OK


def _read(options: RangeOptions) -> Part[RangeResult]:
    found: RangeResult | Status = yield Read(_ranged, options)
    if isinstance(found, Status):
        raise StatusError(found)
    return found


def _ranged(state: State, _caller: Caller, options: RangeOptions) -> Slices[RangeResult]:
    return state.store.range_slices(options)


def _whole(state: State, _caller: Caller, options: RangeOptions) -> AnswerSlices:
    return range_answer(state, options)


def _next_size(size: int, piece_bytes: int, request_bytes_max: int) -> int:
    """Return how many keys to put into the next piece, given the size of the last one."""
    if piece_bytes < request_bytes_max // 2:
        return size * 2
    return max(1, size // 2) if piece_bytes > request_bytes_max * 2 else size
