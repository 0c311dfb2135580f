"""One flipped bit: whether it alone explains the damage of a record.

A record with a sector of zeros looks torn, but the zeros may be its real content, and then its
damage is of another kind. Every bit is tried. Those in front of the data are flipped back one after
the other. For the data, the difference between the checksums tells which bit is wrong: it is traced
back byte by byte through the zeros that would have followed the bit. The chance that a torn record
is mistaken for a flipped one is one in 2^32 for every bit of it, unless the lost sector held just
that bit of it.
"""

import struct
from typing import Final

from google_crc32c import extend

from kvorum.api.codec import read_varint
from kvorum.wal.framing import RECORD_NAMES

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
    """Return which bit of the record at an offset must be flipped back to make it whole.

    It is counted from the first of the file; None if there is none. `crc` is the checksum of
    everything before.
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
    for place in range(end - 1, start - 1, -1):
        in_byte = _BIT_IN_LAST_BYTE.get(difference)
        if in_byte is not None:
            return 8 * place + in_byte
        byte = _BY_TOP_BYTE[difference >> 24]
        difference = (difference ^ _STEPS[byte]) << 8 & 0xFFFFFFFF | byte
    return None


def _parse(front: bytes, offset: int, size: int) -> tuple[int, int, int] | None:
    """Return where the data of a record begins and ends, and its checksum, if its form is right.

    `front` is the beginning of the record, `offset` its place in a file of that size.
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
