"""Messages of a Watch stream are cut into the parts that protobuf finds in them."""

from contextlib import suppress

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.mvccpb import Event, KeyValue
from kvorum.proxy.watch_wire import Reader, header_at

PREFIX = b"prefix/"
numbers = st.integers(1, 2**63 - 1)
names = st.binary(min_size=1, max_size=200).map(lambda name: PREFIX + name)
puts = st.builds(
    KeyValue,
    key=names,
    create_revision=numbers,
    mod_revision=numbers,
    version=numbers,
    value=st.binary(max_size=300),
    lease=st.integers(0, 2**63 - 1),
)
tombstones = st.builds(KeyValue, key=names, mod_revision=numbers)


@st.composite
def events(draw: st.DrawFn) -> Event:
    is_deletion = draw(st.booleans())
    event = Event(
        type=Event.DELETE if is_deletion else Event.PUT,
        kv=draw(tombstones if is_deletion else puts),
    )
    if draw(st.booleans()):
        event.prev_kv.CopyFrom(draw(puts))
    return event


headers = st.builds(
    pb.ResponseHeader,
    cluster_id=st.integers(0, 2**64 - 1),
    member_id=st.integers(0, 2**64 - 1),
    revision=st.integers(0, 2**63 - 1),
    raft_term=st.integers(0, 2**64 - 1),
)
responses = st.builds(
    pb.WatchResponse,
    header=headers,
    watch_id=st.one_of(st.just(-1), st.integers(-(2**63), 2**63 - 1)),
    created=st.booleans(),
    canceled=st.booleans(),
    compact_revision=st.integers(0, 2**63 - 1),
    cancel_reason=st.text(max_size=100),
    events=st.lists(events(), max_size=2),
)


def _only(event: Event) -> bytes:
    return pb.WatchResponse(events=[event]).SerializeToString()


def _stripped(event: Event) -> Event:
    found = Event.FromString(event.SerializeToString())
    found.kv.key = found.kv.key[len(PREFIX) :]
    if found.HasField("prev_kv"):
        found.prev_kv.key = found.prev_kv.key[len(PREFIX) :]
    return found


@given(st.lists(responses, min_size=1, max_size=2), st.booleans())
def test_parts(messages: list[pb.WatchResponse], has_prefix: bool) -> None:
    reader = Reader(len(PREFIX) if has_prefix else 0)
    for message in messages:
        told = reader.read(message.SerializeToString())
        assert told.header == pb.WatchResponse(header=message.header).SerializeToString()
        assert told.revision == message.header.revision
        assert told.watch_id == message.watch_id
        assert (told.created, told.canceled) == (message.created, message.canceled)
        assert told.compact_revision == message.compact_revision
        assert told.reason == message.cancel_reason
        for found, event in zip(told.events, message.events, strict=True):
            expected = _stripped(event) if has_prefix else event
            assert found.revision == event.kv.mod_revision
            assert found.is_deletion == (event.type == Event.DELETE)
            assert found.field == _only(expected)
            expected.ClearField("prev_kv")
            assert found.plain == _only(expected)


@given(headers, st.integers(0, 2**63 - 1))
def test_another_revision(header: pb.ResponseHeader, revision: int) -> None:
    field = pb.WatchResponse(header=header).SerializeToString()
    header.revision = revision
    assert header_at(field, revision) == pb.WatchResponse(header=header).SerializeToString()


@given(responses, st.data())
def test_cut_off(message: pb.WatchResponse, data: st.DataObject) -> None:
    whole = message.SerializeToString()
    size = data.draw(st.integers(0, len(whole)))
    try:
        expected = pb.WatchResponse.FromString(whole[:size])
    except DecodeError:
        with pytest.raises(ValueError, match=r"cut off|no key|no revision|begin with"):
            Reader().read(whole[:size])
        return
    assert len(Reader().read(whole[:size]).events) == len(expected.events)


@given(st.binary(max_size=100))
def test_anything_is_read_or_refused(data: bytes) -> None:
    with suppress(ValueError):
        Reader(3).read(data)


def test_fragments_were_not_asked_for() -> None:
    with pytest.raises(ValueError, match="fragment"):
        Reader().read(pb.WatchResponse(fragment=True).SerializeToString())
