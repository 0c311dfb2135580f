"""Encode and decode the frames of the two raft streams.

The message stream frames each message by its length. The append stream carries only appends: an
append that continues where the last one ended, within a term, omits everything that both ends
know. Both ends keep the position after the last append, so one wrong byte corrupts the rest, and
the reader cancels the stream.

A reader takes pieces of any size, refuses a frame as soon as it sees a length that is too large,
and never holds more than one incomplete frame. After a ValueError, do not use the reader again.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final

from kvorum.api.codec import varint
from kvorum.raft.entries import Entry
from kvorum.raft.messages import NONE, Message, MessageType
from kvorum.raft.wire import decode_entry, decode_message, encode_message

FRAME_BYTES_MAX: Final = 512 << 20

_WORD: Final = Struct(">Q")
_pack_word: Final = _WORD.pack
_unpack_word: Final = _WORD.unpack_from

MESSAGE_HEARTBEAT: Final = _pack_word(2) + b"\x08\x08"
"""A link heartbeat on the message stream: a raft heartbeat from node 0 to node 0."""
APPEND_HEARTBEAT: Final = b"\x00"

_CONTINUED: Final = 1
_WHOLE: Final = 2


def decode_checked(data: bytes) -> Message:
    """Decode a message, and raise ValueError for an append with invalid entries.

    The entries of an append must have consecutive indexes, and no later term than the message.
    """
    message = decode_message(data)
    if message.type == MessageType.APP:
        expected, term = message.index, message.term
        for entry in message.entries:
            expected += 1
            if entry.index != expected:
                raise ValueError(f"an append has entry {entry.index} in place of {expected}")
            if entry.term > term:
                raise ValueError(f"an append of term {term} has an entry of term {entry.term}")
    return message


def encode_message_frame(message: Message) -> bytes:
    """Return a message as a frame of the message stream."""
    data = encode_message(message)
    return _pack_word(len(data)) + data


class MessageReader:
    """Decodes the message stream."""

    __slots__ = ("_frame_bytes_max", "_held", "_held_bytes", "_needed_bytes")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        # The start of an incomplete frame, and how many bytes it needs before parsing can go on.
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._needed_bytes = 0

    def feed(self, piece: bytes) -> list[Message]:
        """Take the next piece; return the complete messages, without heartbeats."""
        messages: list[Message] = []
        data = piece
        if self._held:
            self._held.append(piece)
            self._held_bytes += len(piece)
            if self._held_bytes < self._needed_bytes:
                return messages
            data = b"".join(self._held)
            self._held = []
        offset, end = 0, len(data)
        needed = 8
        while end - offset >= 8:
            length: int = _unpack_word(data, offset)[0]
            if length > self._frame_bytes_max:
                raise ValueError(
                    f"a message of {length} bytes; at most {self._frame_bytes_max} are taken"
                )
            needed = 8 + length
            if end - offset < needed:
                break
            message = decode_checked(data[offset + 8 : offset + needed])
            offset += needed
            needed = 8
            if message.type != MessageType.HEARTBEAT or message.to != NONE:
                messages.append(message)
        if offset < end:
            self._held = [data[offset:] if offset else data]
            self._held_bytes = end - offset
            self._needed_bytes = needed
        return messages


class EntriesEncoder:
    """Encodes the entries of appends, and reuses the encoding for the next node."""

    __slots__ = ("_encoded", "_entries")

    def __init__(self) -> None:
        self._entries: Sequence[Entry] = ()
        self._encoded = b""

    def encode(self, entries: Sequence[Entry]) -> bytes:
        """Encode entries for the append stream: their number, then each with its length."""
        count = len(entries)
        known = self._entries
        # Entries never change, and two logs that share two entries share all entries between them.
        if count and count == len(known) and entries[0] is known[0] and entries[-1] is known[-1]:
            return self._encoded
        parts = [_pack_word(count)]
        entry_type = term = -1
        prefix = b""
        for entry in entries:
            if entry.term != term or entry.type != entry_type:
                entry_type, term = entry.type, entry.term
                prefix = b"\x10" + varint(term) + b"\x18"
                if entry_type:
                    prefix = b"\x08" + varint(entry_type) + prefix
            data = entry.data
            if data:
                parts += (
                    _pack_word(entry.size),
                    prefix,
                    varint(entry.index),
                    b"\x22",
                    varint(len(data)),
                    data,
                )
            else:
                parts += (_pack_word(entry.size), prefix, varint(entry.index))
        self._entries, self._encoded = entries, b"".join(parts)
        return self._encoded

    def forget(self) -> None:
        """Release the last entries and their encoding."""
        self._entries, self._encoded = (), b""


class AppendWriter:
    """Encodes the frames of one append stream, from its start."""

    __slots__ = ("_entries", "_index", "_term")

    def __init__(self, entries: EntriesEncoder) -> None:
        self._entries = entries
        self._term = 0
        self._index = 0

    def encode(self, message: Message) -> bytes:
        """Return an append as the next frame."""
        assert message.type == MessageType.APP, message
        term, entries = message.term, message.entries
        if message.index == self._index and message.log_term == self._term == term:
            self._index += len(entries)
            if not entries:
                return b"\x01\0\0\0\0\0\0\0\0" + _pack_word(message.commit)
            return b"\x01" + self._entries.encode(entries) + _pack_word(message.commit)
        self._term = term
        self._index = entries[-1].index if entries else message.index
        data = encode_message(message)
        return b"\x02" + _pack_word(len(data)) + data


class AppendReader:
    """Decodes the append stream that one node sends to another."""

    __slots__ = (
        "_count",
        "_entries",
        "_frame_bytes",
        "_frame_bytes_max",
        "_held",
        "_held_bytes",
        "_index",
        "_is_within",
        "_needed_bytes",
        "_receiver",
        "_sender",
        "_term",
    )

    def __init__(self, sender: int, receiver: int, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._sender = sender
        self._receiver = receiver
        self._frame_bytes_max = frame_bytes_max
        self._term = 0
        self._index = 0
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._needed_bytes = 0
        # Within a continued frame: the number of its entries, and the entries decoded so far.
        self._is_within = False
        self._count = 0
        self._entries: list[Entry] = []
        self._frame_bytes = 0

    def feed(self, piece: bytes) -> list[Message]:
        """Take the next piece; return the complete appends."""
        messages: list[Message] = []
        data = piece
        if self._held:
            self._held.append(piece)
            self._held_bytes += len(piece)
            if self._held_bytes < self._needed_bytes:
                return messages
            data = b"".join(self._held)
            self._held = []
        offset, end = 0, len(data)
        needed = 1
        while offset < end:
            if self._is_within:
                offset, needed = self._read_entries(data, offset)
                if needed:
                    break
                messages.append(self._continued(data, offset))
                offset += 8
                continue
            kind = data[offset]
            if not kind:
                offset += 1
                continue
            needed = 9
            if kind > _WHOLE:
                raise ValueError(f"a frame of kind {kind}; expected 0, 1 or 2")
            if end - offset < needed:
                break
            word: int = _unpack_word(data, offset + 1)[0]
            if kind == _CONTINUED:
                self._is_within = True
                self._count = word
                self._entries = []
                self._frame_bytes = 0
                offset += 9
                needed = 8
                continue
            if word > self._frame_bytes_max:
                raise self._too_large(word)
            needed = 9 + word
            if end - offset < needed:
                break
            messages.append(self._whole(data[offset + 9 : offset + needed]))
            offset += needed
        if offset < end:
            self._held = [data[offset:] if offset else data]
            self._held_bytes = end - offset
            self._needed_bytes = needed
        return messages

    def _whole(self, data: bytes) -> Message:
        message = decode_checked(data)
        if message.type != MessageType.APP:
            raise ValueError(f"a message of type {message.type} among appends")
        self._term = message.term
        self._index = message.index + len(message.entries)
        return message

    def _continued(self, data: bytes, offset: int) -> Message:
        commit: int = _unpack_word(data, offset)[0]
        self._is_within = False
        entries, self._entries = self._entries, []
        message = Message(
            MessageType.APP,
            self._receiver,
            self._sender,
            self._term,
            self._term,
            self._index,
            entries,
            commit,
        )
        self._index += len(entries)
        return message

    def _read_entries(self, data: bytes, offset: int) -> tuple[int, int]:
        """Decode entries of a frame; return the offset and the bytes needed there, 0 if complete.

        Each entry's index and term are known in advance, so that a usual entry needs only a
        comparison of bytes.
        """
        entries, term = self._entries, self._term
        end = len(data)
        index = self._index + len(entries)
        missing = self._count - len(entries)
        frame_bytes = self._frame_bytes
        prefix = b"\x10" + varint(term) + b"\x18"
        prefix_length = len(prefix)
        while missing:
            if end - offset < 8:
                break
            size: int = _unpack_word(data, offset)[0]
            if size > self._frame_bytes_max - frame_bytes:
                raise self._too_large(frame_bytes + size)
            start = offset + 8
            stop = start + size
            if stop > end:
                break
            index += 1
            missing -= 1
            frame_bytes += 8 + size
            offset = stop
            position = start
            entry_type = 0
            if size >= 2 and data[start] == 0x08 and data[start + 1] < 3:
                entry_type = data[start + 1]
                position = start + 2
            if data.startswith(prefix, position, stop):
                position += prefix_length
                encoded = varint(index)
                if data.startswith(encoded, position, stop):
                    position += len(encoded)
                    if position == stop:
                        entries.append(Entry(entry_type, term, index))
                        continue
                    if stop - position > 3 and data[position] == 0x22:
                        length = data[position + 1]
                        position += 2
                        if length > 0x7F:
                            length = length & 0x7F | data[position] << 7
                            position += 1
                            if length > 0x3FFF:
                                length = length & 0x3FFF | data[position] << 14
                                position += 1
                        if position + length == stop:
                            entries.append(Entry(entry_type, term, index, data[position:stop]))
                            continue
            entry = decode_entry(data[start:stop])
            if entry.index != index or entry.term != term:
                raise ValueError(
                    f"an append has entry {entry.index} of term {entry.term}, "
                    f"in place of {index} of term {term}"
                )
            entries.append(entry)
        self._frame_bytes = frame_bytes
        if missing:
            needed = 8 if end - offset < 8 else 8 + int(_unpack_word(data, offset)[0])
            return offset, needed
        return offset, 0 if end - offset >= 8 else 8

    def _too_large(self, length: int) -> ValueError:
        return ValueError(f"an append of {length} bytes; at most {self._frame_bytes_max} are taken")
