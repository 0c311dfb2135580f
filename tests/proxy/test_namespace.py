"""Through a namespace a store looks like one that holds nothing else."""

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api import errors
from kvorum.api.errors import Code
from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from tests.proxy.standing import Standing
from tests.server.rpc.harness import METHODS

NAMESPACE = b"ns/"
OUTSIDE = (b"ns", b"ns0", b"z")
"""Keys just before and behind those of the namespace."""

keys = st.sampled_from((b"a", b"b", b"ba", b"\xff"))
ends = st.sampled_from((b"", b"", b"b", b"c", b"\0"))
values = st.binary(max_size=3)
puts = st.builds(
    pb.PutRequest, key=keys, value=values, prev_kv=st.booleans(), lease=st.sampled_from((0, 7))
)
ranges = st.builds(
    pb.RangeRequest,
    key=st.one_of(keys, st.just(b"\0")),
    range_end=ends,
    limit=st.sampled_from((0, 0, 1)),
    serializable=st.booleans(),
    keys_only=st.booleans(),
    count_only=st.booleans(),
)
# etcd does not notice a put into a deleted range without an end, because its end, a zero byte, is
# below every key; within a namespace such a range has an end.
deletes = st.builds(
    pb.DeleteRangeRequest,
    key=keys,
    range_end=ends.filter(lambda end: end != b"\0"),
    prev_kv=st.booleans(),
)
endless_deletes = st.builds(pb.DeleteRangeRequest, key=keys, range_end=st.just(b"\0"))
compares = st.builds(
    lambda key, end, version: pb.Compare(
        key=key,
        range_end=end,
        target=pb.Compare.VERSION,
        result=pb.Compare.GREATER,
        version=version,
    ),
    keys,
    ends,
    st.integers(0, 1),
)


def _operations(inner: st.SearchStrategy[pb.RequestOp]) -> st.SearchStrategy[pb.TxnRequest]:
    some = st.lists(inner, max_size=2)
    return st.builds(
        pb.TxnRequest, compare=st.lists(compares, max_size=2), success=some, failure=some
    )


plain = st.one_of(
    st.builds(lambda each: pb.RequestOp(request_put=each), puts),
    st.builds(lambda each: pb.RequestOp(request_range=each), ranges),
    st.builds(lambda each: pb.RequestOp(request_delete_range=each), deletes),
    st.just(pb.RequestOp()),
)
nested = st.one_of(
    plain, st.builds(lambda each: pb.RequestOp(request_txn=each), _operations(plain))
)
calls = st.one_of(
    st.tuples(st.just(rpcs.PUT.path), puts),
    st.tuples(st.just(rpcs.RANGE.path), ranges),
    st.tuples(st.just(rpcs.DELETE_RANGE.path), st.one_of(deletes, endless_deletes)),
    st.tuples(st.just(rpcs.TXN.path), _operations(nested)),
    st.tuples(
        st.just(rpcs.LEASE_TIME_TO_LIVE.path),
        st.just(pb.LeaseTimeToLiveRequest(ID=7, keys=True)),
    ),
)


def _pair() -> tuple[Standing, Standing]:
    """Return a proxy with a namespace and one without, before stores of the same revision."""
    within, plainly = Standing(namespace=NAMESPACE), Standing()
    for each in (within, plainly):
        each.call_member(rpcs.LEASE_GRANT.path, pb.LeaseGrantRequest(ID=7, TTL=1000))
    within.call_member(rpcs.PUT.path, pb.PutRequest(key=OUTSIDE[0], lease=7))
    for key in OUTSIDE[1:]:
        within.call_member(rpcs.PUT.path, pb.PutRequest(key=key))
    # What is put and deleted is not to be seen either.
    for _ in OUTSIDE[1:]:
        plainly.call_member(rpcs.PUT.path, pb.PutRequest(key=b"x"))
    plainly.call_member(rpcs.DELETE_RANGE.path, pb.DeleteRangeRequest(key=b"x"))
    return within, plainly


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(st.lists(calls, max_size=15))
def test_all_calls_for_keys_are_answered_as_without_a_namespace(
    made: list[tuple[str, Message]],
) -> None:
    within, plainly = _pair()
    for path, message in made:
        assert within.call(path, message) == plainly.call(path, message)
    for key in OUTSIDE:
        assert within.call_member(rpcs.RANGE.path, pb.RangeRequest(key=key)).count == 1


def test_ranges_in_pieces_are_in_the_namespace() -> None:
    standing = Standing(namespace=NAMESPACE)
    for key in (b"ns", b"ns/a", b"ns/b", b"ns0"):
        standing.call_member(rpcs.PUT.path, pb.PutRequest(key=key))
    stream = standing.stream(rpcs.RANGE_STREAM.path)
    stream.send(pb.RangeRequest(key=b"\0", range_end=b"\0"))
    stream.half_close()
    standing.settle()
    found = [kv.key for each in stream.received() for kv in each.range_response.kvs]
    assert found == [b"a", b"b"]


def test_what_cannot_be_put_into_the_namespace_is_refused() -> None:
    standing = Standing(namespace=NAMESPACE)
    assert standing.call(rpcs.PUT.path, pb.PutRequest(value=b"1")) == errors.EMPTY_KEY
    assert standing.call(rpcs.RANGE.path, pb.RangeRequest(serializable=True)) == errors.EMPTY_KEY
    refused = standing.call(rpcs.TXN.path, b"\xff\xff")
    assert refused.code is Code.INTERNAL
    stream = standing.stream(rpcs.RANGE_STREAM.path)
    stream.send(pb.RangeRequest())
    assert stream.status == errors.EMPTY_KEY


def test_locks_have_the_names_that_they_were_given() -> None:
    standing = Standing(namespace=NAMESPACE)
    grant = pb.LeaseGrantRequest(ID=7, TTL=1000)
    standing.call(rpcs.LEASE_GRANT.path, grant)
    path = "/v3lockpb.Lock/Lock"
    answer = standing.call(path, METHODS[path].request(name=b"lock", lease=7))
    assert answer.key == b"lock/7"
    assert standing.call_member(rpcs.RANGE.path, pb.RangeRequest(key=b"lock/7")).count == 1
