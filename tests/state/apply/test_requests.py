"""Entries' data against protobuf, and the ids and callers in it."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvorum.api.codec import length_delimited, varint
from kvorum.api.pb.etcdserverpb import (
    AlarmRequest,
    InternalRaftRequest,
    PutRequest,
    RequestHeader,
    TxnRequest,
)
from kvorum.api.pb.membershippb import ClusterVersionSetRequest
from kvorum.state.apply import requests
from kvorum.state.apply.callers import MEMBER, NOBODY, Caller, Front
from kvorum.state.apply.requests import RequestIds, decode, extract_anonymous_put

UINT64_MAX = (1 << 64) - 1

members = st.integers(0, UINT64_MAX)
starts = st.integers(0, requests.START_MAX - 1)
bodies = st.builds(
    PutRequest,
    key=st.binary(min_size=1, max_size=300),
    value=st.binary(max_size=20_000),
    lease=st.integers(-(1 << 63), (1 << 63) - 1),
)
users = st.text(max_size=200)
callers = st.builds(Caller, st.sampled_from(Front), users, st.integers(0, UINT64_MAX))


@settings(deadline=None)
@given(members, starts, bodies)
def test_an_entry_is_what_protobuf_writes(member: int, start: int, put: PutRequest) -> None:
    ids = RequestIds(member, start)
    body = put.SerializeToString()
    data, encoded_id = ids.encode(requests.PUT, body, MEMBER)
    number = decode(data)[1]
    expected = InternalRaftRequest(header=RequestHeader(ID=number), put=put)
    assert data == expected.SerializeToString()
    assert decode(data) == (requests.PUT, number, body, NOBODY)
    assert extract_anonymous_put(data) == body
    assert encoded_id == varint(number) == data[-ids.id_bytes :]


@settings(deadline=None)
@given(members, starts, callers)
@example(1, 1, Caller(Front.GRPC, "u" * 128, 1))
@example(1, 1, Caller(Front.GRPC, "", UINT64_MAX))
def test_a_caller_goes_into_the_header_as_protobuf_writes_it(
    member: int, start: int, caller: Caller
) -> None:
    for kind, field, request in (
        (requests.PUT, "put", PutRequest(key=b"k")),
        (requests.CLUSTER_VERSION_SET, "cluster_version_set", ClusterVersionSetRequest(ver="1")),
    ):
        ids = RequestIds(member, start)
        body = request.SerializeToString()
        data, encoded_id = ids.encode(kind, body, caller)
        found_kind, number, found_body, found = decode(data)
        header = RequestHeader(ID=number, username=caller.user, auth_revision=caller.revision)
        expected = InternalRaftRequest(header=header, **{field: request})  # type: ignore[arg-type]
        assert data == expected.SerializeToString()
        assert (found_kind, found_body) == (kind, body)
        assert (found.user, found.revision, found.front) == (
            caller.user,
            caller.revision,
            Front.LOG,
        )
        assert encoded_id == varint(number)
        if kind == requests.PUT:
            assert (extract_anonymous_put(data) is None) == bool(caller.user or caller.revision)


# Fields of a header in any order, repeated ones and unknown ones among them.
header_fields = st.lists(
    st.one_of(
        st.integers(1, UINT64_MAX).map(lambda value: b"\x08" + varint(value)),
        st.text(min_size=1, max_size=150).map(
            lambda text: length_delimited(b"\x12", text.encode())
        ),
        st.integers(1, UINT64_MAX).map(lambda value: b"\x18" + varint(value)),
        st.integers(0, UINT64_MAX).map(lambda value: b"\x20" + varint(value)),
        st.binary(max_size=20).map(lambda data: length_delimited(b"\x2a", data)),
        st.binary(min_size=8, max_size=8).map(b"\x31".__add__),
        st.binary(min_size=4, max_size=4).map(b"\x3d".__add__),
    ),
    max_size=6,
)


@settings(deadline=None)
@given(header_fields, header_fields)
def test_a_header_is_read_as_protobuf_reads_it(first: list[bytes], second: list[bytes]) -> None:
    """After the request and before it, and merged if there are two."""
    body = b"\x0a\x01k"
    put = length_delimited(b"\x22", body)
    headers = [length_delimited(b"\xa2\x06", b"".join(fields)) for fields in (first, second)]
    for data in (put + headers[0], headers[0] + put, headers[0] + put + headers[1]):
        header = InternalRaftRequest.FromString(data).header
        if not header.ID:
            with pytest.raises(ValueError, match="no id"):
                decode(data)
            continue
        kind, number, found_body, caller = decode(data)
        assert (kind, number, found_body) == (requests.PUT, header.ID, body)
        assert (caller.user, caller.revision) == (header.username, header.auth_revision)


@given(st.binary(max_size=60))
def test_a_name_that_is_no_text_stays_what_it_is(name: bytes) -> None:
    header = b"\x08\x01" + length_delimited(b"\x12", name)
    caller = decode(b"\x22\x00" + length_delimited(b"\xa2\x06", header))[3]
    data, encoded_id = RequestIds(1, 1).encode(requests.PUT, b"", caller)
    if name:
        assert data.endswith(encoded_id + length_delimited(b"\x12", name))


@given(members, st.sampled_from(["3.5.0", "3.7.0"]))
def test_a_request_with_a_high_number_comes_after_its_header(member: int, version: str) -> None:
    request = ClusterVersionSetRequest(ver=version)
    ids = RequestIds(member, 1_700_000_000_000)
    body = request.SerializeToString()
    data, encoded_id = ids.encode(requests.CLUSTER_VERSION_SET, body, MEMBER)
    kind, number, found, caller = decode(data)
    expected = InternalRaftRequest(header=RequestHeader(ID=number), cluster_version_set=request)
    assert data == expected.SerializeToString()
    assert encoded_id == varint(number)
    assert (kind, found, caller) == (requests.CLUSTER_VERSION_SET, body, NOBODY)


@given(members, starts)
@example(1 << 16, 0)
def test_ids_are_laid_out_as_etcd_lays_them_out(member: int, start: int) -> None:
    ids = RequestIds(member, start)
    first = ids.next_id()
    assert first >> 48 == member & 0xFFFF
    suffix = start << 8 | 1
    if not member & 0xFFFF:
        # So that all ids of such a member are equally long.
        suffix |= 1 << 42
    assert first & ((1 << 48) - 1) == suffix
    assert 0 < ids.next_lease_id() < 1 << 63


@settings(deadline=None, max_examples=20)
@given(members, starts, st.integers(1, 100))
@example(0, 0, 100)
@example(0, requests.START_MAX - 1, 100)
@example(0xFFFF, requests.START_MAX - 1, 100)
def test_many_ids_differ_and_are_as_long_as_each_other_also_where_the_number_wraps(
    member: int, start: int, count: int
) -> None:
    ids = RequestIds(member, start)
    for _ in range((1 << 14) - 50):
        ids.next_id()
    found = {ids.encode(requests.ALARM, b"", MEMBER)[1] for _ in range(count)}
    assert len(found) == count
    assert {len(each) for each in found} == {ids.id_bytes}
    last = RequestIds(member, requests.START_MAX - 1)
    numbers = [last.next_id() for _ in range(600)]
    assert len(set(numbers)) == 600
    assert {number >> 48 for number in numbers} == {member & 0xFFFF}
    assert {len(varint(number)) for number in numbers} == {ids.id_bytes}


def test_an_old_entry_has_its_id_elsewhere() -> None:
    request = InternalRaftRequest(ID=5, alarm=AlarmRequest(memberID=9))
    assert decode(request.SerializeToString()) == (requests.ALARM, 5, b"\x10\x09", NOBODY)


@settings(deadline=None)
@given(st.binary(max_size=3), st.binary(max_size=20), st.booleans())
@example(b"", b"", True)
@example(b"\x0a", b"\x08", True)
@example(b"\x0a", b"\x08\x00", True)
@example(b"\x0a", b"\x08\x80\x00", True)
@example(b"\x0a", b"\x08\x05\x12\x00", True)
@example(b"\x0a", b"\x08\x05\x18\x00", True)
@example(b"\x0a", b"\x08\x05\x20\x01", True)
@example(b"\x0a", b"\x08" + b"\x80" * 9 + b"\x02", True)
@example(b"\x0a", b"\x08" + b"\x80" * 10 + b"\x01", True)
def test_the_short_way_takes_only_what_the_long_one_reads_alike(
    body: bytes, header: bytes, is_whole: bool
) -> None:
    data = length_delimited(b"\x22", body) + length_delimited(b"\xa2\x06", header)
    if not is_whole:
        data = data[:-1]
    found = extract_anonymous_put(data)
    if found is not None:
        kind, number, decoded, caller = decode(data)
        assert (kind, decoded, caller) == (requests.PUT, found, NOBODY)
        assert data.endswith(b"\x08" + varint(number))


@settings(deadline=None)
@given(st.binary(max_size=40).map(b"\x22".__add__))
@example(b"\x22\x01\x0a\xa2\x06\x00")
def test_what_is_taken_for_a_put_is_one(data: bytes) -> None:
    body = extract_anonymous_put(data)
    if body is not None:
        assert decode(data)[::2] == (requests.PUT, body)


@given(st.binary(max_size=40))
def test_anything_is_read_or_refused(data: bytes) -> None:
    try:
        kind, number, _, _ = decode(data)
    except ValueError:
        return
    assert kind and number


@pytest.mark.parametrize(
    "header", [b"\x08\x01\x12\x05abc", b"\x08\x01\x3d\x00\x00", b"\x08\x01\x23"]
)
def test_a_header_that_is_cut_off_is_refused(header: bytes) -> None:
    with pytest.raises(ValueError, match="header of a request"):
        decode(b"\x22\x00" + length_delimited(b"\xa2\x06", header))


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
