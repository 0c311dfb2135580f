"""Every static check, against a real etcd that is sent the same request."""

from collections.abc import Iterable
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from kvorum.api import errors, requests
from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import (
    Compare,
    DeleteRangeRequest,
    PutRequest,
    RangeRequest,
    RequestOp,
    TxnRequest,
)
from kvorum.server.rpc import checks
from tests.server.rpc.oracle import Oracle

OPERATIONS_MAX = 128
# Errors that depend on the state: etcd gives them to requests that passed the checks.
BY_STATE = {
    errors.KEY_NOT_FOUND,
    errors.LEASE_NOT_FOUND,
    errors.COMPACTED,
    errors.FUTURE_REV,
}

keys = st.sampled_from([b"", b"a", b"b", b"b\0", b"c", b"d"])
some_keys = st.sampled_from([b"a", b"b", b"c", b"d"])
ends = st.sampled_from([b"", b"", b"\0", b"a", b"b", b"b\0", b"c", b"\xff"])
rare = st.sampled_from([False, False, False, True])


def put_requests(names: st.SearchStrategy[bytes]) -> st.SearchStrategy[PutRequest]:
    return st.builds(
        PutRequest,
        key=names,
        value=st.sampled_from([b"", b"v"]),
        lease=st.sampled_from([0, 0, 5]),
        ignore_value=rare,
        ignore_lease=rare,
    )


range_requests = st.builds(
    RangeRequest,
    key=keys,
    range_end=ends,
    # etcd 3.5.1 ends with a sort target outside the enum, and takes any order.
    sort_order=st.integers(0, 2),
    sort_target=st.integers(0, 4),
)
delete_requests = st.builds(DeleteRangeRequest, key=keys, range_end=ends)


def transactions(of: st.SearchStrategy[RequestOp], few: int) -> st.SearchStrategy[TxnRequest]:
    branch = st.lists(of, max_size=few)
    compares = st.lists(st.builds(Compare, key=keys), max_size=1)
    return st.builds(TxnRequest, compare=compares, success=branch, failure=branch)


# Only changes, of valid keys, so that collisions are found, and not hidden by simpler mistakes.
changes = st.one_of(
    st.builds(RequestOp, request_put=st.builds(PutRequest, key=some_keys)),
    st.builds(
        RequestOp,
        request_delete_range=st.builds(DeleteRangeRequest, key=some_keys, range_end=ends),
    ),
)
anything = st.one_of(
    changes,
    st.builds(RequestOp, request_put=put_requests(keys)),
    st.builds(RequestOp, request_range=range_requests),
    st.builds(RequestOp, request_delete_range=delete_requests),
    st.builds(RequestOp),
)


def nested(of: st.SearchStrategy[RequestOp]) -> st.SearchStrategy[TxnRequest]:
    return transactions(
        st.recursive(
            of,
            lambda inner: st.builds(RequestOp, request_txn=transactions(inner, 2)),
            max_leaves=6,
        ),
        4,
    )


@st.composite
def changing_branches(draw: st.DrawFn, depth: int) -> list[RequestOp]:
    """Make a few changes, about half of them in transactions of their own."""
    branch = []
    for _ in range(draw(st.integers(0, 3))):
        if depth and draw(st.booleans()):
            branch.append(RequestOp(request_txn=draw(changing_txns(depth - 1))))
        else:
            branch.append(draw(changes))
    return branch


@st.composite
def changing_txns(draw: st.DrawFn, depth: int) -> TxnRequest:
    return TxnRequest(
        success=draw(changing_branches(depth)), failure=draw(changing_branches(depth))
    )


def compare_with_etcd(oracle: Oracle, name: str, message: Message, checked: Status | None) -> None:
    answer = oracle.ask(name, message)
    if checked is not None:
        assert answer == checked
    else:
        assert not isinstance(answer, Status) or answer in BY_STATE


@given(message=put_requests(keys))
def test_puts(oracle: Oracle, message: PutRequest) -> None:
    compare_with_etcd(oracle, "KV/Put", message, checks.check_put(requests.put_of(message)))


@given(message=range_requests)
def test_ranges(oracle: Oracle, message: RangeRequest) -> None:
    compare_with_etcd(oracle, "KV/Range", message, checks.check_range(requests.range_of(message)))


@given(message=delete_requests)
def test_deletions(oracle: Oracle, message: DeleteRangeRequest) -> None:
    checked = checks.check_delete_range(requests.delete_range_of(message))
    compare_with_etcd(oracle, "KV/DeleteRange", message, checked)


@pytest.mark.long
@given(message=st.one_of(nested(anything), changing_txns(2)))
def test_transactions(oracle: Oracle, message: TxnRequest) -> None:
    checked = checks.check_txn(requests.txn_of(message), OPERATIONS_MAX)
    compare_with_etcd(oracle, "KV/Txn", message, checked)


def branch(count: int) -> list[RequestOp]:
    return [RequestOp(request_range=RangeRequest(key=b"a"))] * count


@pytest.mark.parametrize(
    "sizes", [(128, 0, 0), (129, 0, 0), (0, 128, 0), (0, 129, 0), (0, 0, 128), (0, 0, 129)]
)
def test_the_number_of_operations(oracle: Oracle, sizes: tuple[int, int, int]) -> None:
    compares, success, failure = sizes
    message = TxnRequest(
        compare=[Compare(key=b"a")] * compares, success=branch(success), failure=branch(failure)
    )
    checked = checks.check_txn(requests.txn_of(message), OPERATIONS_MAX)
    assert checked == (errors.TOO_MANY_OPS if max(sizes) > OPERATIONS_MAX else None)
    compare_with_etcd(oracle, "KV/Txn", message, checked)


@pytest.mark.parametrize(("outer", "inner"), [(1, 127), (1, 128), (100, 28), (100, 29)])
def test_nested_operations_share_the_limit(oracle: Oracle, outer: int, inner: int) -> None:
    nested_txn = RequestOp(request_txn=TxnRequest(success=branch(inner)))
    message = TxnRequest(success=[*branch(outer - 1), nested_txn])
    checked = checks.check_txn(requests.txn_of(message), OPERATIONS_MAX)
    assert checked == (errors.TOO_MANY_OPS if outer + inner > OPERATIONS_MAX else None)
    compare_with_etcd(oracle, "KV/Txn", message, checked)


@pytest.mark.parametrize(("order", "target"), [(3, 0), (-1, 0), (0, 5), (0, -1), (3, 9)])
def test_sort_options_outside_the_enums(order: int, target: int) -> None:
    # Not asked of etcd 3.5.1: it takes the order, and ends with the target.
    request = requests.Range(b"a", sort_order=order, sort_target=target)
    assert checks.check_range(request) == errors.INVALID_SORT_OPTION
    txn = requests.Txn([], [], [request])
    assert checks.check_txn(txn, OPERATIONS_MAX) == errors.INVALID_SORT_OPTION


def ranged(**fields: Any) -> requests.Range:
    return requests.range_of(RangeRequest(key=b"a", **fields))


@pytest.mark.parametrize(
    ("streamed", "status"),
    [
        (ranged(), None),
        (ranged(sort_target=4), None),
        (ranged(sort_order=1), None),
        (ranged(sort_order=1, sort_target=1), errors.RANGE_STREAM_SORTED),
        (ranged(sort_order=2, min_mod_revision=1), errors.RANGE_STREAM_SORTED),
        (ranged(max_create_revision=1), errors.RANGE_STREAM_FILTERED),
        (ranged(sort_order=3), errors.INVALID_SORT_OPTION),
    ],
)
def test_streamed_ranges(streamed: requests.Range, status: Status | None) -> None:
    assert checks.check_range_stream(streamed) == status


class Naive:
    """Finds collisions by the rule's own words, with explicit sets of keys."""

    UNIVERSE = (b"a", b"a\0", b"b", b"b\0", b"c", b"d")

    def changes(self, operations: Iterable[requests.Operation]) -> tuple[set[bytes], set[bytes]]:
        deleted: set[bytes] = set()
        for request in operations:
            if isinstance(request, requests.DeleteRange):
                deleted |= self.covered(request)
        put: set[bytes] = set()
        for request in operations:
            if isinstance(request, requests.Txn):
                self.add_nested(request, put, deleted)
        for request in operations:
            if isinstance(request, requests.Put):
                if request.key in put | deleted:
                    raise ValueError(request.key)
                put.add(request.key)
        return put, deleted

    def add_nested(self, request: requests.Txn, put: set[bytes], deleted: set[bytes]) -> None:
        branches = [self.changes(branch) for branch in (request.success, request.failure)]
        inner = branches[0][0] | branches[1][0]
        if inner & (put | deleted):
            raise ValueError(inner)
        put |= inner
        deleted |= branches[0][1] | branches[1][1]

    def covered(self, request: requests.DeleteRange) -> set[bytes]:
        key, range_end = request.key, request.range_end
        return {
            name
            for name in self.UNIVERSE
            if (key <= name < range_end if range_end else name == key)
        }


@given(message=changing_txns(2))
def test_collisions_against_explicit_sets(message: TxnRequest) -> None:
    txn = requests.txn_of(message)
    collides = False
    for operations in (txn.success, txn.failure):
        try:
            Naive().changes(operations)
        except ValueError:
            collides = True
    found = checks.check_txn(txn, 10**6)
    if found not in (None, errors.DUPLICATE_KEY):
        return
    assert (found is not None) == collides
