"""A namespace: keys get a prefix on their way to the server, and lose it on their way back.

This module changes messages, so that one place covers all calls that have keys, and everything that
is built from calls works in a namespace as well.
"""

from collections.abc import Callable
from typing import Any

from kvorum.api.errors import EMPTY_KEY
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.ranges import prefix_end
from kvorum.client import rpcs
from kvorum.client.errors import KeyEmptyError
from kvorum.client.keys import ALL
from kvorum.client.values import Changes, Event, KeyValue


def prefix_key(prefix: bytes, key: bytes) -> bytes:
    """Return a key as the server knows it; raises KeyEmptyError, as the server would."""
    if not key:
        raise KeyEmptyError(EMPTY_KEY.code, EMPTY_KEY.text)
    return prefix + key


def prefix_range_end(prefix: bytes, end: bytes) -> bytes:
    """Return the end of a range with the prefix; a range without end ends with the namespace."""
    if not end:
        return end
    return prefix_end(prefix) if end == ALL else prefix + end


def prefix_request(prefix: bytes, path: str, message: bytes) -> bytes:
    """Return a request with the prefix before all of its keys."""
    if path not in _REQUESTS:
        return message
    kind, change = _REQUESTS[path]
    request = kind.FromString(message)
    change(prefix, request)
    changed: bytes = request.SerializeToString()
    return changed


def strip_answer(prefix: bytes, path: str, answer: bytes) -> bytes:
    """Return an answer without the prefix before its keys."""
    if path not in _ANSWERS:
        return answer
    kind, change = _ANSWERS[path]
    response = kind.FromString(answer)
    change(prefix, response)
    changed: bytes = response.SerializeToString()
    return changed


def strip_changes(prefix: bytes, changes: Changes) -> Changes:
    """Return a watch's changes without the prefix before their keys."""
    size = len(prefix)
    return changes._replace(events=[_strip_event(size, each) for each in changes.events])


def _strip_event(size: int, event: Event) -> Event:
    previous = None if event.previous is None else _strip_kv(size, event.previous)
    return Event(event.kind, _strip_kv(size, event.kv), previous)


def _strip_kv(size: int, kv: KeyValue) -> KeyValue:
    return kv._replace(key=kv.key[size:])


# Requests.


def _prefix_put(prefix: bytes, request: Any) -> None:
    request.key = prefix_key(prefix, request.key)


def _prefix_range(prefix: bytes, request: Any) -> None:
    request.key = prefix_key(prefix, request.key)
    request.range_end = prefix_range_end(prefix, request.range_end)


def _prefix_txn(prefix: bytes, request: Any) -> None:
    for compare in request.compare:
        _prefix_range(prefix, compare)
    for step in (*request.success, *request.failure):
        name = step.WhichOneof("request")
        if name is not None:
            _STEPS[name](prefix, getattr(step, name))


_STEPS: dict[str, Callable[[bytes, Any], None]] = {
    "request_put": _prefix_put,
    "request_range": _prefix_range,
    "request_delete_range": _prefix_range,
    "request_txn": _prefix_txn,
}
_REQUESTS: dict[str, tuple[Any, Callable[[bytes, Any], None]]] = {
    rpcs.PUT.path: (pb.PutRequest, _prefix_put),
    rpcs.RANGE.path: (pb.RangeRequest, _prefix_range),
    rpcs.RANGE_STREAM.path: (pb.RangeRequest, _prefix_range),
    rpcs.DELETE_RANGE.path: (pb.DeleteRangeRequest, _prefix_range),
    rpcs.TXN.path: (pb.TxnRequest, _prefix_txn),
}


# Answers.


def _strip_kvs(prefix: bytes, kvs: Any) -> None:
    for kv in kvs:
        kv.key = kv.key[len(prefix) :]


def _strip_put(prefix: bytes, response: Any) -> None:
    if response.HasField("prev_kv"):
        _strip_kvs(prefix, [response.prev_kv])


def _strip_range(prefix: bytes, response: Any) -> None:
    _strip_kvs(prefix, response.kvs)


def _strip_stream(prefix: bytes, response: Any) -> None:
    _strip_range(prefix, response.range_response)


def _strip_delete(prefix: bytes, response: Any) -> None:
    _strip_kvs(prefix, response.prev_kvs)


def _strip_txn(prefix: bytes, response: Any) -> None:
    for each in response.responses:
        name = each.WhichOneof("response")
        if name is not None:
            _RESULTS[name](prefix, getattr(each, name))


def _strip_lease(prefix: bytes, response: Any) -> None:
    """Cut the prefix off a lease's keys, and drop its keys outside the namespace."""
    keys = [key[len(prefix) :] for key in response.keys if key.startswith(prefix)]
    del response.keys[:]
    response.keys.extend(keys)


_RESULTS: dict[str, Callable[[bytes, Any], None]] = {
    "response_put": _strip_put,
    "response_range": _strip_range,
    "response_delete_range": _strip_delete,
    "response_txn": _strip_txn,
}
_ANSWERS: dict[str, tuple[Any, Callable[[bytes, Any], None]]] = {
    rpcs.PUT.path: (pb.PutResponse, _strip_put),
    rpcs.RANGE.path: (pb.RangeResponse, _strip_range),
    rpcs.RANGE_STREAM.path: (pb.RangeStreamResponse, _strip_stream),
    rpcs.DELETE_RANGE.path: (pb.DeleteRangeResponse, _strip_delete),
    rpcs.TXN.path: (pb.TxnResponse, _strip_txn),
    rpcs.LEASE_TIME_TO_LIVE.path: (pb.LeaseTimeToLiveResponse, _strip_lease),
}
