"""What Apache APISIX sends, call by call: its command line first, then its workers.

The workers use `lua-resty-etcd` 1.10 over `lua-resty-http` 0.17, whose habits these bodies have:
every field of a read is sent, enumerations as numbers, operations of a transaction in camel case,
slashes escaped, no content type. The command line uses LuaSocket, which asks for trailers and
closes each connection. What stands between dollar signs is taken from an earlier answer.
"""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

PREFIX = "/apisix/"
USER, PASSWORD = "gateway", "secret"
LEASE, TOKEN = "$ID$", "$token$"
WORKER = ("User-Agent: lua-resty-http/0.17.2 (Lua) ngx_lua/10027", "Accept:", "Content-Type:")
COMMAND_LINE = (
    "User-Agent: LuaSocket 3.0.0",
    "Connection: close, TE",
    "TE: trailers",
    "Accept:",
    "Content-Type:",
)


@dataclass(frozen=True)
class Call:
    """One request."""

    path: str
    body: str | None = ""
    """None in a GET."""
    headers: tuple[str, ...] = WORKER
    captures: tuple[str, ...] = field(default=())
    """The fields of the answer that later calls send back."""


def encoded(text: str) -> str:
    """Return a key or a value as JSON carries it."""
    return base64.b64encode(text.encode()).decode()


def end_of(prefix: str) -> str:
    """Return the end of the range of keys with a prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _text(body: dict[str, Any]) -> str:
    return json.dumps(body, separators=(",", ":")).replace("/", "\\/")


def _put(key: str, value: object, **options: object) -> str:
    return _text({"key": encoded(key), "value": encoded(json.dumps(value)), **options})


def _range(key: str, end: str | None = None) -> str:
    zeros = ("limit", "revision", "sort_order", "sort_target")
    bounds = ("min_mod_revision", "max_mod_revision", "min_create_revision", "max_create_revision")
    return _text(
        {
            "key": encoded(key),
            **({} if end is None else {"range_end": encoded(end)}),
            **dict.fromkeys(zeros, 0),
            **dict.fromkeys(("serializable", "keys_only", "count_only"), False),
            **dict.fromkeys(bounds, 0),
        }
    )


def _directory(key: str) -> str:
    return _range(key, end_of(key))


def _delete(key: str, end: str | None = None, **options: object) -> str:
    ending = {} if end is None else {"range_end": encoded(end)}
    return _text({"key": encoded(key), **ending, **options})


def _create(key: str, value: object) -> str:
    compare = {"target": "CREATE", "key": encoded(key), "createRevision": 0}
    put = {"key": encoded(key), "value": encoded(json.dumps(value))}
    return _text({"compare": [compare], "success": [{"requestPut": put}]})


def _update(key: str, value: object) -> str:
    compare = {"target": "CREATE", "key": encoded(key), "createRevision": 0}
    put = {"key": encoded(key), "value": encoded(json.dumps(value))}
    return _text({"compare": [compare], "failure": [{"requestPut": put}]})


def _swap(key: str, value: object, mod_revision: int) -> str:
    compare = {
        "key": encoded(key),
        "target": "MOD",
        "result": "EQUAL",
        "mod_revision": mod_revision,
    }
    put = {"key": encoded(key), "value": encoded(json.dumps(value)), "lease": LEASE}
    return _text({"compare": [compare], "success": [{"requestPut": put}]})


def watch(start_revision: int) -> str:
    """Return the request of the one watch that each worker has."""
    create = {
        "key": encoded(PREFIX),
        "range_end": encoded(end_of(PREFIX)),
        "start_revision": start_revision,
    }
    return _text({"create_request": create})


def start_up() -> Iterator[Call]:
    """Return what its command line does before the workers start."""
    yield Call("/version", None, COMMAND_LINE)
    for name in ("routes", "services", "upstreams"):
        text = f'{{"value":"{encoded("init_dir")}", "key":"{encoded(PREFIX + name + "/")}"}}'
        yield Call("/v3/kv/put", text, COMMAND_LINE)


def work() -> Iterator[Call]:
    """Return what workers and the Admin API do, at revision 4."""
    route = f"{PREFIX}routes/1"
    yield Call("/version", None)
    yield Call("/v3/kv/range", _range(PREFIX))
    yield Call("/v3/kv/range", _directory(f"{PREFIX}routes"))
    yield Call("/v3/kv/range", _directory(f"{PREFIX}missing"))
    yield Call("/v3/kv/put", _put(route, {"uri": "/a?b=<c>"}, prev_kv=True))
    yield Call("/v3/kv/put", _put(route, {"uri": "/\u00e9"}, prev_kv=True))
    yield Call("/v3/kv/range", _range(route))
    yield Call("/v3/lease/grant", '{"TTL":100,"ID":0}', captures=("ID",))
    yield Call("/v3/kv/put", _put(f"{PREFIX}data_plane/x", {}, lease=LEASE, prev_kv=True))
    yield Call("/v3/kv/lease/timetolive", _text({"ID": LEASE, "keys": True}))
    yield Call("/v3/kv/lease/timetolive", _text({"ID": LEASE, "keys": False}))
    yield Call("/v3/lease/keepalive", _text({"ID": LEASE}))
    yield Call("/v3/lease/leases")
    yield Call("/v3/kv/txn", _create(f"{PREFIX}routes/2", {"n": 1}))
    yield Call("/v3/kv/txn", _create(f"{PREFIX}routes/2", {"n": 2}))
    yield Call("/v3/kv/txn", _update(f"{PREFIX}routes/2", {"n": 3}))
    yield Call("/v3/kv/txn", _update(f"{PREFIX}routes/3", {"n": 3}))
    yield Call("/v3/kv/txn", _swap(route, {"n": 4}, 6))
    yield Call("/v3/kv/txn", _swap(route, {"n": 5}, 6))
    yield Call("/v3/kv/range", _directory(f"{PREFIX}routes/"))
    yield Call("/v3/kv/deleterange", _delete(f"{PREFIX}routes/2", prev_kv=True))
    yield Call("/v3/kv/deleterange", _delete(f"{PREFIX}routes/2"))
    yield Call("/v3/kv/deleterange", _delete(f"{PREFIX}services", end_of(f"{PREFIX}services")))
    yield Call("/v3/kv/lease/revoke", _text({"ID": LEASE}))
    yield Call("/v3/kv/lease/timetolive", _text({"ID": LEASE, "keys": True}))
    yield Call("/v3/lease/keepalive", _text({"ID": LEASE}))
    yield Call("/v3/kv/put", _put(route, {}, lease=LEASE))
    yield Call("/v3/kv/lease/revoke", _text({"ID": LEASE}))
    yield Call("/v3/kv/range", _directory(PREFIX))


def enable_authentication() -> Iterator[Call]:
    """Return what an operator does once, with a user of APISIX and one for all else."""
    permission = {
        "permType": "READWRITE",
        "key": encoded(PREFIX),
        "range_end": encoded(end_of(PREFIX)),
    }
    yield Call("/v3/auth/role/add", _text({"name": "keys"}))
    yield Call("/v3/auth/role/grant", _text({"name": "keys", "perm": permission}))
    for user, role in (("root", "root"), (USER, "keys")):
        yield Call("/v3/auth/user/add", _text({"name": user, "password": PASSWORD}))
        yield Call("/v3/auth/user/grant", _text({"user": user, "role": role}))
    yield Call("/v3/auth/enable", "{}")


def work_with_a_user() -> Iterator[Call]:
    """Return what changes when users are asked for a password."""
    route = f"{PREFIX}routes/1"
    yield Call("/v3/auth/authenticate", _text({"name": USER, "password": "wrong"}))
    yield Call("/v3/kv/range", _range(route))
    yield Call(
        "/v3/auth/authenticate",
        json.dumps({"name": USER, "password": PASSWORD}),
        COMMAND_LINE,
        captures=("token",),
    )
    worker = (*WORKER, f"Authorization: {TOKEN}")
    yield Call("/version", None, worker)
    yield Call("/v3/kv/range", _directory(PREFIX), worker)
    yield Call("/v3/kv/put", _put(route, {}, prev_kv=True), worker)
    yield Call("/v3/kv/put", _put("/elsewhere", {}), worker)
    yield Call("/v3/kv/range", _range("/elsewhere"), worker)
    yield Call("/v3/kv/range", _range(route), (*WORKER, "Authorization: stale.7"))
