"""Transactions, puts and deletions against a real etcd: the same requests, the same answers.

Both begin empty and are given every request in the same order, so revisions are equal. A request
that a server refuses by its content alone is not made: those checks are not the member's.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import (
    CompactionRequest,
    CompactionResponse,
    Compare,
    DeleteRangeRequest,
    DeleteRangeResponse,
    LeaseGrantRequest,
    PutRequest,
    PutResponse,
    RangeRequest,
    RangeResponse,
    RequestOp,
    TxnRequest,
    TxnResponse,
)
from kvorum.api.requests import decode_txn
from kvorum.server.rpc.checks import check_txn, is_read_only
from kvorum.state.apply import requests
from tests.etcd import running_etcd
from tests.member.harness import Cluster, Machine
from tests.waiting import WAIT_SECONDS_MAX

LEASE = 7
KEYS = [b"a", b"b", b"c", b"d", b"e"]
ENDS = [b"", b"c", b"e", b"z", b"\0"]

keys = st.sampled_from(KEYS)
ends = st.sampled_from(ENDS)
values = st.sampled_from([b"", b"1", b"2", b"22"])


class Pair:
    """The member and the oracle."""

    def __init__(self, cluster: Cluster, channel: grpc.Channel) -> None:
        self.cluster = cluster
        self.machine: Machine = cluster.leader()
        self._channel = channel
        grant = LeaseGrantRequest(ID=LEASE, TTL=100_000).SerializeToString()
        self._oracle("Lease/LeaseGrant", grant)
        cluster.answer(self.machine, self.machine.propose(requests.LEASE_GRANT, grant))

    @property
    def revision(self) -> int:
        return self.machine.running.state.store.revision

    @property
    def compacted(self) -> int:
        return self.machine.running.state.store.compacted_revision

    def _oracle(self, method: str, body: bytes) -> bytes | str:
        call = self._channel.unary_unary(f"/etcdserverpb.{method}", lambda each: each, bytes)
        try:
            answer: bytes = call(body, timeout=WAIT_SECONDS_MAX)
        except grpc.RpcError as error:
            return str(error.details())
        return answer

    def compare(self, method: str, call: int, body: bytes, kind: type[Message]) -> None:
        """Let both answer, and require the same answer."""
        ours = self.cluster.answer(self.machine, call)
        theirs = self._oracle(method, body)
        if isinstance(ours, Status) or isinstance(theirs, str):
            text = ours.text if isinstance(ours, Status) else kind.FromString(ours)
            assert text == theirs
            return
        assert without_identity(kind, ours) == without_identity(kind, theirs)

    def txn(self, request: TxnRequest) -> None:
        body = request.SerializeToString()
        machine = self.machine
        reads = is_read_only(decode_txn(body))
        call = machine.read_txn(request) if reads else machine.txn(request)
        self.compare("KV/Txn", call, body, TxnResponse)

    def put(self, request: PutRequest) -> None:
        body = request.SerializeToString()
        call = self.machine.propose(requests.PUT, body)
        self.compare("KV/Put", call, body, PutResponse)

    def delete(self, request: DeleteRangeRequest) -> None:
        body = request.SerializeToString()
        call = self.machine.propose(requests.DELETE_RANGE, body)
        self.compare("KV/DeleteRange", call, body, DeleteRangeResponse)

    def range(self, request: RangeRequest) -> None:
        call = self.machine.range(request.key, request.range_end, revision=request.revision)
        self.compare("KV/Range", call, request.SerializeToString(), RangeResponse)

    def compact(self, revision: int) -> None:
        body = CompactionRequest(revision=revision).SerializeToString()
        call = self.machine.propose(requests.COMPACTION, body)
        self.compare("KV/Compact", call, body, CompactionResponse)


def without_identity(kind: type[Message], data: bytes) -> Any:
    message: Any = kind.FromString(data)
    assert message.HasField("header")
    message.header.cluster_id = message.header.member_id = message.header.raft_term = 0
    return message


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory: Path = tmp_path_factory.mktemp("etcd")
    with running_etcd(directory) as etcd, grpc.insecure_channel(etcd.address) as channel:
        yield Pair(Cluster(1), channel)


puts = st.builds(
    PutRequest,
    key=keys,
    value=values,
    lease=st.sampled_from([0, 0, 0, LEASE, 9]),
    prev_kv=st.booleans(),
)
keeping_puts = st.one_of(
    st.builds(PutRequest, key=keys, ignore_value=st.just(True), lease=st.sampled_from([0, LEASE])),
    st.builds(PutRequest, key=keys, ignore_lease=st.just(True), value=values),
    st.builds(
        PutRequest,
        key=keys,
        ignore_lease=st.just(True),
        ignore_value=st.just(True),
        prev_kv=st.just(True),
    ),
)
deletes = st.builds(DeleteRangeRequest, key=keys, range_end=ends, prev_kv=st.booleans())
# As offsets from the current revision; see `placed`.
ranges = st.builds(
    RangeRequest,
    key=keys,
    range_end=ends,
    limit=st.sampled_from([0, 0, 1, 2]),
    revision=st.sampled_from([0, 0, 0, 1, 2, 3, 9]),
    sort_order=st.sampled_from([0, 1, 2]),
    sort_target=st.sampled_from([0, 1, 2, 3]),
    count_only=st.booleans(),
    keys_only=st.just(False),
    min_mod_revision=st.sampled_from([0, 0, 2]),
)
compares = st.one_of(
    st.builds(
        Compare,
        key=keys,
        range_end=ends,
        target=st.just(3),
        result=st.sampled_from([0, 1, 2, 3]),
        value=values,
    ),
    st.builds(
        Compare,
        key=keys,
        range_end=ends,
        target=st.just(0),
        result=st.sampled_from([0, 1, 2, 3]),
        version=st.integers(0, 3),
    ),
    st.builds(
        Compare,
        key=keys,
        target=st.just(4),
        result=st.sampled_from([0, 1, 2, 3, 5]),
        lease=st.sampled_from([0, LEASE]),
    ),
    st.builds(
        Compare,
        key=keys,
        range_end=ends,
        target=st.sampled_from([1, 2]),
        result=st.sampled_from([0, 1, 2, 3]),
        create_revision=st.integers(0, 4),
    ),
)


def operations(txns: st.SearchStrategy[TxnRequest] | None) -> st.SearchStrategy[RequestOp]:
    kinds = [
        st.builds(RequestOp, request_put=st.one_of(puts, keeping_puts)),
        st.builds(RequestOp, request_range=ranges),
        st.builds(RequestOp, request_delete_range=deletes),
    ]
    if txns is not None:
        kinds.append(st.builds(RequestOp, request_txn=txns))
    return st.one_of(kinds)


def txns_of(depth: int) -> st.SearchStrategy[TxnRequest]:
    inner = operations(txns_of(depth - 1) if depth else None)
    return st.builds(
        TxnRequest,
        compare=st.lists(compares, max_size=2),
        success=st.lists(inner, max_size=4),
        failure=st.lists(inner, max_size=3),
    )


def placed(pair: Pair, request: TxnRequest) -> TxnRequest:
    """Move the revisions of a request to where the store is, nested ones too."""
    for operation in (*request.success, *request.failure):
        if operation.HasField("request_range"):
            place(pair, operation.request_range)
        elif operation.HasField("request_txn"):
            placed(pair, operation.request_txn)
    for compare in request.compare:
        if compare.create_revision:
            compare.create_revision += pair.revision - 3
    return request


def place(pair: Pair, request: RangeRequest) -> None:
    if request.revision:
        request.revision = max(0, pair.revision + 3 - request.revision)
    if request.min_mod_revision:
        request.min_mod_revision = pair.revision


def checks_differ(request: TxnRequest) -> bool:
    """Return whether the order in which etcd 3.5 checks puts and ranges could matter."""

    def kinds(each: TxnRequest) -> set[str]:
        found = set()
        for operation in (*each.success, *each.failure):
            if operation.HasField("request_txn"):
                found |= kinds(operation.request_txn)
            elif operation.HasField("request_put"):
                put = operation.request_put
                if put.lease == 9:
                    found.add("lease")
                if put.ignore_value or put.ignore_lease:
                    found.add("key")
            elif operation.HasField("request_range") and operation.request_range.revision:
                found.add("range")
        return found

    return len(kinds(request)) > 1


def ends_etcd(request: TxnRequest) -> bool:
    """Return whether a put that keeps its key's value may find the key deleted just before.

    A deletion without an end does not count as a conflict with puts; etcd's process ends there.
    """

    def leaves(each: TxnRequest) -> Iterator[RequestOp]:
        for operation in (*each.success, *each.failure):
            if operation.HasField("request_txn"):
                yield from leaves(operation.request_txn)
            else:
                yield operation

    found = list(leaves(request))
    return any(each.request_delete_range.range_end == b"\0" for each in found) and any(
        each.request_put.ignore_value or each.request_put.ignore_lease for each in found
    )


steps = st.one_of(
    st.tuples(st.just("txn"), txns_of(2)),
    st.tuples(st.just("txn"), txns_of(0)),
    st.tuples(st.just("put"), st.one_of(puts, keeping_puts)),
    st.tuples(st.just("delete"), deletes),
    st.tuples(st.just("compact"), st.integers(-1, 4)),
)


@settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(st.lists(steps, min_size=1, max_size=8))
def test_the_same_requests_get_the_same_answers(pair: Pair, made: list[tuple[str, Any]]) -> None:
    pair.delete(DeleteRangeRequest(key=b"\0", range_end=b"\0"))
    for key, value, lease in ((b"a", b"1", LEASE), (b"b", b"2", 0), (b"c", b"22", LEASE)):
        pair.put(PutRequest(key=key, value=value, lease=lease))
    for name, request in made:
        if name == "txn":
            request = placed(pair, request)
            assume(check_txn(decode_txn(request.SerializeToString()), 128) is None)
            assume(not checks_differ(request) and not ends_etcd(request))
            pair.txn(request)
        elif name == "put":
            pair.put(request)
        elif name == "delete":
            pair.delete(request)
        else:
            pair.compact(pair.revision - request)
    pair.range(RangeRequest(key=b"\0", range_end=b"\0"))
