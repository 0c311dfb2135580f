"""Every hand-written encoder gives exactly the bytes protobuf gives; no other module writes any."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvorum.api import codec
from kvorum.api.pb import etcdserverpb, membershippb, mvccpb

INT64_MIN, INT64_MAX, UINT64_MAX = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1
# Numbers on both sides of every length of a varint, and of the tables' border.
EDGES = [edge + step for edge in (1 << shift for shift in range(0, 63, 7)) for step in (-1, 0, 1)]

int64s = st.one_of(st.integers(INT64_MIN, INT64_MAX), st.sampled_from(EDGES))
uint64s = st.one_of(st.integers(0, UINT64_MAX), st.sampled_from(EDGES))
payloads = st.one_of(st.binary(max_size=300), st.integers(16380, 16390).map(bytes))


def protobuf_varint(value: int) -> bytes:
    message = (
        mvccpb.KeyValue(lease=value)
        if value <= INT64_MAX
        else etcdserverpb.ResponseHeader(raft_term=value)
    )
    return message.SerializeToString()[1:] or b"\0"


@given(st.one_of(int64s, uint64s))
@example(INT64_MIN)
@example(-1)
@example(UINT64_MAX)
def test_varint(value: int) -> None:
    encoded = codec.varint(value)
    assert encoded == protobuf_varint(value)
    assert codec.read_varint(b"\xff" + encoded + b"\x01", 1) == (
        value & UINT64_MAX,
        1 + len(encoded),
    )


@pytest.mark.parametrize("value", [INT64_MIN - 1, UINT64_MAX + 1])
def test_varint_out_of_range(value: int) -> None:
    with pytest.raises(OverflowError, match=str(value)):
        codec.varint(value)


@given(uint64s)
def test_read_varint_cut_off(value: int) -> None:
    encoded = codec.varint(value)
    for length in range(len(encoded)):
        with pytest.raises(ValueError, match="cut off"):
            codec.read_varint(encoded[:length], 0)


def test_read_varint_too_long() -> None:
    for ending in (b"\x02", b"\x7f", b"\xff\x01"):
        with pytest.raises(ValueError, match="more than 64 bits"):
            codec.read_varint(b"\xff" * 9 + ending, 0)


@given(payloads)
def test_length_delimited(payload: bytes) -> None:
    message = etcdserverpb.RequestOp()
    message.request_put.value = payload
    inner = message.request_put.SerializeToString()
    assert codec.length_delimited(b"\x12", inner) == message.SerializeToString()


@given(uint64s, uint64s, st.lists(st.tuples(int64s, uint64s), min_size=1, max_size=4))
def test_header(cluster_id: int, member_id: int, served: list[tuple[int, int]]) -> None:
    encoder = codec.HeaderEncoder(cluster_id, member_id, served[0][1])
    for revision, term in served:
        encoder.set_raft_term(term)
        response = etcdserverpb.PutResponse()
        response.header.SetInParent()
        response.header.cluster_id = cluster_id
        response.header.member_id = member_id
        response.header.revision = revision
        response.header.raft_term = term
        assert encoder.field(revision) == response.SerializeToString()
        assert encoder.field(revision) == response.SerializeToString()


nonzero = int64s.filter(bool)
keys = payloads.filter(bool)
key_values: st.SearchStrategy[dict[str, int | bytes]] = st.builds(
    dict,
    key=keys,
    create_revision=nonzero,
    mod_revision=nonzero,
    version=nonzero,
    value=payloads,
    lease=int64s,
)


@given(key_values)
def test_key_value(fields: dict[str, int | bytes]) -> None:
    assert codec.key_value(**fields) == mvccpb.KeyValue(**fields).SerializeToString()  # type: ignore[arg-type]


@given(keys, int64s)
def test_tombstone(key: bytes, mod_revision: int) -> None:
    message = mvccpb.KeyValue(key=key, mod_revision=mod_revision)
    assert codec.tombstone(key, mod_revision) == message.SerializeToString()


@pytest.mark.parametrize("missing", ["key", "create_revision", "mod_revision", "version"])
def test_key_value_of_no_put(missing: str) -> None:
    fields = {"key": b"k", "create_revision": 1, "mod_revision": 1, "version": 1}
    fields |= {missing: b"" if missing == "key" else 0, "value": b"", "lease": 0}
    with pytest.raises(AssertionError):
        codec.key_value(**fields)  # type: ignore[arg-type]


@given(key_values, st.none() | key_values)
def test_events(fields: dict[str, int | bytes], previous: dict[str, int | bytes] | None) -> None:
    kv = mvccpb.KeyValue(**fields)  # type: ignore[arg-type]
    prev_kv = None if previous is None else mvccpb.KeyValue(**previous)  # type: ignore[arg-type]
    kv_bytes = kv.SerializeToString()
    prev_bytes = None if prev_kv is None else prev_kv.SerializeToString()

    put = mvccpb.Event(type=mvccpb.Event.PUT, kv=kv, prev_kv=prev_kv)
    assert codec.put_event(kv_bytes, prev_bytes) == put.SerializeToString()
    delete = mvccpb.Event(type=mvccpb.Event.DELETE, kv=kv, prev_kv=prev_kv)
    assert codec.delete_event(kv_bytes, prev_bytes) == delete.SerializeToString()


@given(int64s)
def test_requests_with_a_number(number: int) -> None:
    made = {
        codec.compaction_request: etcdserverpb.CompactionRequest(revision=number),
        codec.lease_revoke_request: etcdserverpb.LeaseRevokeRequest(ID=number),
        codec.lease_keep_alive_request: etcdserverpb.LeaseKeepAliveRequest(ID=number),
    }
    for encode, message in made.items():
        assert encode(number) == message.SerializeToString()


@given(st.sampled_from([0, 1, 2]), uint64s, st.sampled_from([0, 1, 2]))
def test_alarm_request(action: int, member_id: int, alarm: int) -> None:
    message = etcdserverpb.AlarmRequest(
        action=action,  # type: ignore[arg-type]
        memberID=member_id,
        alarm=alarm,  # type: ignore[arg-type]
    )
    assert codec.alarm_request(action, member_id, alarm) == message.SerializeToString()


@given(st.text(min_size=1, max_size=300))
def test_cluster_version_request(version: str) -> None:
    message = membershippb.ClusterVersionSetRequest(ver=version)
    assert codec.cluster_version_request(version) == message.SerializeToString()


SOURCE = Path(__file__).parents[2] / "src" / "kvorum"
# The formats of these are their own.
FORMATS = (
    "api/",
    "network/edge/",
    "state/lease/",
    "server/peer/",
    "raft/",
    "storage/snap/",
    "storage/wal/",
    "state/apply/requests.py",
)
# These look for what others wrote, and write nothing.
READERS = ("state/mvcc/restore.py", "client/grpc/trust.py")
MODULES = [
    path
    for path in sorted(SOURCE.rglob("*.py"))
    if not str(path.relative_to(SOURCE)).startswith(FORMATS + READERS)
]


@given(st.text(max_size=300), uint64s)
def test_caller_identity(user: str, revision: int) -> None:
    header = etcdserverpb.RequestHeader(username=user, auth_revision=revision)
    assert codec.caller_identity(user, revision) == header.SerializeToString()


def written_by_hand(path: Path) -> Iterator[object]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "kvorum.api.codec":
            yield from {alias.name for alias in node.names} & {
                "varint",
                "length_delimited",
                "scalar",
            }
        if isinstance(node, ast.Constant) and isinstance(node.value, bytes):
            # A message begins with a tag, and those of the first fields are control characters.
            is_text = node.value[:1] in (b"", b"\0", b"\r", b"\n") or node.value[0] >= 0x20
            if not is_text and node.value != b"\x01":
                yield node.value


def test_messages_are_written_here_alone() -> None:
    assert [(path, found) for path in MODULES for found in written_by_hand(path)] == []
