"""Show entries of a database: as text, in the words of etcd-dump-db, and as objects for JSON.

An entry that cannot be decoded is shown as it is stored, so that it does not hide others.
"""

import json
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from kvorum.api.pb.authpb import Permission, Role, User
from kvorum.api.pb.leasepb import Lease
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.storage.backend.buckets import (
    AUTH,
    AUTH_REVISION,
    AUTH_ROLES,
    AUTH_USERS,
    CONF_STATE,
    CONSISTENT_INDEX,
    FINISHED_COMPACT_REVISION,
    KEY,
    LEASE,
    META,
    SCHEDULED_COMPACT_REVISION,
    TERM,
)
from kvorum.storage.backend.encoding import parse_row_key
from kvorum.tools.cli.text import quoted
from kvorum.tools.utl.dumps.prototext import prototext
from kvorum.tools.utl.dumps.secrets import user_without_secrets

Shown = dict[str, Any]

_SUB_BITS = 31


def stored_text(bucket: bytes, key: bytes, value: bytes) -> str:
    """Return an entry as it is stored, without secrets, as text."""
    return f"key={quoted(key)}, value={quoted(_safe(bucket, value))}"


def stored_object(bucket: bytes, key: bytes, value: bytes) -> Shown:
    """Return an entry as it is stored, without secrets, as an object."""
    return {"key": key, "value": _safe(bucket, value)}


def decoded_text(bucket: bytes, key: bytes, value: bytes) -> str:
    """Return the decoded entry as text."""
    decode = _TEXTS.get(bucket)
    try:
        return stored_text(bucket, key, value) if decode is None else decode(key, value)
    except (ValueError, DecodeError):
        return stored_text(bucket, key, value)


def decoded_object(bucket: bytes, key: bytes, value: bytes) -> Shown:
    """Return the decoded entry as an object."""
    decode = _OBJECTS.get(bucket)
    try:
        return stored_object(bucket, key, value) if decode is None else decode(key, value)
    except (ValueError, DecodeError):
        return stored_object(bucket, key, value)


def row_text(key: bytes, value: bytes) -> str:
    """Return a row of bucket `key` as text; raise ValueError or DecodeError if it is invalid."""
    main, sub, is_tombstone = _revision(key)
    kv = KeyValue.FromString(value)
    tombstone = "true" if is_tombstone else "false"
    return (
        f"rev={{Revision:{{Main:{main} Sub:{sub}}} tombstone:{tombstone}}}, "
        f"value=[key {quoted(kv.key)} | val {quoted(kv.value)} | created {kv.create_revision} "
        f"| mod {kv.mod_revision} | ver {kv.version}]"
    )


def row_object(key: bytes, value: bytes) -> Shown:
    """Return a row of bucket `key` as an object; raise ValueError or DecodeError if invalid."""
    main, sub, is_tombstone = _revision(key)
    kv = KeyValue.FromString(value)
    return {
        "main": main,
        "sub": sub,
        "tombstone": is_tombstone,
        "key": kv.key,
        "value": kv.value,
        "create_revision": kv.create_revision,
        "mod_revision": kv.mod_revision,
        "version": kv.version,
        "lease": kv.lease,
    }


def _safe(bucket: bytes, value: bytes) -> bytes:
    return user_without_secrets(value) if bucket == AUTH_USERS else value


def _revision(key: bytes) -> tuple[int, int, bool]:
    revision = parse_row_key(key)
    return revision >> 32, revision >> 1 & (1 << _SUB_BITS) - 1, bool(revision & 1)


def _number(value: bytes) -> int:
    if len(value) != 8:
        raise ValueError(f"{value.hex()} is no number of 8 bytes")
    return int.from_bytes(value, "big")


def _lease_text(key: bytes, value: bytes) -> str:
    lease = Lease.FromString(value)
    return f"lease ID={_number(key):016x}, TTL={lease.TTL}s, remaining TTL={lease.RemainingTTL}s"


def _lease_object(key: bytes, value: bytes) -> Shown:
    lease = Lease.FromString(value)
    return {"id": _number(key), "ttl": lease.TTL, "remaining_ttl": lease.RemainingTTL}


def _auth_text(key: bytes, value: bytes) -> str:
    if key == AUTH_REVISION:
        return f"key={quoted(key)}, value={_number(value)}"
    return f"key={quoted(key)}, value=[{' '.join(map(str, value))}]"


def _auth_object(key: bytes, value: bytes) -> Shown:
    is_revision = key == AUTH_REVISION
    return {"name": _name(key), "value": _number(value) if is_revision else value == b"\1"}


def _role_text(_key: bytes, value: bytes) -> str:
    role = Role.FromString(value)
    permissions = " ".join(map(prototext, role.keyPermission))
    return f"role={quoted(role.name)}, keyPermission=[{permissions}]"


def _role_object(_key: bytes, value: bytes) -> Shown:
    role = Role.FromString(value)
    permissions = [
        {"type": Permission.Type.Name(each.permType), "key": each.key, "range_end": each.range_end}
        for each in role.keyPermission
    ]
    return {"role": _name(role.name), "permissions": permissions}


def _user_text(_key: bytes, value: bytes) -> str:
    user = User.FromString(value)
    options = prototext(user.options) if user.HasField("options") else "<nil>"
    roles = " ".join(map(quoted, user.roles))
    return f"user={quoted(user.name)}, roles=[{roles}], option={options}"


def _user_object(_key: bytes, value: bytes) -> Shown:
    user = User.FromString(value)
    return {
        "user": _name(user.name),
        "roles": list(user.roles),
        "no_password": user.options.no_password,
    }


def _meta_text(key: bytes, value: bytes) -> str:
    if key in (CONSISTENT_INDEX, TERM):
        return f"key={quoted(key)}, value={_number(value)}"
    if key in (SCHEDULED_COMPACT_REVISION, FINISHED_COMPACT_REVISION):
        main, sub, _ = _revision(value)
        return f"key={quoted(key)}, value={{{main} {sub}}}"
    return stored_text(META, key, value)


def _meta_object(key: bytes, value: bytes) -> Shown:
    meaning: Any
    if key in (CONSISTENT_INDEX, TERM):
        meaning = _number(value)
    elif key in (SCHEDULED_COMPACT_REVISION, FINISHED_COMPACT_REVISION):
        main, sub, _ = _revision(value)
        meaning = {"main": main, "sub": sub}
    else:
        meaning = json.loads(value) if key == CONF_STATE else value.decode()
    return {"name": _name(key), "value": meaning}


def _name(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


_TEXTS: dict[bytes, Callable[[bytes, bytes], str]] = {
    KEY: row_text,
    LEASE: _lease_text,
    AUTH: _auth_text,
    AUTH_ROLES: _role_text,
    AUTH_USERS: _user_text,
    META: _meta_text,
}
_OBJECTS: dict[bytes, Callable[[bytes, bytes], Shown]] = {
    KEY: row_object,
    LEASE: _lease_object,
    AUTH: _auth_object,
    AUTH_ROLES: _role_object,
    AUTH_USERS: _user_object,
    META: _meta_object,
}
