"""Answers of two servers, made comparable: what they never have in common is masked.

The order of fields counts, and so does whether a field is there at all. The texts with which JSON
is refused are the parser's, and free; all other texts count to the letter.
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from kvorum.api import errors
from kvorum.api.errors import Code, Status
from tests.server.http.asking import Answer, Head, parsed

HEADERS = ("content-type", "grpc-metadata-content-type", "www-authenticate", "allow", "location")
CORS = "access-control-"
FREE = "(free)"
RESET = "stream terminated by RST_STREAM with error code: CANCEL"
"""What etcd says of a deadline now and then: it depends on which side of its gateway is first."""
SERVER_TEXTS = {each.text for each in vars(errors).values() if isinstance(each, Status)}


class Seen(NamedTuple):
    """What counts of an answer; its JSON as text, which has an order."""

    status: int
    headers: dict[str, str]
    values: list[str]


def headers_of(head: Head | Answer) -> dict[str, str]:
    """Return the headers that count."""
    found = {
        name: value
        for name, value in sorted(head.headers.items())
        if name in HEADERS or name.startswith(CORS)
    }
    if head.status != 200 and "grpc-metadata-trailer" in head.headers:
        # With TLS, etcd passes on more of what its services send, with errors too.
        found.pop("grpc-metadata-content-type", None)
    return found


def seen(path: str, answer: Answer) -> Seen:
    """Return what counts of the answer to a call."""
    if answer.headers.get("content-type") == "application/json":
        values = [text_of(path, parsed(each)) for each in answer.body.splitlines()]
    else:
        values = [answer.body.decode()]
    if path == "/v3/maintenance/snapshot" and answer.status == 200:
        # An image is sent in as many pieces as it needs; the last one is its hash.
        values = [values[0], values[-1]]
    return Seen(answer.status, headers_of(answer), values)


def text_of(path: str, value: Any) -> str:
    """Return an answer, or a line of one, as comparable text."""
    if "error" in value:
        _mask_refusal(value["error"])
    elif "code" in value:
        _mask_refusal(value)
    elif "result" in value:
        _mask(path, value["result"])
    else:
        _mask(path, value)
    return json.dumps(value)


def _mask_refusal(refusal: dict[str, Any]) -> None:
    if refusal["code"] == Code.INVALID_ARGUMENT and refusal["message"] not in SERVER_TEXTS:
        refusal["message"] = FREE
    refusal["message"] = settled(refusal["message"])


def settled(message: str) -> str:
    """Return the text of an error, the same whoever noticed it first."""
    return errors.CONTEXT_DEADLINE_EXCEEDED.text if message == RESET else message


def _mask(path: str, value: dict[str, Any]) -> None:
    if "raft_term" in value.get("header", ()):
        value["header"]["raft_term"] = FREE
    if path in MASKS:
        MASKS[path](value)


def _mask_status(value: dict[str, Any]) -> None:
    for name in ("dbSize", "dbSizeInUse", "raftIndex", "raftAppliedIndex", "raftTerm"):
        value[name] = FREE
    if "errors" in value:
        value["errors"].sort()


def _mask_alarms(value: dict[str, Any]) -> None:
    value.get("alarms", []).sort(key=json.dumps)


def _mask_time_to_live(value: dict[str, Any]) -> None:
    left, granted = int(value.get("TTL", "0")), int(value.get("grantedTTL", "0"))
    if left > 0:
        assert granted - 30 <= left <= granted
        value["TTL"] = FREE
    value.get("keys", []).sort()


def _mask_leases(value: dict[str, Any]) -> None:
    value.get("leases", []).sort(key=json.dumps)


def _mask_members(value: dict[str, Any]) -> None:
    for member in value.get("members", ()):
        member["clientURLs"] = FREE


def _mask_hash(value: dict[str, Any]) -> None:
    value["hash"] = FREE


def _mask_piece(value: dict[str, Any]) -> None:
    for name in value:
        value[name] = FREE


MASKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "/v3/maintenance/status": _mask_status,
    "/v3/maintenance/alarm": _mask_alarms,
    "/v3/maintenance/hash": _mask_hash,
    "/v3/maintenance/snapshot": _mask_piece,
    "/v3/lease/timetolive": _mask_time_to_live,
    "/v3/kv/lease/timetolive": _mask_time_to_live,
    "/v3/lease/leases": _mask_leases,
    "/v3/kv/lease/leases": _mask_leases,
    "/v3/cluster/member/list": _mask_members,
}
