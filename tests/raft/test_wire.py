"""Bytes of raftpb: what protobuf reads of ours, and what we read of anybody's."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.api.codec import varint
from kvorum.api.pb import raftpb
from kvorum.raft import wire
from kvorum.raft.changes import Change, ConfChange, ConfChangeV2
from kvorum.raft.entries import Entry
from kvorum.raft.messages import ConfState, HardState, Message, Snapshot
from tests.raft.protobuf import (
    all_messages,
    conf_states,
    entries,
    hard_states,
    numbers,
    payloads,
    protobuf_conf_state,
    protobuf_entry,
    protobuf_message,
    protobuf_snapshot,
    snapshots,
)


@given(entries)
def test_entry(entry: Entry) -> None:
    encoded = wire.encode_entry(entry)
    assert encoded == protobuf_entry(entry, explicit=False).SerializeToString()
    assert len(encoded) == entry.size
    assert wire.decode_entry(encoded) == entry
    explicit = protobuf_entry(entry, explicit=True).SerializeToString()
    assert wire.decode_entry(explicit) == entry


@given(all_messages)
def test_message(message: Message) -> None:
    encoded = wire.encode_message(message)
    assert encoded == protobuf_message(message, explicit=False).SerializeToString()
    assert wire.decode_message(encoded) == message
    explicit = protobuf_message(message, explicit=True).SerializeToString()
    assert wire.decode_message(explicit) == message


@given(hard_states)
def test_hard_state(state: HardState) -> None:
    encoded = wire.encode_hard_state(state)
    expected = raftpb.HardState(term=state.term, vote=state.vote, commit=state.commit)
    assert encoded == expected.SerializeToString()
    assert wire.decode_hard_state(encoded) == state


@given(conf_states)
def test_conf_state(state: ConfState) -> None:
    encoded = wire.encode_conf_state(state)
    assert encoded == protobuf_conf_state(state).SerializeToString()
    assert wire.decode_conf_state(encoded) == state
    packed = b"\x0a" + varint(len(b"".join(map(varint, state.voters))))
    packed += b"".join(map(varint, state.voters))
    assert wire.decode_conf_state(packed).voters == state.voters


@given(snapshots)
def test_snapshot(snapshot: Snapshot) -> None:
    encoded = wire.encode_snapshot(snapshot)
    assert encoded == protobuf_snapshot(snapshot).SerializeToString()
    assert wire.decode_snapshot(encoded) == snapshot


changes_v1 = st.builds(ConfChange, st.integers(0, 3), numbers, payloads, numbers)
changes_v2 = st.builds(
    ConfChangeV2,
    st.integers(0, 2),
    st.lists(st.builds(Change, st.integers(0, 3), numbers), max_size=4).map(tuple),
    payloads,
)


@given(changes_v1 | changes_v2)
def test_conf_change(change: ConfChange | ConfChangeV2) -> None:
    kind, data = wire.encode_conf_change(change)
    assert wire.decode_conf_change(Entry(kind, 1, 1, data)) == change
    if isinstance(change, ConfChange):
        parsed = raftpb.ConfChange.FromString(data)
        assert (parsed.type, parsed.node_id) == (change.type, change.node_id)
        assert (parsed.context, parsed.id) == (change.context, change.id)
    else:
        version_2 = raftpb.ConfChangeV2.FromString(data)
        assert version_2.transition == change.transition
        assert (
            tuple(Change(each.type, each.node_id) for each in version_2.changes) == change.changes
        )
        assert version_2.context == change.context


@pytest.mark.parametrize(
    ("term", "index", "kind", "size"), [(150, 150, 2, 8), (101, 101, 2, 6), (1, 1, 0, 4)]
)
def test_sizes_known_from_the_field(term: int, index: int, kind: int, size: int) -> None:
    assert Entry(kind, term, index).size == size


def test_an_empty_change_leaves_a_joint_configuration() -> None:
    assert wire.encode_conf_change(ConfChangeV2()) == (2, b"")
    decoded = wire.decode_conf_change(Entry(2, 1, 1, b""))
    assert decoded.as_v2().leaves_joint()


@given(all_messages, st.data())
def test_unknown_fields_are_skipped(message: Message, data: st.DataObject) -> None:
    unknown = data.draw(
        st.sampled_from(
            [b"\xf8\x06\x05", b"\xf9\x06" + bytes(8), b"\xfa\x06\x01x", b"\xfd\x06abcd"]
        )
    )
    assert wire.decode_message(unknown + wire.encode_message(message) + unknown) == message


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for decode in (
        wire.decode_message,
        wire.decode_entry,
        wire.decode_snapshot,
        wire.decode_conf_state,
        wire.decode_hard_state,
        lambda data: wire.decode_conf_change(Entry(1, 1, 1, data)),
        lambda data: wire.decode_conf_change(Entry(2, 1, 1, data)),
    ):
        with suppress(ValueError):
            decode(data)


@pytest.mark.parametrize(
    ("decode", "data", "text"),
    [
        (wire.decode_message, b"\x08\x18", "message type 24 is unknown"),
        (wire.decode_entry, b"\x08\x03", "entry type 3 is unknown"),
        (wire.decode_message, b"\x3a\x05ab", "field 7 ends at 7, behind the 4 bytes given"),
        (wire.decode_message, b"\x12\x00", "field 2 is a string of bytes"),
        (wire.decode_message, b"\x38\x01", "field 7 is the number 1; expected bytes"),
        (wire.decode_message, b"\x0b", "wire type 3"),
    ],
)
def test_what_is_refused(decode: Any, data: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        decode(data)


def test_responses_within_responses_are_refused() -> None:
    data = b""
    for _ in range(3):
        data = b"\x72" + varint(len(data)) + data
    with pytest.raises(ValueError, match="a response holds responses"):
        wire.decode_message(data)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (Entry(1, 1, 1, b"\x10\x04"), "conf change type 4 is unknown"),
        (Entry(2, 1, 1, b"\x08\x03"), "transition 3 is unknown"),
        (Entry(2, 1, 1, b"\x12\x02\x08\x09"), "conf change type 9 is unknown"),
    ],
)
def test_changes_that_are_refused(entry: Entry, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        wire.decode_conf_change(entry)
