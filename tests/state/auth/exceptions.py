"""Where we do not answer as etcd does, or where etcd cannot be asked: one table, with reasons.

A row says whether a request concerns it; such a request is made of neither server. What we answer
to it is tested by itself. Numbers are those of the reference of differences between etcd 3.5.1 and
3.7, which lets more pass: there the rows about it apply, too.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from kvorum.api.pb import etcdserverpb as pb
from tests.etcd import is_target
from tests.server.rpc import differences
from tests.state.auth.asking import HEALTH


class Excepted(NamedTuple):
    """A kind of requests that cannot be compared."""

    reason: str
    concerns: Callable[[str, Any, str], bool]
    """Gets the name of a call, its request, and the user who makes it."""


def _ends_etcd(name: str, request: Any, _user: str) -> bool:
    return differences.not_asked(name, request) is not None


def _is_inverted(_name: str, request: Any, user: str) -> bool:
    return user != "root" and has_inverted_range(request)


def has_inverted_range(request: Any) -> bool:
    """Return whether a range ends where it begins, or before, at any depth of a request."""
    if isinstance(request, pb.TxnRequest):
        operations = [
            getattr(each, kind)
            for each in (*request.success, *request.failure)
            if (kind := each.WhichOneof("request"))
        ]
        return any(map(has_inverted_range, (*request.compare, *operations)))
    if isinstance(request, pb.WatchRequest):
        return has_inverted_range(request.create_request)
    end: bytes = getattr(request, "range_end", b"")
    if isinstance(request, pb.AuthRoleRevokePermissionRequest) or end in (b"", b"\0"):
        return False
    key: bytes = request.key
    return end <= key


def _named(*names: str) -> Callable[[str, Any, str], bool]:
    return lambda name, _request, _user: name in names


def _is_half_checked(_name: str, request: Any, _user: str) -> bool:
    if not isinstance(request, pb.TxnRequest):
        return False
    operations = (*request.success, *request.failure)
    return any(
        each.HasField("request_txn") or each.request_put.lease or each.request_put.prev_kv
        for each in operations
    )


def _has_odd_range(_name: str, request: Any, _user: str) -> bool:
    if not isinstance(request, pb.AuthRoleGrantPermissionRequest) or not request.HasField("perm"):
        return False
    key, end = request.perm.key, request.perm.range_end
    return not key or (end not in (b"", b"\0") and end <= key)


def _has_long_password(_name: str, request: Any, _user: str) -> bool:
    return len(getattr(request, "password", "").encode()) > 72


def _is_root_shown(_name: str, request: Any, _user: str) -> bool:
    return isinstance(request, pb.AuthRoleGetRequest) and request.role == "root"


ROWS = (
    Excepted("an etcd does not survive it", _ends_etcd),
    Excepted("permission depends on the shape of etcd's tree of grants", _is_inverted),
)
OLD_ROWS = (
    Excepted("1.5, 10.8: there is no such call", _named("KV/RangeStream", HEALTH + "List")),
    Excepted("2.5 to 2.9: refused otherwise", _named("Watch/Watch")),
    Excepted("5.1, 5.2, and what a put in a transaction reads: not checked", _is_half_checked),
    Excepted(
        "5.3, 5.4: not checked",
        _named("Lock/Lock", "Election/Campaign", "Election/Proclaim", "Election/Resign"),
    ),
    Excepted("5.5 to 5.8: not checked", lambda name, _request, _user: name.startswith("Lease/")),
    Excepted("5.9, 5.10: not checked", _named("KV/Compact", "Cluster/MemberList")),
    Excepted(
        "5.11 to 5.15: not checked, or refused in other words",
        lambda name, _request, _user: name.startswith("Maintenance/"),
    ),
    Excepted("5.16: refused to those who may know", _named("Auth/AuthStatus")),
    Excepted("6.1, 6.2: stored", _has_odd_range),
    Excepted("6.3: what is stored is shown", _is_root_shown),
    Excepted("6.4: cut at its end", _has_long_password),
)


def is_excepted(name: str, request: Any, user: str) -> bool:
    """Return whether nothing can be compared."""
    rows = ROWS if is_target() else ROWS + OLD_ROWS
    return any(row.concerns(name, request, user) for row in rows)
