"""Where etcd 3.7 answers differently from 3.5.1, if the latter is asked: one table.

Each row is a function that gets the name of a call, its request, and the answer of 3.5.1, and
returns the answer expected of us, or that same answer if it does not apply. Rows that concern
requests which an etcd does not survive are in `not_asked`. Numbers in the comments are those of the
reference of differences.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from google.protobuf.message import Message

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import (
    AlarmRequest,
    DowngradeRequest,
    HashKVResponse,
    RangeRequest,
    RangeResponse,
    TxnRequest,
    TxnResponse,
)
from tests.etcd import is_target

Answer = Message | Status
Row = Callable[[str, Any, Any], Any]


def keys_only_has_no_lease(name: str, request: Any, answer: Any) -> Any:  # 1.1
    if isinstance(answer, Status) or name not in ("KV/Range", "KV/Txn"):
        return answer
    expected = deepcopy(answer)
    if name == "KV/Range":
        _strip_leases(request, expected)
    else:
        _strip_leases_in_txn(request, expected)
    return expected


def _strip_leases(request: RangeRequest, response: RangeResponse) -> None:
    if request.keys_only and request.sort_target != RangeRequest.VALUE:
        for kv in response.kvs:
            kv.lease = 0


def _strip_leases_in_txn(request: TxnRequest, response: TxnResponse) -> None:
    branch = request.success if response.succeeded else request.failure
    for operation, result in zip(branch, response.responses, strict=True):
        if operation.HasField("request_range"):
            _strip_leases(operation.request_range, result.response_range)
        elif operation.HasField("request_txn"):
            _strip_leases_in_txn(operation.request_txn, result.response_txn)


def status_says_more(name: str, _request: Any, answer: Any) -> Any:  # 7.1, 7.2
    if name != "Maintenance/Status" or isinstance(answer, Status):
        return answer
    expected = deepcopy(answer)
    expected.version = "3.7.3"
    expected.storageVersion = "3.7.0"
    expected.dbSizeQuota = 2 << 30
    expected.downgradeInfo.SetInParent()
    expected.errors[:] = [text.rstrip(" ") for text in expected.errors]
    return expected


def hash_has_a_revision(name: str, request: Any, answer: Any) -> Any:  # 7.3
    if name != "Maintenance/HashKV" or isinstance(answer, Status):
        return answer
    expected = deepcopy(answer)
    expected.hash_revision = request.revision or expected.header.revision
    return expected


def cancelling_no_downgrade(name: str, request: Any, answer: Any) -> Any:  # 7.7
    is_cancel = name == "Maintenance/Downgrade" and request.action == DowngradeRequest.CANCEL
    return SUCCESS if is_cancel and answer == errors.NO_INFLIGHT_DOWNGRADE else answer


def ranges_of_permissions_are_checked(name: str, request: Any, answer: Any) -> Any:  # 6.1, 6.2
    if name == "Auth/RoleGrantPermission" and request.HasField("perm"):
        key, range_end = request.perm.key, request.perm.range_end
        if not key or (range_end and range_end != b"\0" and range_end <= key):
            return errors.INVALID_AUTH_MGMT
    return answer


def long_passwords_are_refused(name: str, request: Any, answer: Any) -> Any:  # 6.4
    if name == "Auth/UserChangePassword" and len(request.password.encode()) > 72:
        return errors.PASSWORD_TOO_LONG
    return answer


SUCCESS = Status(errors.Code.OK, "any response will do")

ROWS: tuple[Row, ...] = (
    keys_only_has_no_lease,
    status_says_more,
    hash_has_a_revision,
    cancelling_no_downgrade,
    ranges_of_permissions_are_checked,
    long_passwords_are_refused,
)


def expected_answer(name: str, request: Message, answer: Answer) -> Answer:
    """Return what 3.7 answers, given the answer of the etcd that is asked."""
    for row in () if is_target() else ROWS:
        answer = row(name, request, answer)
    return answer


BY_STATE = [
    errors.KEY_NOT_FOUND,
    errors.LEASE_NOT_FOUND,
    errors.COMPACTED,
    errors.FUTURE_REV,
]


def may_both_be_right(name: str, request: Any, ours: Answer, theirs: Answer) -> bool:
    """Return whether both answers are right, because 3.5.1 checks in another order or keeps less.

    The operations of a transaction are checked one by one (1.6, 1.7). A compaction leaves the
    hash of its revision behind (7.4).
    """
    if name == "Maintenance/HashKV" and isinstance(theirs, HashKVResponse):
        # After a compaction at revision 0, etcd answers its hash to all that name no revision.
        is_of_zero = theirs.compact_revision == -1 and not theirs.hash_revision
        return is_of_zero and not request.revision
    if is_target():
        return False
    if name == "Maintenance/HashKV":
        return theirs == errors.COMPACTED and not isinstance(ours, Status)
    if name != "KV/Txn" or ours not in BY_STATE or theirs not in BY_STATE:
        return False
    return _checked_operations(request) > 1


def _checked_operations(request: TxnRequest) -> int:
    """Count operations that the state may refuse: leases, keys that must exist, revisions."""
    count = 0
    for branch in (request.success, request.failure):
        for operation in branch:
            put = operation.request_put
            count += bool(put.lease) + bool(put.ignore_value or put.ignore_lease)
            count += bool(operation.request_range.revision)
            count += _checked_operations(operation.request_txn)
    return count


def not_asked(name: str, request: Any) -> Status | None:
    """Return what we answer to a call that ends an etcd, or that 3.5.1 treats differently."""
    if name == "KV/Range" and not is_target() and _has_bad_order(request):  # 1.2, 1.3
        return errors.INVALID_SORT_OPTION
    if name == "Maintenance/Alarm" and request.action not in AlarmRequest.AlarmAction.values():
        return errors.UNKNOWN_DOWNGRADE_ACTION  # 12.3
    return None


def _has_bad_order(request: RangeRequest) -> bool:
    return bool(request.key) and not (
        0 <= request.sort_order <= 2 and 0 <= request.sort_target <= 4
    )
