"""A debug line about each unary call: `request stats`, with etcd's text and fields.

Enabled only at `--log-level debug`, because it keeps each request until its answer. Values are left
out.
"""

import time
from collections.abc import Callable, Sequence

from google.protobuf.message import DecodeError, Message
from google.protobuf.text_format import MessageToString

from kvorum.api.durations import seconds_text
from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import (
    DeleteRangeRequest,
    DeleteRangeResponse,
    PutRequest,
    RangeRequest,
    RangeResponse,
    TxnRequest,
    TxnResponse,
)
from kvorum.network.edge.interface import Request
from kvorum.server.rpc.table import NUMBERS, RPCS
from kvorum.server.telemetry.access import Clients
from kvorum.server.telemetry.logs import Logger, time_text

CONTENT_CHARACTERS_MAX = 4096
_KV = "/etcdserverpb.KV/"
_RANGE, _PUT, _DELETE, _TXN = (
    NUMBERS[_KV + name] for name in ("Range", "Put", "DeleteRange", "Txn")
)
NOBODY = "No remote client info."

Stats = tuple[int, int, int, int, str]
"""Number and bytes of what the request contains, the same for the answer, the request as text."""


class RequestStats:
    """Receives the beginning and end of unary calls, and logs each."""

    def __init__(self, clients: Clients, logger: Logger, clock: Callable[[], float]) -> None:
        self._clients = clients
        self._logger = logger
        self._clock = clock
        self._calls: dict[int, tuple[int, bytes, float, float]] = {}

    def receive(self, requests: Sequence[Request]) -> None:
        """Record calls that arrived."""
        began, now = time.time(), self._clock()
        for call, method, payload, _ in requests:
            self._calls[call] = (method, payload, began, now)

    def forget(self, call: int) -> None:
        """Forget a call whose client left."""
        self._calls.pop(call, None)

    def reply(self, batch: Sequence[tuple[int, bytes | Status]]) -> None:
        """Log a line for each answer."""
        for call, result in batch:
            found = self._calls.pop(call, None)
            if found is None:
                continue
            method, payload, began, started = found
            stats = stats_of(method, payload, result if isinstance(result, bytes) else None)
            fields: dict[str, object] = {
                "start time": time_text(began),
                "time spent": seconds_text(self._clock() - started),
                "remote": self._clients.remote(call) or NOBODY,
                "response type": RPCS[method].path,
                "request count": stats[0],
                "request size": stats[1],
                "response count": stats[2],
                "response size": stats[3],
                "request content": stats[4],
            }
            self._logger.write("debug", "request stats", fields, depth=1)


def stats_of(method: int, payload: bytes, answer: bytes | None) -> Stats:
    """Return etcd's statistics of a call on keys.

    Other calls, failed transactions and malformed requests get -1 and no text.
    """
    size = 0 if answer is None else len(answer)
    try:
        if method == _RANGE:
            text, count = _text(RangeRequest.FromString(payload)), 0
            if answer is not None:
                count = RangeResponse.FromString(answer).count
            return 0, len(payload), count, size, text
        if method == _PUT:
            return 1, len(payload), 0, size, _text(_without_value(PutRequest.FromString(payload)))
        if method == _DELETE:
            text, count = _text(DeleteRangeRequest.FromString(payload)), 0
            if answer is not None:
                count = DeleteRangeResponse.FromString(answer).deleted
            return 0, len(payload), count, size, text
        if method == _TXN and answer is not None:
            request = TxnRequest.FromString(payload)
            is_success = TxnResponse.FromString(answer).succeeded
            operations = request.success if is_success else request.failure
            done = len(operations), sum(each.ByteSize() for each in operations)
            return *done, 0, size, _text(_without_values(request))
    except DecodeError:
        pass
    return -1, -1, -1, -1, ""


def _text(message: Message) -> str:
    return MessageToString(message, as_one_line=True)[:CONTENT_CHARACTERS_MAX]


def _without_value(request: PutRequest) -> PutRequest:
    request.value = f"<{len(request.value)} bytes>".encode()
    return request


def _without_values(request: TxnRequest) -> TxnRequest:
    for compare in request.compare:
        if compare.WhichOneof("target_union") == "value":
            compare.value = f"<{len(compare.value)} bytes>".encode()
    for each in (*request.success, *request.failure):
        if each.HasField("request_put"):
            _without_value(each.request_put)
        elif each.HasField("request_txn"):
            _without_values(each.request_txn)
    return request
