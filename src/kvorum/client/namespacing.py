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


def key_into(prefix: bytes, key: bytes) -> bytes:
    """Return a key as the server knows it; raises KeyEmptyError, as the server would."""
    if not key:
        raise KeyEmptyError(EMPTY_KEY.code, EMPTY_KEY.text)
    return prefix + key


def end_into(prefix: bytes, end: bytes) -> bytes:
    """Return the end of a range with the prefix; a range without end ends with the namespace."""
    if not end:
        return end
    return prefix_end(prefix) if end == ALL else prefix + end


def request_into(prefix: bytes, path: str, message: bytes) -> bytes:
    """Return a request with the prefix before all of its keys."""
    if path not in _REQUESTS:
        return message
    kind, change = _REQUESTS[path]
    request = kind.FromString(message)
    change(prefix, request)
    changed: bytes = request.SerializeToString()
    return changed


def answer_from(prefix: bytes, path: str, answer: bytes) -> bytes:
    """Return an answer without the prefix before its keys."""
    if path not in _ANSWERS:
        return answer
    kind, change = _ANSWERS[path]
    response = kind.FromString(answer)
    change(prefix, response)
    changed: bytes = response.SerializeToString()
    return changed


def changes_from(prefix: bytes, changes: Changes) -> Changes:
    """Return a watch's changes without the prefix before their keys."""
    size = len(prefix)
    return changes._replace(events=[_event_from(size, each) for each in changes.events])


def _event_from(size: int, event: Event) -> Event:
    previous = None if event.previous is None else _kv_from(size, event.previous)
    return Event(event.kind, _kv_from(size, event.kv), previous)


def _kv_from(size: int, kv: KeyValue) -> KeyValue:
    return kv._replace(key=kv.key[size:])


# Requests.


def _put_into(prefix: bytes, request: Any) -> None:
    request.key = key_into(prefix, request.key)


def _range_into(prefix: bytes, request: Any) -> None:
    request.key = key_into(prefix, request.key)
    request.range_end = end_into(prefix, request.range_end)


def _txn_into(prefix: bytes, request: Any) -> None:
    for compare in request.compare:
        _range_into(prefix, compare)
    for step in (*request.success, *request.failure):
        name = step.WhichOneof("request")
        if name is not None:
            _STEPS[name](prefix, getattr(step, name))


_STEPS: dict[str, Callable[[bytes, Any], None]] = {
    "request_put": _put_into,
    "request_range": _range_into,
    "request_delete_range": _range_into,
    "request_txn": _txn_into,
}
_REQUESTS: dict[str, tuple[Any, Callable[[bytes, Any], None]]] = {
    rpcs.PUT.path: (pb.PutRequest, _put_into),
    rpcs.RANGE.path: (pb.RangeRequest, _range_into),
    rpcs.RANGE_STREAM.path: (pb.RangeRequest, _range_into),
    rpcs.DELETE_RANGE.path: (pb.DeleteRangeRequest, _range_into),
    rpcs.TXN.path: (pb.TxnRequest, _txn_into),
}


# Answers.


def _cut(prefix: bytes, kvs: Any) -> None:
    for kv in kvs:
        kv.key = kv.key[len(prefix) :]


def _put_from(prefix: bytes, response: Any) -> None:
    if response.HasField("prev_kv"):
        _cut(prefix, [response.prev_kv])


def _range_from(prefix: bytes, response: Any) -> None:
    _cut(prefix, response.kvs)


def _stream_from(prefix: bytes, response: Any) -> None:
    _range_from(prefix, response.range_response)


def _delete_from(prefix: bytes, response: Any) -> None:
    _cut(prefix, response.prev_kvs)


def _txn_from(prefix: bytes, response: Any) -> None:
    for each in response.responses:
        name = each.WhichOneof("response")
        if name is not None:
            _RESULTS[name](prefix, getattr(each, name))


def _lease_from(prefix: bytes, response: Any) -> None:
    """Cut the prefix off a lease's keys, and drop its keys outside the namespace."""
    keys = [key[len(prefix) :] for key in response.keys if key.startswith(prefix)]
    del response.keys[:]
    response.keys.extend(keys)


_RESULTS: dict[str, Callable[[bytes, Any], None]] = {
    "response_put": _put_from,
    "response_range": _range_from,
    "response_delete_range": _delete_from,
    "response_txn": _txn_from,
}
_ANSWERS: dict[str, tuple[Any, Callable[[bytes, Any], None]]] = {
    rpcs.PUT.path: (pb.PutResponse, _put_from),
    rpcs.RANGE.path: (pb.RangeResponse, _range_from),
    rpcs.RANGE_STREAM.path: (pb.RangeStreamResponse, _stream_from),
    rpcs.DELETE_RANGE.path: (pb.DeleteRangeResponse, _delete_from),
    rpcs.TXN.path: (pb.TxnResponse, _txn_from),
    rpcs.LEASE_TIME_TO_LIVE.path: (pb.LeaseTimeToLiveResponse, _lease_from),
}
