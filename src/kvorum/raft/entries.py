"""Entries of the replicated log, and the two ways to measure their size.

An entry never changes after it was made: the log, messages, the storage and the application share
the same objects. Limits on messages and on entries being applied count the encoded size. Limits on
uncommitted entries and on entries in flight count the payload, the length of the data.
"""

from collections.abc import Sequence
from typing import Final

NO_LIMIT: Final = (1 << 64) - 1

# Entries measured in one step; bounds the work of reading a prefix of a long log.
_CHUNK: Final = 512


class EntryType:
    """The kind of an entry: application data, or a membership change."""

    NORMAL: Final = 0
    CONF_CHANGE: Final = 1
    CONF_CHANGE_V2: Final = 2


class Entry:
    """One position of the log. `size` is the length of the entry's encoding."""

    __slots__ = ("data", "index", "size", "term", "type")

    def __init__(self, entry_type: int, term: int, index: int, data: bytes = b"") -> None:
        self.type = entry_type
        self.term = term
        self.index = index
        self.data = data
        length = len(data)
        # Inlined instead of calling the encoder, because this runs once for every entry of the log.
        self.size = (
            (4 if entry_type else 2)
            + (1 if term < 0x80 else (term.bit_length() + 6) // 7)
            + (1 if index < 0x80 else (index.bit_length() + 6) // 7)
            + (
                0
                if not length
                else length + 2
                if length < 0x80
                else length + 1 + (length.bit_length() + 6) // 7
            )
        )

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Entry)
            and self.index == other.index
            and self.term == other.term
            and self.type == other.type
            and self.data == other.data
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Entry({self.type}, term={self.term}, index={self.index}, data={self.data!r})"


def encoded_size(entries: Sequence[Entry]) -> int:
    """Return the sum of the encoded sizes."""
    if len(entries) == 1:
        return entries[0].size
    return sum([entry.size for entry in entries])


def payload_size(entries: Sequence[Entry]) -> int:
    """Return the sum of the lengths of the data."""
    if len(entries) == 1:
        return len(entries[0].data)
    return sum([len(entry.data) for entry in entries])


def take_within(entries: list[Entry], low: int, high: int, size_max: int) -> list[Entry]:
    """Copy the longest prefix of `entries[low:high]` within the size, and at least one entry.

    The cost grows with the returned prefix, not with the length of the list.
    """
    if size_max >= NO_LIMIT:
        return entries[low:high]
    taken: list[Entry] = []
    size = 0
    while low < high:
        chunk = entries[low : low + _CHUNK if high - low > _CHUNK else high]
        size += encoded_size(chunk)
        if size > size_max:
            while size > size_max and chunk:
                size -= chunk.pop().size
            return taken + chunk or entries[low : low + 1]
        if not taken and len(chunk) == high - low:
            return chunk
        taken += chunk
        low += len(chunk)
    return taken
