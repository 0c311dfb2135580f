"""Entries' data against protobuf, and the ids in it."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvorum.api.codec import varint
from kvorum.api.pb.etcdserverpb import (
    AlarmRequest,
    InternalRaftRequest,
    PutRequest,
    RequestHeader,
    TxnRequest,
)
from kvorum.api.pb.membershippb import ClusterVersionSetRequest
from kvorum.member import requests
from kvorum.member.requests import TOKEN_BYTES, RequestIds, decode, put_body

members = st.integers(0, (1 << 64) - 1)
starts = st.integers(0, requests.START_MAX - 1)
bodies = st.builds(
    PutRequest,
    key=st.binary(min_size=1, max_size=300),
    value=st.binary(max_size=20_000),
    lease=st.integers(-(1 << 63), (1 << 63) - 1),
)


@settings(deadline=None)
@given(members, starts, bodies)
def test_an_entry_is_what_protobuf_writes(member: int, start: int, put: PutRequest) -> None:
    ids = RequestIds(member, start)
    body = put.SerializeToString()
    data, token = ids.encode(requests.PUT, body)
    number = decode(data)[1]
    expected = InternalRaftRequest(header=RequestHeader(ID=number), put=put)
    assert data == expected.SerializeToString()
    assert decode(data) == (requests.PUT, number, body)
    assert put_body(data) == body
    assert token == data[-TOKEN_BYTES:]


@given(members, st.sampled_from(["3.5.0", "3.7.0"]))
def test_a_request_with_a_high_number_comes_after_its_header(member: int, version: str) -> None:
    request = ClusterVersionSetRequest(ver=version)
    ids = RequestIds(member, 1_700_000_000_000)
    data, token = ids.encode(requests.CLUSTER_VERSION_SET, request.SerializeToString())
    assert isinstance(token, int)
    expected = InternalRaftRequest(header=RequestHeader(ID=token), cluster_version_set=request)
    assert data == expected.SerializeToString()
    assert decode(data) == (requests.CLUSTER_VERSION_SET, token, request.SerializeToString())


@given(members, st.integers(64, requests.START_MAX - 1))
def test_ids_are_laid_out_as_etcd_lays_them_out(member: int, start: int) -> None:
    ids = RequestIds(member, start)
    first = ids.next_id()
    assert first >> 48 == member & 0xFFFF
    assert first & ((1 << 48) - 1) == start << 8 | 1
    assert 0 < ids.next_lease_id() < 1 << 63


@settings(deadline=None, max_examples=20)
@given(members, starts, st.integers(1, 100))
def test_tokens_of_many_ids_differ_also_where_the_number_wraps(
    member: int, start: int, count: int
) -> None:
    ids = RequestIds(member, start)
    for _ in range((1 << 14) - 50):
        ids.next_id()
    found = {ids.encode(requests.ALARM, b"")[1] for _ in range(count)}
    assert len(found) == count
    last = RequestIds(member, requests.START_MAX - 1)
    numbers = [last.next_id() for _ in range(600)]
    assert len(set(numbers)) == 600
    assert {number >> 48 for number in numbers} == {member & 0xFFFF}


def test_an_old_entry_has_its_id_elsewhere() -> None:
    request = InternalRaftRequest(ID=5, alarm=AlarmRequest(memberID=9))
    assert decode(request.SerializeToString()) == (requests.ALARM, 5, b"\x10\x09")


@settings(deadline=None)
@given(st.binary(max_size=40).map(b"\x22".__add__))
@example(b"\x22\x01\x0a\xa2\x06\x00")
def test_what_is_taken_for_a_put_is_one(data: bytes) -> None:
    body = put_body(data)
    if body is not None:
        header = data[data.index(body, 2) + len(body) :]
        assert header.startswith(b"\xa2\x06")
        assert data == b"\x22" + varint(len(body)) + body + header


@given(st.binary(max_size=40))
def test_anything_is_read_or_refused(data: bytes) -> None:
    try:
        kind, number, _ = decode(data)
    except ValueError:
        return
    assert kind and number


@pytest.mark.parametrize(
    "request_",
    [
        InternalRaftRequest(header=RequestHeader(ID=1)),
        InternalRaftRequest(put=PutRequest(key=b"k")),
        InternalRaftRequest(header=RequestHeader(ID=1), put=PutRequest(key=b"k"), txn=TxnRequest()),
    ],
)
def test_an_entry_has_one_request_and_an_id(request_: InternalRaftRequest) -> None:
    with pytest.raises(ValueError, match=r"in it|two requests"):
        decode(request_.SerializeToString())


def test_a_header_may_hold_more_than_the_id() -> None:
    header = RequestHeader(ID=7, username="root", auth_revision=3)
    request = InternalRaftRequest(header=header, put=PutRequest(key=b"k"))
    assert decode(request.SerializeToString())[1] == 7
