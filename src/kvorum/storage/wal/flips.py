"""Finds a single flipped bit that alone explains the damage of a record.

A damaged record with a sector of zeros looks torn, but the zeros may be its real content and a
flipped bit its damage. The search covers every bit. It flips back each bit before the data in turn.
For the data, it derives the bit from the difference between the checksums, by tracing the
difference back byte by byte through the zeros that would have followed the bit. The chance of
mistaking a torn record for a flipped one is one in 2^32 for each of its bits, unless the lost
sector held only that bit.
"""

import struct
from typing import Final

from google_crc32c import extend

from kvorum.api.codec import read_varint
from kvorum.storage.wal.framing import RECORD_NAMES

_read_word = struct.Struct("<Q").unpack_from
_LENGTH_MASK: Final = (1 << 56) - 1
# The length word, type and checksum with their tags, the tag and the length of the data.
_FRONT_BYTES_MAX: Final = 8 + 2 + 1 + 5 + 1 + 5


def _checksum_step(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


_STEPS: Final = tuple(map(_checksum_step, range(256)))
_BY_TOP_BYTE: Final = {step >> 24: byte for byte, step in enumerate(_STEPS)}
_BIT_IN_LAST_BYTE: Final = {_STEPS[1 << bit]: bit for bit in range(8)}


def find_flipped_bit(segment: bytes, offset: int, crc: int) -> int | None:
    """Return the bit that must be flipped back to make the record at an offset whole, or None.

    Bits are numbered from the start of the file. `crc` is the checksum of everything before the
    record.
    """
    front = segment[offset : offset + _FRONT_BYTES_MAX]
    for bit in range(8 * len(front)):
        tried = bytearray(front)
        tried[bit // 8] ^= 1 << bit % 8
        found = _parse(bytes(tried), offset, len(segment))
        if found is not None:
            start, end, stored = found
            if extend(crc, segment[start:end]) == stored:
                return 8 * offset + bit
    found = _parse(front, offset, len(segment))
    if found is None:
        return None
    start, end, stored = found
    difference = extend(crc, segment[start:end]) ^ stored
    if difference >> 32:
        # The stored number is no checksum, and no bit of the data can change that.
        return None
    for place in range(end - 1, start - 1, -1):
        in_byte = _BIT_IN_LAST_BYTE.get(difference)
        if in_byte is not None:
            return 8 * place + in_byte
        byte = _BY_TOP_BYTE[difference >> 24]
        difference = (difference ^ _STEPS[byte]) << 8 & 0xFFFFFFFF | byte
    return None


def _parse(front: bytes, offset: int, size: int) -> tuple[int, int, int] | None:
    """Return start and end of a record's data and its checksum; None if the form is invalid.

    `front` is the beginning of the record, and `offset` its offset in a file of `size` bytes.
    """
    try:
        (word,) = _read_word(front)
        length = word & _LENGTH_MASK
        padding = -length % 8
        end = offset + 8 + length
        if end + padding > size or word >> 56 != (0x80 | padding if padding else 0):
            return None
        if front[8] != 0x08 or front[9] not in RECORD_NAMES or front[10] != 0x10:
            return None
        stored, place = read_varint(front, 11)
        if front[place] != 0x1A:
            return None
        data_bytes, place = read_varint(front, place + 1)
    except (IndexError, ValueError, struct.error):
        return None
    return (offset + place, end, stored) if offset + place + data_bytes == end else None
