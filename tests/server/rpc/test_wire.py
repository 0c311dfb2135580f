"""Messages with numbers of any length: refused where a real etcd refuses them, in its words."""

import tracemalloc

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from kvorum.api import errors, wire
from kvorum.api.errors import Code, Status
from kvorum.api.pb import etcdserverpb as pb
from tests.etcd import is_target
from tests.server.rpc.harness import Harness
from tests.server.rpc.oracle import Oracle

EXCESSIVE = b"\xff" * 9 + b"\x02"
GREATEST = b"\xff" * 9 + b"\x01"
REFUSED = "grpc: error unmarshalling request: "


@pytest.fixture(scope="module")
def ours() -> Harness:
    return Harness()


def encoded(value: int, length: int = 1) -> bytes:
    """Encode a number of any size, in at least so many bytes."""
    groups: list[int] = []
    while value or len(groups) < length:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups[-1] &= 0x7F
    return bytes(groups)


# Numbers about the limit, padded or not.
numbers = st.one_of(
    st.builds(encoded, st.integers(0, 2**70 - 1), st.sampled_from([1, 1, 10])),
    st.builds(encoded, st.sampled_from([0, 1, 2**63, 2**64 - 1, 2**64, 2**64 + 2**63])),
)
contents = st.one_of(
    st.binary(max_size=5),
    st.lists(st.integers(0x80, 0xFF), min_size=9, max_size=12).map(bytes),
)


def fields(known: tuple[int, ...], inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Make fields of a message, with these numbers or others that no message has."""
    tags = st.sampled_from([*known, *known, 90, 2**29 - 1])

    def tagged(wire_type: int, content: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
        return st.builds(lambda tag, data: encoded(tag << 3 | wire_type) + data, tags, content)

    delimited = inner.map(lambda data: encoded(len(data)) + data)
    one = st.one_of(
        tagged(0, numbers),
        tagged(2, delimited),
        tagged(1, st.binary(min_size=8, max_size=8)),
        tagged(5, st.binary(min_size=4, max_size=4)),
        st.builds(lambda number: b"\xd3\x05\x08" + number + b"\xd4\x05", numbers),  # a group
    )
    return st.lists(one, max_size=4).map(b"".join)


ranges = fields(tuple(range(1, 14)), contents)
operations = fields((1,), st.one_of(contents, ranges))
transactions = fields((1, 2, 3), st.one_of(operations, fields((1, 2, 4), contents)))
messages = st.one_of(
    st.tuples(st.just("/etcdserverpb.KV/Range"), ranges),
    st.tuples(st.just("/etcdserverpb.KV/Txn"), transactions),
    st.tuples(st.just("/etcdserverpb.Lease/LeaseTimeToLive"), fields((1, 2), contents)),
)


def refusal(answer: bytes | Status) -> Status | None:
    is_refused = isinstance(answer, Status) and answer.text.startswith(REFUSED)
    return answer if is_refused and isinstance(answer, Status) else None


@pytest.mark.long
@given(message=messages)
@example(message=("/etcdserverpb.KV/Range", b"\x0a\x01k\x18" + EXCESSIVE))
@example(message=("/etcdserverpb.KV/Range", b"\x0a\x01k\x18" + GREATEST))
@example(message=("/etcdserverpb.KV/Range", b"\x0a\x81\x80\x80\x80\x80\x80\x80\x80\x80\x02k"))
@example(message=("/etcdserverpb.KV/Range", b"\x0a\x01k\x98\x06" + EXCESSIVE))
@example(message=("/etcdserverpb.KV/Range", b"\x0a\x01k\x9a\x06\x0b\x08" + EXCESSIVE))
def test_what_etcd_refuses_is_refused(
    ours: Harness, oracle: Oracle, message: tuple[str, bytes]
) -> None:
    if not is_target():
        pytest.skip("3.5.1 drops excessive bits")
    path, payload = message
    assert refusal(ours.ask_bytes(path, payload)) == refusal(oracle.ask_bytes(path, payload))


def test_packed_numbers_are_checked() -> None:
    filters = b"\x2a\x0a" + EXCESSIVE
    create = pb.WatchCreateRequest
    assert create.FromString(filters)
    with pytest.raises(DecodeError, match="invalid wire-format"):
        wire.parse_message(create, filters)
    assert wire.parse_message(create, b"\x2a\x0a" + GREATEST) == create.FromString(
        b"\x2a\x0a" + GREATEST
    )


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("Watch/Watch", b"\x0a\x0e\x0a\x01k\x18" + EXCESSIVE),
        ("Lease/LeaseKeepAlive", b"\x08" + EXCESSIVE),
        ("KV/RangeStream", b"\x0a\x01k\x18" + EXCESSIVE),
    ],
)
def test_a_stream_ends_in_the_words_of_etcd(ours: Harness, name: str, payload: bytes) -> None:
    stream = ours.open(name)
    stream.send(payload)
    text = f"grpc: failed to unmarshal the received message: {wire.MALFORMED}"
    assert stream.status == Status(Code.INTERNAL, text)


def test_text_that_is_no_utf8_is_refused_in_the_words_of_etcd(
    ours: Harness, oracle: Oracle
) -> None:
    path, payload = "/etcdserverpb.Auth/RoleAdd", b"\x0a\x01\xff"
    if is_target():
        assert ours.ask_bytes(path, payload) == oracle.ask_bytes(path, payload)
    assert ours.ask_bytes(path, payload) == Status(Code.INTERNAL, REFUSED + wire.NOT_UTF8)


def test_the_walk_through_a_message_ends() -> None:
    """A message of a million fields is left to protobuf at some place, and is not refused."""
    many = b"\xd0\x05\x01" * wire.FIELDS_WALKED_MAX
    payload = many + b"\xd0\x05" + EXCESSIVE
    assert wire.parse_message(pb.RangeRequest, payload).key == b""
    with pytest.raises(DecodeError):
        wire.parse_message(pb.RangeRequest, payload[3:])


@given(
    st.lists(st.binary(max_size=6).map(lambda data: b"\x0a" + encoded(len(data)) + data))
    .map(b"".join)
    .flatmap(lambda data: st.just(data) | fields((1, 2, 3), st.binary(max_size=9))),
    st.integers(1, 30),
)
def test_runs_of_fields_are_the_message(data: bytes, run_bytes: int) -> None:
    runs = list(wire.field_runs(data, run_bytes))
    assert b"".join(runs) == data
    try:
        expected = wire.parse_message(pb.TxnRequest, data)
    except DecodeError:
        with pytest.raises(DecodeError):
            [wire.parse_message(pb.TxnRequest, run) for run in runs]
        return
    merged = pb.TxnRequest()
    for run in runs:
        merged.MergeFrom(wire.parse_message(pb.TxnRequest, run))
    assert merged == expected


def test_a_long_message_of_small_fields_is_divided() -> None:
    data = b"\x0a\x00" * 10_000
    assert [len(run) for run in wire.field_runs(data, 1000)] == [1000] * 20


def test_a_transaction_of_a_million_compares_is_never_held_as_a_whole(ours: Harness) -> None:
    """Beyond what may be there, compares are read and forgotten; the answer is that of fewer."""
    data = b"\x0a\x00" * 300_000
    tracemalloc.start()
    answer = ours.ask_bytes("/etcdserverpb.KV/Txn", data)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert answer == ours.ask_bytes("/etcdserverpb.KV/Txn", b"\x0a\x00" * 129)
    assert answer == errors.TOO_MANY_OPS
    assert peak_bytes < 3 * len(data)
    last_is_malformed = ours.ask_bytes("/etcdserverpb.KV/Txn", data + b"\x0a")
    assert isinstance(last_is_malformed, Status)
    assert last_is_malformed.text.startswith(REFUSED)
