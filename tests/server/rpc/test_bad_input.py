"""Bytes that are not a request: each gets an error or an answer, and the member goes on."""

import random
from collections.abc import Iterator

import pytest

from kvorum.api import errors, requests
from kvorum.api.errors import Code, Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.network.edge.interface import EdgeEventKind, Event
from kvorum.server.rpc.table import NUMBERS, RPCS
from tests.etcd import is_target
from tests.server.rpc.harness import Harness
from tests.server.rpc.oracle import METHODS, Oracle

STRINGS = 4_000
BATCH = 500
UNARY = [rpc.path for rpc in RPCS if not rpc.is_stream]
STREAMS = [rpc.path for rpc in RPCS if rpc.is_stream]
# These may wait for ever, until their clients give up: for a lock, or because raft ignores a
# change of the membership while another one is under way.
WAITING = {
    "/v3lockpb.Lock/Lock",
    "/v3electionpb.Election/Campaign",
    "/etcdserverpb.Cluster/MemberAdd",
    "/etcdserverpb.Cluster/MemberRemove",
    "/etcdserverpb.Cluster/MemberUpdate",
    "/etcdserverpb.Cluster/MemberPromote",
}

EXAMPLES: dict[str, list[bytes]] = {
    "/etcdserverpb.KV/Put": [
        pb.PutRequest(key=b"a", value=b"1", lease=5, prev_kv=True).SerializeToString()
    ],
    "/etcdserverpb.KV/Txn": [
        pb.TxnRequest(
            compare=[pb.Compare(key=b"a", target=pb.Compare.CREATE, create_revision=3)],
            success=[pb.RequestOp(request_put=pb.PutRequest(key=b"a", value=b"1"))],
            failure=[pb.RequestOp(request_txn=pb.TxnRequest())],
        ).SerializeToString()
    ],
    "/etcdserverpb.Watch/Watch": [
        pb.WatchRequest(
            create_request=pb.WatchCreateRequest(key=b"a", start_revision=1, prev_kv=True)
        ).SerializeToString()
    ],
}


def strings(path: str) -> Iterator[bytes]:
    """Make random strings, and damaged messages."""
    source = random.Random(path)
    examples = EXAMPLES.get(path, [b"\x0a\x01a\x12\x01b\x18\x05\x20\x01"])
    for number in range(STRINGS):
        if number % 2:
            yield source.randbytes(source.randrange(24))
        else:
            damaged = bytearray(source.choice(examples))
            for _ in range(source.randint(1, 3)):
                damaged[source.randrange(len(damaged))] = source.randrange(256)
            yield bytes(damaged)


@pytest.fixture
def harness() -> Harness:
    # Thousands of passwords are hashed.
    return Harness(bcrypt_cost=4)


def check_alive(harness: Harness) -> None:
    put = harness.ask("KV/Put", pb.PutRequest(key=b"alive", value=b"yes"))
    assert not isinstance(put, Status)
    assert not harness.member.boundary.counts


@pytest.mark.parametrize("path", UNARY)
def test_random_requests(harness: Harness, path: str) -> None:
    answered = 0
    pending: list[bytes] = []
    for payload in strings(path):
        pending.append(payload)
        if len(pending) == BATCH:
            answered += answer_all(harness, path, pending)
            pending = []
    assert answered == STRINGS
    check_alive(harness)


def answer_all(harness: Harness, path: str, payloads: list[bytes]) -> int:
    calls = harness.begin_all(path, payloads)
    edge = harness.edge
    if path in WAITING:
        harness.settle()
        waiting = [call for call in calls if call not in edge.replies]
        harness.arrive((), [(EdgeEventKind.ENDED, call, None) for call in waiting])
        calls = [call for call in calls if call in edge.replies]
    else:
        waiting = []
        harness.until(lambda: all(call in edge.replies for call in calls), 3600.0)
    for call in calls:
        result = edge.replies.pop(call)
        if isinstance(result, bytes) and path in METHODS:
            METHODS[path].response.FromString(result)
    return len(calls) + len(waiting)


@pytest.mark.parametrize("path", STREAMS)
def test_random_messages(harness: Harness, path: str) -> None:
    gone: list[Event] = []
    for call, payload in enumerate(strings(path), 1 << 40):
        opened = (EdgeEventKind.OPENED, call, (NUMBERS[path], None))
        harness.turn((), [*gone, opened, (EdgeEventKind.MESSAGE, call, payload)])
        gone = [(EdgeEventKind.ENDED, call, None)]
        status = harness.edge.finished.pop(call, None)
        sent = harness.edge.sent.pop(call, None)
        assert sent or status is None or status.code is not Code.OK
    harness.arrive((), gone)
    assert harness.member.hub.streams_open == 0
    check_alive(harness)


@pytest.mark.parametrize(
    "payload",
    [
        b"\x0a",  # cut off
        b"\x0a\x05a",  # shorter than it says
        b"\x00\x01",  # field 0
        b"\x0c",  # the end of a group that did not begin
        b"\x80\x80\x80\x80\x10\x01",  # a field number of 2^29
        b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a number of more than ten bytes
    ],
)
def test_broken_messages(harness: Harness, oracle: Oracle, payload: bytes) -> None:
    for path in ("/etcdserverpb.KV/Range", "/etcdserverpb.KV/Put", "/etcdserverpb.KV/Txn"):
        ours = harness.ask_bytes(path, payload)
        assert isinstance(ours, Status)
        assert ours.code is Code.INTERNAL
        assert ours.text.startswith("grpc: error unmarshalling request: ")
        theirs = oracle.ask_bytes(path, payload)
        if is_target() or payload[0] not in (0x80, 0x08):  # taken by etcd 3.5.1
            assert isinstance(theirs, Status)
            assert theirs.code is Code.INTERNAL


def test_a_broken_message_ends_its_stream(harness: Harness) -> None:
    for name in ("Watch/Watch", "Lease/LeaseKeepAlive", "KV/RangeStream", "Election/Observe"):
        stream = harness.open(name)
        stream.send(b"\x0a\x05a")
        assert stream.status is not None
        assert stream.status.code is Code.INTERNAL
        assert stream.status.text.startswith("grpc: failed to unmarshal the received message: ")


@pytest.mark.parametrize(
    ("payload", "value"),
    [
        (b"\x0a\x01a\x12\x011\x78\x01", b"1"),  # an unknown field
        (b"\x0a\x01a\x12\x011\x12\x012", b"2"),  # a field twice: the last counts
        (b"\x12\x013\x0a\x01a", b"3"),  # out of order
        (b"\x0a\x01a\x10\x05", b""),  # a known field with another wire type is unknown
    ],
)
def test_unusual_messages_are_served(harness: Harness, payload: bytes, value: bytes) -> None:
    assert requests.parse_put(payload) is None
    assert isinstance(harness.ask_bytes("/etcdserverpb.KV/Put", payload), bytes)
    found = harness.ask("KV/Range", pb.RangeRequest(key=b"a"))
    assert found.kvs[0].value == value


def test_request_sizes() -> None:
    harness = Harness(request_bytes_max=1000)
    small = pb.PutRequest(key=b"a", value=bytes(900))
    assert not isinstance(harness.ask("KV/Put", small), Status)
    large = pb.PutRequest(key=b"a", value=bytes(1000))
    assert harness.ask("KV/Put", large) == errors.REQUEST_TOO_LARGE
    txn = pb.TxnRequest(success=[pb.RequestOp(request_put=large)])
    assert harness.ask("KV/Txn", txn) == errors.REQUEST_TOO_LARGE


def test_the_number_of_operations_is_an_option() -> None:
    harness = Harness(operations_max=1)
    read = pb.RequestOp(request_range=pb.RangeRequest(key=b"a"))
    assert not isinstance(harness.ask("KV/Txn", pb.TxnRequest(success=[read])), Status)
    assert harness.ask("KV/Txn", pb.TxnRequest(success=[read] * 2)) == errors.TOO_MANY_OPS
