"""Describe the request in a log entry: its kind, for filters, and its content, as text and JSON.

This includes requests of etcd's version 2, which 3.5 still wrote about the cluster itself.
"""

from datetime import UTC, datetime
from typing import Any, NamedTuple

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from kvorum.api.codec import read_varint
from kvorum.api.pb.etcdserverpb import InternalRaftRequest
from kvorum.api.pb.raftpb import ConfChange, ConfChangeType, Entry, EntryType
from kvorum.tools.cli.text import quoted
from kvorum.tools.utl.dumps.prototext import prototext
from kvorum.tools.utl.dumps.secrets import remove_secrets

CONFIG_CHANGE, NORMAL = "ConfigChange", "Normal"
V2_REQUEST, INTERNAL_REQUEST = "Request", "InternalRaftRequest"
# Words of --entry-type for single kinds of requests, with the fields that hold these requests.
REQUESTS = {
    "IRRRange": "range",
    "IRRPut": "put",
    "IRRDeleteRange": "delete_range",
    "IRRTxn": "txn",
    "IRRCompaction": "compaction",
    "IRRLeaseGrant": "lease_grant",
    "IRRLeaseRevoke": "lease_revoke",
    "IRRLeaseCheckpoint": "lease_checkpoint",
}

_METHOD, _PATH, _VALUE, _TIME = 2, 3, 4, 15
_PATH_SHOWN, _VALUE_SHOWN = 64, 128
_NANOSECONDS = 1_000_000_000
_UNREADABLE = "???"


class Described(NamedTuple):
    """The description of an entry."""

    words: frozenset[str]
    """The words of --entry-type that select the entry."""
    type: str
    """The type's name in dumps: `norm` or `conf`."""
    text: str
    shown: dict[str, Any]
    """The content for JSON; empty if it cannot be read."""
    data: bytes
    """The data, without secrets."""


def describe(entry: Entry) -> Described:
    """Describe an entry; invalid data does not make this fail."""
    data = entry.Data
    if entry.Type != EntryType.EntryNormal:
        return _change(entry)
    fields = _v2_fields(data)
    if fields is not None:
        words = frozenset((NORMAL, V2_REQUEST))
        return Described(words, "norm", _v2_text(fields), {"v2_request": _v2_shown(fields)}, data)
    try:
        request = InternalRaftRequest.FromString(data)
    except DecodeError:
        return Described(frozenset((NORMAL,)), "norm", _UNREADABLE, {}, data)
    if remove_secrets(request):
        data = request.SerializeToString()
    kinds = [word for word, field in REQUESTS.items() if request.HasField(field)]
    words = frozenset((NORMAL, INTERNAL_REQUEST, *kinds))
    shown = {"request": MessageToDict(request, preserving_proto_field_name=True)}
    return Described(words, "norm", prototext(request), shown, data)


def _change(entry: Entry) -> Described:
    words = frozenset((CONFIG_CHANGE,))
    try:
        if entry.Type != EntryType.EntryConfChange:
            raise DecodeError("changes of several members at once, which no etcd makes")
        change = ConfChange.FromString(entry.Data)
    except DecodeError:
        return Described(words, "conf", _UNREADABLE, {}, entry.Data)
    method, node = ConfChangeType.Name(change.type), change.node_id
    shown = {"change": {"method": method, "id": node, "context": change.context}}
    return Described(words, "conf", f"method={method} id={node:x}", shown, entry.Data)


def _v2_fields(data: bytes) -> dict[int, int | bytes] | None:
    """Return the fields of a request of version 2; None if the data is another request.

    A request of version 2 begins with an id, followed by the method, in a field that later requests
    do not have.
    """
    found: dict[int, int | bytes] = {}
    offset = 0
    try:
        while offset < len(data):
            tag, offset = read_varint(data, offset)
            value, offset = read_varint(data, offset)
            if len(found) < 2 and tag != (0x08, 0x12)[len(found)]:
                return None
            if tag & 7 == 2:
                if offset + value > len(data):
                    return None
                found[tag >> 3] = data[offset : offset + value]
                offset += value
            elif tag & 7 == 0:
                found[tag >> 3] = value
            else:
                return None
    except (IndexError, ValueError):
        return None
    return found if len(found) >= 2 else None


def _v2_bytes(fields: dict[int, int | bytes], number: int) -> bytes:
    value = fields.get(number, b"")
    return value if isinstance(value, bytes) else b""


def _v2_text(fields: dict[int, int | bytes]) -> str:
    method, path = _v2_bytes(fields, _METHOD), _v2_bytes(fields, _PATH)
    name = method.decode("utf-8", "backslashreplace")
    if not method:
        return "noop"
    if method == b"SYNC":
        return f"method=SYNC time={quoted(_time_text(fields.get(_TIME, 0)))}"
    shown = f"method={name} path={_excerpt(path, _PATH_SHOWN, _PATH_SHOWN)}"
    if method in (b"QGET", b"DELETE"):
        return shown
    return f"{shown} val={_excerpt(_v2_bytes(fields, _VALUE), _VALUE_SHOWN, 0)}"


def _v2_shown(fields: dict[int, int | bytes]) -> dict[str, Any]:
    return {
        "method": _v2_bytes(fields, _METHOD).decode("utf-8", "backslashreplace"),
        "path": _v2_bytes(fields, _PATH).decode("utf-8", "backslashreplace"),
        "value": _v2_bytes(fields, _VALUE),
    }


def _excerpt(data: bytes, beginning: int, end: int) -> str:
    """Quote bytes; long ones only at their beginning and end."""
    if beginning + end > len(data):
        return quoted(data)
    return f"{quoted(data[:beginning])}...{quoted(data[len(data) - end :])}"


def _time_text(value: int | bytes) -> str:
    nanoseconds = value if isinstance(value, int) else 0
    seconds, rest = divmod(nanoseconds - (nanoseconds >> 63 << 64), _NANOSECONDS)
    try:
        moment = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError):
        return f"{seconds} s after 1970"
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{moment}{fraction} +0000 UTC"
