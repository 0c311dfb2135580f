"""Responses by concatenation are what protobuf would have written."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from kvorum.api import responses
from kvorum.api.pb.etcdserverpb import (
    DeleteRangeResponse,
    LeaseKeepAliveResponse,
    LeaseLeasesResponse,
    LeaseStatus,
    LeaseTimeToLiveResponse,
    PutResponse,
    RangeResponse,
    RangeStreamResponse,
    ResponseHeader,
    ResponseOp,
    SnapshotResponse,
    TxnResponse,
)
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.api.pb.v3electionpb import LeaderResponse

int64s = st.integers(-(1 << 63), (1 << 63) - 1)
counts = st.integers(0, (1 << 63) - 1)
revisions = st.integers(1, (1 << 63) - 1)
key_values = st.builds(
    KeyValue, key=st.binary(max_size=20), value=st.binary(max_size=200), lease=int64s
)
some_kvs = st.lists(key_values, max_size=4)


def stored(message: Message | None) -> bytes | None:
    return None if message is None else message.SerializeToString()


def encoded(messages: list[Any]) -> list[bytes]:
    return [message.SerializeToString() for message in messages]


@given(some_kvs, st.booleans(), counts)
def test_a_range(kvs: list[KeyValue], more: bool, count: int) -> None:
    expected = RangeResponse(kvs=kvs, more=more, count=count)
    body = responses.repeated(responses.RANGE_KVS, encoded(kvs)) + responses.range_totals(
        more, count
    )
    assert body == expected.SerializeToString()
    piece = RangeStreamResponse(range_response=expected).SerializeToString()
    assert responses.range_stream_response(body) == piece


@given(key_values)
def test_a_range_of_one(kv: KeyValue) -> None:
    expected = RangeResponse(kvs=[kv], count=1).SerializeToString()
    assert responses.range_body_of_one(kv.SerializeToString()) == expected


@given(st.none() | key_values)
def test_a_put(prev_kv: KeyValue | None) -> None:
    assert responses.put_body(stored(prev_kv)) == PutResponse(prev_kv=prev_kv).SerializeToString()


@given(some_kvs, counts)
def test_a_deletion(kvs: list[KeyValue], count: int) -> None:
    expected = DeleteRangeResponse(deleted=count, prev_kvs=kvs).SerializeToString()
    rows = responses.repeated(responses.DELETED_KVS, encoded(kvs))
    assert responses.deleted_field(count) + rows == expected


@given(st.none() | key_values)
def test_a_deletion_of_one(prev_kv: KeyValue | None) -> None:
    expected = DeleteRangeResponse(deleted=1, prev_kvs=[] if prev_kv is None else [prev_kv])
    assert responses.deleted_body_of_one(stored(prev_kv)) == expected.SerializeToString()


@given(st.booleans(), revisions, some_kvs)
def test_a_txn(succeeded: bool, revision: int, kvs: list[KeyValue]) -> None:
    header = ResponseHeader(revision=revision)
    parts = encoded([RangeResponse(kvs=[kv]) for kv in kvs])
    nested = TxnResponse(header=ResponseHeader(), succeeded=succeeded)
    expected = TxnResponse(
        succeeded=succeeded,
        responses=[
            ResponseOp(response_range=RangeResponse(header=header, kvs=kvs)),
            ResponseOp(response_put=PutResponse(header=header)),
            ResponseOp(response_delete_range=DeleteRangeResponse(header=header, deleted=2)),
            ResponseOp(response_txn=nested),
        ],
    )
    own = responses.operation_header(revision)
    held = responses.succeeded_field(succeeded)
    found = [
        held,
        *responses.operation_field(responses.RANGE_RESPONSE, own, parts),
        *responses.operation_field(responses.PUT_RESPONSE, own, []),
        *responses.operation_field(
            responses.DELETE_RANGE_RESPONSE, own, [responses.deleted_field(2)]
        ),
        *responses.operation_field(responses.TXN_RESPONSE, responses.NESTED_TXN_HEADER, [held]),
    ]
    assert b"".join(found) == expected.SerializeToString()


@given(st.booleans(), revisions, st.none() | key_values)
def test_a_txn_of_one_put(succeeded: bool, revision: int, prev_kv: KeyValue | None) -> None:
    put = PutResponse(header=ResponseHeader(revision=revision), prev_kv=prev_kv)
    expected = TxnResponse(succeeded=succeeded, responses=[ResponseOp(response_put=put)])
    body = responses.txn_body_of_one_put(succeeded, revision, stored(prev_kv))
    assert body == expected.SerializeToString()


@given(st.lists(int64s, max_size=5), st.lists(st.binary(max_size=200), max_size=5))
def test_leases(lease_ids: list[int], keys: list[bytes]) -> None:
    listed = LeaseLeasesResponse(leases=[LeaseStatus(ID=each) for each in lease_ids])
    assert responses.leases_field(lease_ids) == listed.SerializeToString()
    for each in lease_ids:
        renewed = LeaseKeepAliveResponse(ID=each, TTL=len(lease_ids))
        assert responses.renewed_body(each, len(lease_ids)) == renewed.SerializeToString()
    attached = LeaseTimeToLiveResponse(keys=keys)
    assert responses.lease_keys_field(keys) == attached.SerializeToString()


@given(key_values)
def test_a_leader(kv: KeyValue) -> None:
    expected = LeaderResponse(kv=kv).SerializeToString()
    assert responses.leader_body(kv.SerializeToString()) == expected


@given(counts, st.binary(min_size=1, max_size=300), st.sampled_from(["", "3.7.0"]))
def test_a_snapshot(remaining: int, blob: bytes, version: str) -> None:
    expected = SnapshotResponse(remaining_bytes=remaining, blob=blob, version=version)
    assert responses.snapshot_response(remaining, blob, version) == expected.SerializeToString()


def health_messages() -> tuple[type[Message], type[Message]]:
    """Make the messages of gRPC's health service, which no etcd has in its contract."""
    file = descriptor_pb2.FileDescriptorProto(name="health.proto", package="health")
    check = file.message_type.add(name="Check")
    check.field.add(name="status", number=1, label=1, type=5)
    listed = file.message_type.add(name="List")
    listed.field.add(
        name="statuses", number=1, label=3, type=11, type_name=".health.List.StatusesEntry"
    )
    entry = listed.nested_type.add(name="StatusesEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=9)
    entry.field.add(name="value", number=2, label=1, type=11, type_name=".health.Check")
    file.syntax = "proto3"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("health.Check", "health.List")
    check_class, list_class = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names
    )
    return check_class, list_class


def test_health() -> None:
    check, listed = health_messages()
    assert check(status=1).SerializeToString() == responses.HEALTH_SERVING
    assert check(status=3).SerializeToString() == responses.HEALTH_SERVICE_UNKNOWN
    for name in ("", "kv"):
        found = listed.FromString(responses.health_list_response(name, responses.HEALTH_SERVING))
        assert found == listed(statuses={name: check(status=1)})
        assert found.SerializeToString() == responses.health_list_response(
            name, responses.HEALTH_SERVING
        )
