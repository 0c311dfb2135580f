"""Streams: answers in order, what waits while a client takes nothing, and how they end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.api import errors
from kvorum.api.codec import varint
from kvorum.api.errors import Code, Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.mvccpb import Event as Put
from kvorum.network.edge.interface import EdgeEventKind, Event
from kvorum.server.rpc.keepalives import UNTAKEN_BYTES_MAX, WAITING_MAX
from kvorum.server.rpc.watch import FILTERS_MAX
from tests.server.rpc.harness import Harness, Stream


@pytest.fixture
def harness() -> Harness:
    return Harness()


def fill(harness: Harness, count: int, size: int = 10) -> None:
    for number in range(count):
        harness.ask("KV/Put", pb.PutRequest(key=b"k%04d" % number, value=bytes(size)))


def grant(harness: Harness, lease: int, ttl: int) -> None:
    harness.ask("Lease/LeaseGrant", pb.LeaseGrantRequest(ID=lease, TTL=ttl))


# Keep-alive.


def keep_alive(harness: Harness, *leases: int) -> Stream:
    stream = harness.open("Lease/LeaseKeepAlive")
    for lease in leases:
        stream.send(pb.LeaseKeepAliveRequest(ID=lease))
    return stream


def test_every_keep_alive_is_answered_in_order(harness: Harness) -> None:
    grant(harness, 7, 100)
    grant(harness, 8, 200)
    stream = keep_alive(harness, 7, 99, 8, 7)
    answers = [(each.ID, each.TTL) for each in stream.received()]
    assert answers == [(7, 100), (99, 0), (8, 200), (7, 100)]
    stream.half_close()
    assert stream.status == Status(Code.OK, "")


def test_a_kept_lease_lives(harness: Harness) -> None:
    grant(harness, 7, 5)
    stream = keep_alive(harness)
    for _ in range(4):
        harness.pass_time(3.0)
        stream.send(pb.LeaseKeepAliveRequest(ID=7))
    assert [each.TTL for each in stream.received()] == [5] * 4
    harness.pass_time(6.5)
    stream.send(pb.LeaseKeepAliveRequest(ID=7))
    assert [each.TTL for each in stream.received()] == [0]


def test_the_end_of_the_requests_waits_for_the_answers(harness: Harness) -> None:
    grant(harness, 7, 5)
    stream = harness.open("Lease/LeaseKeepAlive")
    # An unknown lease takes a while to answer; requests after it wait.
    events: list[Event] = [
        (EdgeEventKind.MESSAGE, stream.call, pb.LeaseKeepAliveRequest(ID=lease).SerializeToString())
        for lease in (99, 7)
    ]
    harness.arrive((), [*events, (EdgeEventKind.HALF_CLOSED, stream.call, None)])
    assert [(each.ID, each.TTL) for each in stream.received()] == [(99, 0), (7, 5)]
    assert stream.status == Status(Code.OK, "")


def test_a_client_that_takes_no_answers(harness: Harness) -> None:
    grant(harness, 7, 100)
    stream = keep_alive(harness)
    harness.edge.pending[stream.call] = UNTAKEN_BYTES_MAX
    stream.send(pb.LeaseKeepAliveRequest(ID=7))
    assert stream.status is None
    stream.send(pb.LeaseKeepAliveRequest(ID=7))
    assert stream.status == errors.REQUEST_TOO_MANY_REQUESTS


def test_a_client_that_does_not_wait_for_answers(harness: Harness) -> None:
    payload = pb.LeaseKeepAliveRequest(ID=99).SerializeToString()
    patient, hasty = harness.open("Lease/LeaseKeepAlive"), harness.open("Lease/LeaseKeepAlive")
    harness.arrive((), [(EdgeEventKind.MESSAGE, patient.call, payload)] * WAITING_MAX)
    assert patient.status is None
    assert len(patient.received()) == WAITING_MAX
    harness.arrive((), [(EdgeEventKind.MESSAGE, hasty.call, payload)] * (WAITING_MAX + 1))
    assert hasty.status == errors.REQUEST_TOO_MANY_REQUESTS


# RangeStream.


def range_stream(harness: Harness, request: pb.RangeRequest) -> list[pb.RangeResponse]:
    stream = harness.open("KV/RangeStream")
    stream.send(request)
    stream.half_close()
    assert stream.status == Status(Code.OK, "")
    return [each.range_response for each in stream.received()]


def merged(pieces: list[pb.RangeResponse]) -> pb.RangeResponse:
    whole = pb.RangeResponse()
    for piece in pieces:
        whole.MergeFrom(piece)
    return whole


@pytest.fixture(scope="module")
def filled() -> Harness:
    harness = Harness(request_bytes_max=2000)
    fill(harness, 300, 30)
    harness.ask("KV/Compact", pb.CompactionRequest(revision=50))
    return harness


@given(
    request=st.builds(
        pb.RangeRequest,
        key=st.sampled_from([b"k", b"k0005", b"k0100", b"x"]),
        range_end=st.sampled_from([b"", b"\0", b"l", b"k0150", b"k0007"]),
        limit=st.sampled_from([0, -1, 1, 9, 10, 11, 30, 299, 300, 301]),
        revision=st.sampled_from([0, -1, 100, 50]),
        serializable=st.booleans(),
        keys_only=st.booleans(),
        count_only=st.booleans(),
        sort_order=st.sampled_from([0, 0, 1]),
    )
)
def test_the_pieces_are_the_range(filled: Harness, request: pb.RangeRequest) -> None:
    pieces = range_stream(filled, request)
    assert merged(pieces) == filled.ask("KV/Range", request)
    *others, last = pieces
    assert last.HasField("header")
    assert not any(each.HasField("header") or each.more or each.count for each in others)
    if request.limit < 0:
        assert not others
    elif not request.count_only:
        # Pieces grow as long as they are small, and shrink when they are large.
        limit = filled.member.config.request_bytes_max
        assert all(each.ByteSize() <= 4 * limit for each in pieces)


def test_pieces_begin_with_ten_keys(filled: Harness) -> None:
    request = pb.RangeRequest(key=b"k", range_end=b"l", keys_only=True)
    sizes = [len(each.kvs) for each in range_stream(filled, request)]
    assert sizes[:2] == [10, 20]
    assert sum(sizes) == 300


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"key": b""}, errors.EMPTY_KEY),
        ({"key": b"k", "revision": 10**6}, errors.FUTURE_REV),
        ({"key": b"k", "revision": 5}, errors.COMPACTED),
        ({"key": b"k", "sort_order": 2}, errors.RANGE_STREAM_SORTED),
        ({"key": b"k", "min_mod_revision": 2}, errors.RANGE_STREAM_FILTERED),
    ],
)
def test_streamed_ranges_that_are_refused(
    filled: Harness, fields: dict[str, int], status: Status
) -> None:
    stream = filled.open("KV/RangeStream")
    stream.send(pb.RangeRequest(**fields))  # type: ignore[arg-type]
    assert stream.status == status
    assert stream.received() == []


def test_a_streamed_range_keeps_its_revision(filled: Harness) -> None:
    """Changes made while the client takes nothing are not seen."""
    request = pb.RangeRequest(key=b"k", range_end=b"l", keys_only=True)
    before = filled.ask("KV/Range", request)
    stream = filled.open("KV/RangeStream")
    filled.edge.pending[stream.call] = 1 << 20
    filled.looks_max = 1
    stream.send(request)
    filled.looks_max = 0
    filled.ask("KV/Put", pb.PutRequest(key=b"k9999"))
    filled.ask("KV/DeleteRange", pb.DeleteRangeRequest(key=b"k0299"))
    assert stream.status is None
    del filled.edge.pending[stream.call]
    stream.writable()
    assert stream.status == Status(Code.OK, "")
    pieces = [each.range_response for each in stream.received()]
    assert merged(pieces) == before
    filled.ask("KV/DeleteRange", pb.DeleteRangeRequest(key=b"k9999"))
    filled.ask("KV/Put", pb.PutRequest(key=b"k0299", value=bytes(30)))


def test_a_stream_without_a_request(harness: Harness) -> None:
    for name in ("KV/RangeStream", "Election/Observe"):
        stream = harness.open(name)
        stream.half_close()
        assert stream.status == errors.NO_REQUEST


# Watch.


def create(stream: Stream, **fields: int) -> None:
    request = pb.WatchCreateRequest(key=b"\0", range_end=b"\0", **fields)  # type: ignore[arg-type]
    stream.send(pb.WatchRequest(create_request=request))


def revisions(stream: Stream) -> list[int]:
    return [event.kv.mod_revision for each in stream.received() for event in each.events]


def test_a_watch_outlives_its_last_request(harness: Harness) -> None:
    stream = harness.open("Watch/Watch")
    create(stream)
    stream.half_close()
    fill(harness, 3)
    assert revisions(stream) == [2, 3, 4]
    assert stream.status is None


def test_a_watch_whose_client_takes_nothing(harness: Harness) -> None:
    slow, fast = harness.open("Watch/Watch"), harness.open("Watch/Watch")
    create(slow)
    create(fast)
    harness.edge.pending[slow.call] = 0
    fill(harness, 200, 1000)
    # Little more than a stream may have unsent.
    assert len(harness.edge.sent[slow.call]) < 80
    assert revisions(fast) == list(range(2, 202))
    harness.edge.pending[slow.call] = 0
    slow.writable()
    harness.edge.pending[slow.call] = 0
    while harness.member.hub.watchers_behind:
        slow.writable()
        harness.edge.pending[slow.call] = 0
        harness.pass_time(0.1)
    assert revisions(slow) == list(range(2, 202))


def test_a_watch_that_is_cancelled_leaves_nothing(harness: Harness) -> None:
    stream = harness.open("Watch/Watch")
    for _ in range(10):
        create(stream)
    stream.cancel()
    assert (harness.member.hub.streams_open, harness.member.hub.watchers_open) == (0, 0)
    fill(harness, 1)


def test_the_end_of_the_server_ends_streams(harness: Harness) -> None:
    names = ("Watch/Watch", "Lease/LeaseKeepAlive", "KV/RangeStream", "Election/Observe")
    streams = [harness.open(name) for name in names]
    harness.end()
    assert [stream.status for stream in streams] == [errors.STOPPED] * 4
    assert harness.member.hub.streams_open == 0


@pytest.mark.parametrize("encoding", ["packed", "one by one"])
def test_the_filters_of_a_watch_are_limited(harness: Harness, encoding: str) -> None:
    """A million of them would take longer to look at than a million bytes."""

    def create(count: int) -> bytes:
        values = b"\x2a" + varint(count) + b"\x01" * count if encoding == "packed" else b""
        inner = b"\x0a\x01a" + (values or b"\x28\x01" * count)
        return b"\x0a" + varint(len(inner)) + inner

    stream = harness.open("Watch/Watch")
    stream.send(create(FILTERS_MAX))
    stream.send(create(FILTERS_MAX + 1))
    created, refused = stream.received()
    assert (created.created, created.canceled) == (True, False)
    assert (refused.created, refused.canceled, refused.watch_id) == (True, True, -1)
    assert str(FILTERS_MAX + 1) in refused.cancel_reason
    # The first one filters: its client hears of puts, and of no deletions.
    harness.ask("KV/Put", pb.PutRequest(key=b"a"))
    harness.ask("KV/DeleteRange", pb.DeleteRangeRequest(key=b"a"))
    (response,) = stream.received()
    assert [event.type for event in response.events] == [Put.PUT]
    assert stream.status is None
