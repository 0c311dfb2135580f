"""Requests and answers without protobuf are what they are with it."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvorum.api import writing
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb import mvccpb
from kvorum.client import answers, operations
from kvorum.client.keys import KeyRange

INT64_MAX = (1 << 63) - 1
texts = st.binary(max_size=200) | st.integers(120, 20_000).map(bytes)
numbers = st.integers(0, INT64_MAX) | st.integers(0, 300)
flags = st.booleans()
headers = st.builds(
    pb.ResponseHeader,
    cluster_id=st.integers(0, (1 << 64) - 1),
    member_id=st.integers(0, (1 << 64) - 1),
    revision=numbers,
    raft_term=numbers,
)
key_values = st.builds(
    mvccpb.KeyValue,
    key=texts,
    value=texts,
    create_revision=numbers,
    mod_revision=numbers,
    version=numbers,
    lease=numbers,
)
puts = st.builds(pb.PutResponse, header=headers, prev_kv=st.none() | key_values)
deletions = st.builds(
    pb.DeleteRangeResponse,
    header=headers,
    deleted=numbers,
    prev_kvs=st.lists(key_values, max_size=3),
)
ranges = st.builds(
    pb.RangeResponse,
    header=headers,
    count=numbers,
    more=flags,
    kvs=st.lists(key_values, max_size=3),
)


@given(key=texts, value=texts, lease=st.integers(-INT64_MAX - 1, INT64_MAX), options=st.data())
def test_a_put_is_what_protobuf_writes(
    key: bytes, value: bytes, lease: int, options: st.DataObject
) -> None:
    previous, keep_value, keep_lease = (options.draw(flags) for _ in range(3))
    message = writing.put_request(
        key, value, lease, previous=previous, keep_value=keep_value, keep_lease=keep_lease
    )
    expected = pb.PutRequest(
        key=key,
        value=value,
        lease=lease,
        prev_kv=previous,
        ignore_value=keep_value,
        ignore_lease=keep_lease,
    )
    assert message == expected.SerializeToString()


@given(key=texts, end=texts, previous=flags)
def test_a_deletion_is_what_protobuf_writes(key: bytes, end: bytes, previous: bool) -> None:
    expected = pb.DeleteRangeRequest(key=key, range_end=end, prev_kv=previous)
    message = writing.delete_request(key, end, previous=previous)
    assert message == expected.SerializeToString()


@given(key=texts, revision=numbers, serializable=flags)
def test_a_read_of_a_key_is_what_protobuf_writes(
    key: bytes, revision: int, serializable: bool
) -> None:
    expected = pb.RangeRequest(key=key, revision=revision, serializable=serializable)
    message = writing.get_request(key, revision, serializable=serializable)
    assert message == expected.SerializeToString()


@pytest.mark.long
@given(
    keys=st.builds(KeyRange, texts, texts),
    order=st.sampled_from(["", "ascending", "descending"]),
    by=st.sampled_from(["key", "version", "create_revision", "mod_revision", "value"]),
    values=st.lists(numbers, min_size=6, max_size=6),
    options=st.lists(flags, min_size=3, max_size=3),
)
def test_a_range_is_what_protobuf_writes(
    keys: KeyRange, order: str, by: str, values: list[int], options: list[bool]
) -> None:
    message = operations.range_request(
        keys,
        limit=values[0],
        revision=values[1],
        order=order,
        by=by,
        serializable=options[0],
        keys_only=options[1],
        count_only=options[2],
        mod_revisions=values[2:4],
        create_revisions=values[4:6],
    )
    orders = {
        "": pb.RangeRequest.NONE,
        # Keys come in this order anyway.
        "ascending": pb.RangeRequest.NONE if by == "key" else pb.RangeRequest.ASCEND,
        "descending": pb.RangeRequest.DESCEND,
    }
    targets = {
        "key": pb.RangeRequest.KEY,
        "version": pb.RangeRequest.VERSION,
        "create_revision": pb.RangeRequest.CREATE,
        "mod_revision": pb.RangeRequest.MOD,
        "value": pb.RangeRequest.VALUE,
    }
    expected = pb.RangeRequest(
        key=keys.key,
        range_end=keys.end,
        limit=values[0],
        revision=values[1],
        sort_order=orders[order],
        sort_target=targets[by],
        serializable=options[0],
        keys_only=options[1],
        count_only=options[2],
        min_mod_revision=values[2],
        max_mod_revision=values[3],
        min_create_revision=values[4],
        max_create_revision=values[5],
    )
    assert message == expected.SerializeToString()


@given(puts)
@example(pb.PutResponse(header=pb.ResponseHeader(revision=5)))
def test_the_answer_to_a_put_says_the_same(response: pb.PutResponse) -> None:
    found = answers.read_put(response.SerializeToString())
    assert found in (None, operations.put_result(response))
    assert found is not None or response.HasField("prev_kv") or not response.ByteSize()


@given(deletions)
def test_the_answer_to_a_deletion_says_the_same(response: pb.DeleteRangeResponse) -> None:
    found = answers.read_delete(response.SerializeToString())
    expected = operations.delete_result(response)
    is_short = response.ByteSize() <= answers.SHORT_BYTES_MAX
    assert found == (expected if is_short else None)


@given(ranges)
def test_the_answer_to_a_range_says_the_same(response: pb.RangeResponse) -> None:
    found = answers.read_range(response.SerializeToString())
    expected = operations.range_result(response)
    is_short = response.ByteSize() <= answers.SHORT_BYTES_MAX
    assert found == (expected if is_short else None)


@given(st.one_of(puts, deletions, ranges), st.data())
def test_bytes_that_are_not_such_an_answer_are_left_to_protobuf(
    response: Any, data: st.DataObject
) -> None:
    """A byte too many, too few, or another one: the reader says nothing, or what protobuf says."""
    kind = type(response)
    message = bytearray(response.SerializeToString()[:500])
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(message)))
        message[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    answer = bytes(message)
    results: dict[Any, tuple[Any, Any]] = {
        pb.PutResponse: (answers.read_put, operations.put_result),
        pb.DeleteRangeResponse: (answers.read_delete, operations.delete_result),
        pb.RangeResponse: (answers.read_range, operations.range_result),
    }
    read, result = results[kind]
    found = read(answer)
    if found is not None:
        assert found == result(kind.FromString(answer))
