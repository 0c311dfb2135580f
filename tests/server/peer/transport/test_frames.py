"""Frames of the two streams: against a slow second encoder, chopped, cut, spoiled and oversize."""

from collections.abc import Iterable, Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.raft.entries import Entry
from kvorum.raft.messages import Message, MessageType
from kvorum.server.peer.transport.frames import (
    APPEND_HEARTBEAT,
    MESSAGE_HEARTBEAT,
    AppendReader,
    AppendWriter,
    EntriesEncoder,
    MessageReader,
    encode_message_frame,
)
from tests.raft.protobuf import all_messages, protobuf_entry, protobuf_message

SENDER, RECEIVER = 0x8E9E05C52164694D, 0x1
UINT64_MAX = (1 << 64) - 1

positions = st.one_of(st.integers(0, 300), st.integers(16370, 16400), st.integers(0, 1 << 62))
payloads = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([1, 127, 128, 300]).map(bytes),
)


def append(
    term: int, log_term: int, index: int, entries: list[tuple[int, bytes]], commit: int
) -> Message:
    """An append as raft makes it: within a term all entries are of that term."""
    return Message(
        MessageType.APP,
        to=RECEIVER,
        sender=SENDER,
        term=term,
        log_term=log_term,
        index=index,
        entries=[
            Entry(kind, term, index + 1 + place, data) for place, (kind, data) in enumerate(entries)
        ]
        or (),
        commit=commit,
    )


@st.composite
def conversations(draw: st.DrawFn, *, size_max: int = 1 << 22) -> list[Message]:
    """Appends that mostly continue each other, and sometimes do not."""
    contents = st.lists(st.tuples(st.integers(0, 2), payloads), max_size=4)
    made: list[Message] = []
    term = index = log_term = 0
    size = 0
    for _ in range(draw(st.integers(0, 8))):
        if draw(st.integers(0, 3)) == 0:
            log_term = term
            term = draw(st.integers(term, term + 2))
            index = draw(positions)
        message = append(term, log_term, index, draw(contents), draw(positions))
        size += sum(entry.size for entry in message.entries)
        if size > size_max:
            break
        made.append(message)
        index += len(message.entries)
        log_term = term
    return made


def plainly_encoded(messages: Iterable[Message]) -> bytes:
    """The append stream from its description, by protobuf's own encoder."""
    stream = b""
    term = index = 0

    def word(number: int) -> bytes:
        return number.to_bytes(8, "big")

    for message in messages:
        if message.index == index and message.log_term == term and message.log_term == message.term:
            stream += b"\x01" + word(len(message.entries))
            for entry in message.entries:
                data = protobuf_entry(entry, explicit=False).SerializeToString()
                stream += word(len(data)) + data
            stream += word(message.commit)
            index += len(message.entries)
        else:
            data = protobuf_message(message, explicit=False).SerializeToString()
            stream += b"\x02" + word(len(data)) + data
            term = message.term
            index = message.entries[-1].index if message.entries else message.index
    return stream


def chopped(stream: bytes, sizes: Iterable[int]) -> Iterator[bytes]:
    start = 0
    for size in sizes:
        if start >= len(stream):
            return
        yield stream[start : start + size]
        start += size
    yield stream[start:]


cuts = st.lists(st.one_of(st.integers(1, 3), st.integers(1, 40), st.integers(1, 100_000)))


def encoded(messages: Iterable[Message]) -> bytes:
    writer = AppendWriter(EntriesEncoder())
    return b"".join(writer.encode(message) for message in messages)


@settings(deadline=None)
@given(conversations())
def test_appends_are_the_bytes_of_the_description(messages: list[Message]) -> None:
    assert encoded(messages) == plainly_encoded(messages)


@settings(deadline=None)
@given(conversations(), cuts)
def test_appends_arrive_however_they_are_chopped(messages: list[Message], sizes: list[int]) -> None:
    reader = AppendReader(SENDER, RECEIVER)
    heard: list[Message] = []
    for piece in chopped(encoded(messages), sizes):
        heard += reader.feed(piece)
    assert [plain(message) for message in heard] == [plain(message) for message in messages]


def plain(message: Message) -> Message:
    """The same message with its entries in a tuple, so that equal ones compare equal."""
    message.entries = tuple(message.entries)
    return message


@settings(deadline=None)
@given(conversations(), cuts)
def test_appends_of_members_before_3_7_are_read(messages: list[Message], sizes: list[int]) -> None:
    """They write every zero, the type of an entry among them."""
    stream = b""
    term = index = 0
    for message in messages:
        if message.index == index and message.log_term == message.term == term:
            stream += b"\x01" + len(message.entries).to_bytes(8, "big")
            for entry in message.entries:
                data = protobuf_entry(entry, explicit=True).SerializeToString()
                stream += len(data).to_bytes(8, "big") + data
            stream += message.commit.to_bytes(8, "big")
        else:
            data = protobuf_message(message, explicit=True).SerializeToString()
            stream += b"\x02" + len(data).to_bytes(8, "big") + data
        term, index = message.term, message.index + len(message.entries)
    reader = AppendReader(SENDER, RECEIVER)
    heard: list[Message] = []
    for piece in chopped(stream, sizes):
        heard += reader.feed(piece)
    assert [plain(message) for message in heard] == [plain(message) for message in messages]


@pytest.mark.parametrize("length", [16383, 16384, 70_000, (1 << 21) - 1, 1 << 21, 1 << 22])
def test_large_entries_arrive(length: int) -> None:
    messages = [append(2, 1, 7, [], 3), append(2, 2, 7, [(1, bytes(length)), (0, b"x")], 3)]
    stream = encoded(messages)
    assert stream == plainly_encoded(messages)
    reader = AppendReader(SENDER, RECEIVER)
    heard = [message for piece in chopped(stream, [100_000] * 50) for message in reader.feed(piece)]
    assert [plain(message) for message in heard] == [plain(message) for message in messages]


@settings(deadline=None)
@given(conversations())
def test_heartbeats_stand_between_appends(messages: list[Message]) -> None:
    writer, reader = AppendWriter(EntriesEncoder()), AppendReader(SENDER, RECEIVER)
    stream = b"".join(APPEND_HEARTBEAT + writer.encode(message) for message in messages)
    heard = reader.feed(stream + APPEND_HEARTBEAT)
    assert [plain(message) for message in heard] == [plain(message) for message in messages]


@settings(deadline=None)
@given(conversations(size_max=2000), st.data())
def test_spoiled_appends_are_refused_or_read_but_never_crash(
    messages: list[Message], data: st.DataObject
) -> None:
    stream = bytearray(encoded(messages) or b"\x00")
    for _ in range(data.draw(st.integers(1, 4))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    reader = AppendReader(SENDER, RECEIVER, frame_bytes_max=1 << 20)
    with suppress(ValueError):
        for piece in chopped(bytes(stream), data.draw(cuts)):
            for message in reader.feed(piece):
                expected = range(message.index + 1, message.index + 1 + len(message.entries))
                assert [entry.index for entry in message.entries] == list(expected)


@settings(deadline=None)
@given(st.binary(max_size=200), cuts)
def test_garbage_is_refused_or_read_but_never_crashes(garbage: bytes, sizes: list[int]) -> None:
    for reader in (AppendReader(SENDER, RECEIVER), MessageReader()):
        with suppress(ValueError):
            for piece in chopped(garbage, sizes):
                reader.feed(piece)


@settings(deadline=None)
@given(st.lists(all_messages, max_size=6), cuts)
def test_messages_arrive_however_they_are_chopped(
    messages: list[Message], sizes: list[int]
) -> None:
    messages = [
        message for message in messages if message.type not in (MessageType.APP,) and message.to
    ]
    stream = b"".join(encode_message_frame(each) + MESSAGE_HEARTBEAT for each in messages)
    for message in messages:
        frame = encode_message_frame(message)
        assert frame[8:] == protobuf_message(message, explicit=False).SerializeToString()
        assert frame[:8] == (len(frame) - 8).to_bytes(8, "big")
    reader = MessageReader()
    heard: list[Message] = []
    for piece in chopped(stream, sizes):
        heard += reader.feed(piece)
    assert heard == messages


def test_the_heartbeat_of_the_link_in_both_forms_is_no_message() -> None:
    explicit = protobuf_message(Message(MessageType.HEARTBEAT), explicit=True).SerializeToString()
    reader = MessageReader()
    assert reader.feed(len(explicit).to_bytes(8, "big") + explicit + MESSAGE_HEARTBEAT) == []
    raft = Message(MessageType.HEARTBEAT, to=RECEIVER, sender=SENDER, term=2)
    assert reader.feed(encode_message_frame(raft)) == [raft]


def test_a_message_at_the_limit_is_taken_and_one_past_it_refused_by_its_length() -> None:
    message = Message(MessageType.PROP, to=1, sender=2, entries=[Entry(0, 0, 0, bytes(1000))])
    frame = encode_message_frame(message)
    assert MessageReader(len(frame) - 8).feed(frame) == [message]
    with pytest.raises(ValueError, match="at most"):
        MessageReader(len(frame) - 9).feed(frame[:8])


def test_an_append_at_the_limit_is_taken_and_one_past_it_refused_by_its_length() -> None:
    first = append(2, 1, 7, [], 3)
    second = append(2, 2, 7, [(0, bytes(100)), (0, bytes(100))], 3)
    stream = encoded([first, second])
    start = len(encoded([first]))
    frame_bytes = sum(8 + entry.size for entry in second.entries) - 8
    assert len(AppendReader(SENDER, RECEIVER, frame_bytes).feed(stream)) == 2
    reader = AppendReader(SENDER, RECEIVER, frame_bytes - 1)
    # The length of the second entry goes past it, long before the entry is there.
    length = start + 9 + 8 + second.entries[0].size
    assert len(reader.feed(stream[:length])) == 1
    with pytest.raises(ValueError, match="at most"):
        reader.feed(stream[length : length + 8])


def test_a_whole_append_past_the_limit_is_refused_by_its_length() -> None:
    stream = encoded([append(2, 1, 7, [(0, bytes(100))], 3)])
    with pytest.raises(ValueError, match="at most"):
        AppendReader(SENDER, RECEIVER, len(stream) - 10).feed(stream[:9])


@pytest.mark.parametrize(
    ("stream", "problem"),
    [
        (b"\x03" + bytes(20), "kind 3"),
        (b"\x02" + (2).to_bytes(8, "big") + b"\x08\x08", "type 8 among appends"),
        (b"\x01" + (1).to_bytes(8, "big") + bytes(8), "entry 0 of term 0, in place of 1"),
    ],
)
def test_what_is_wrong_is_named(stream: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        AppendReader(SENDER, RECEIVER).feed(stream)


def test_an_append_with_a_gap_is_refused_on_both_streams() -> None:
    message = Message(
        MessageType.APP, 1, 2, 3, 1, 5, [Entry(0, 3, 6), Entry(0, 3, 9), Entry(0, 3, 8)]
    )
    with pytest.raises(ValueError, match="entry 9 in place of 7"):
        MessageReader().feed(encode_message_frame(message))
    with pytest.raises(ValueError, match="entry 9 in place of 7"):
        AppendReader(2, 1).feed(AppendWriter(EntriesEncoder()).encode(message))


def test_a_large_count_of_entries_takes_no_memory_before_they_come() -> None:
    reader = AppendReader(SENDER, RECEIVER)
    assert reader.feed(b"\x01" + UINT64_MAX.to_bytes(8, "big")) == []


@settings(deadline=None)
@given(conversations())
def test_the_entries_of_a_batch_are_encoded_once(messages: list[Message]) -> None:
    entries = EntriesEncoder()
    writers = [AppendWriter(entries) for _ in range(2)]
    for message in messages:
        copy = append(message.term, message.log_term, message.index, [], message.commit)
        copy.entries = list(message.entries) or ()
        assert writers[0].encode(message) == writers[1].encode(copy)


def test_entries_of_another_log_are_not_taken_for_those_that_were_encoded() -> None:
    entries = EntriesEncoder()
    first, last, other = Entry(0, 1, 1, b"a"), Entry(0, 1, 2, b"b"), Entry(0, 1, 2, b"c")
    assert entries.encode([first, last]) != entries.encode([first, other])
    assert entries.encode([first]) != entries.encode([first, last])
