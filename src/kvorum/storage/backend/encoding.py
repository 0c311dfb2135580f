"""Encodes keys and values for a database file.

Inside the member a row of bucket `key` is identified by a *revision*, the integer
`main << 32 | sub << 1 | tombstone`. Files and hashes identify it by etcd's row key: main as 8 bytes
big endian, `_`, sub as 8 bytes big endian, and for a tombstone `t`. Both sort alike.

LMDB has no checksums of its own, so the CRC-32C of key and value follows every value. LMDB limits
keys to 511 bytes, and user names may be longer: the key of a name of 511 bytes or more is its
beginning and its SHA-256, 511 bytes together, and the name precedes the value. The key of a shorter
name is the name itself, so the key's length distinguishes the two forms.
"""

from collections.abc import Iterable
from hashlib import sha256
from struct import Struct
from typing import Final

from google_crc32c import extend
from google_crc32c import value as crc32c

KEY_BYTES_MAX: Final = 511
CHECKSUM_BYTES: Final = 4
# The CRC-32C of any data followed by the data's own CRC-32C, for any start value.
RESIDUE: Final = 0x48674BC7

_DIGEST_BYTES: Final = 32
NAME_BYTES_KEPT: Final = KEY_BYTES_MAX - _DIGEST_BYTES
"""The bytes of a long name that its key keeps: names and keys sort alike up to there."""
_LENGTH_BYTES: Final = 4

_row_key: Final = Struct(">QcQ")
_pack_row_key: Final = _row_key.pack
_unpack_row_key: Final = Struct(">QxQ").unpack_from
_pack_checksum: Final = Struct("<I").pack
_ROW_KEY_BYTES: Final = _row_key.size
# The key of the first row of a main revision, which is nearly every row.
_pack_first_key: Final = Struct(">Q9s").pack
_FIRST: Final = b"_" + bytes(8)
_SUB_MASK: Final = 0xFFFFFFFF


def revision_of(main: int, sub: int = 0, *, tombstone: bool = False) -> int:
    """Return a revision as one integer."""
    assert 0 <= sub < 1 << 31, f"sub revision {sub} is not in 0..{(1 << 31) - 1}"
    return main << 32 | sub << 1 | tombstone


def row_key(revision: int) -> bytes:
    """Return etcd's row key of a revision, as in files and hashes."""
    key = _pack_row_key(revision >> 32, b"_", (revision & _SUB_MASK) >> 1)
    return key + b"t" if revision & 1 else key


def parse_row_key(key: bytes) -> int:
    """Return the revision of a row key; raise ValueError if the key is not one."""
    length = len(key)
    if length == _ROW_KEY_BYTES:
        main, sub = _unpack_row_key(key)
        revision: int = main << 32 | sub << 1
    elif length == _ROW_KEY_BYTES + 1 and key[-1] == 0x74:
        main, sub = _unpack_row_key(key)
        revision = main << 32 | sub << 1 | 1
    else:
        raise ValueError(f"{key.hex()} is no row key: expected 17 bytes, or 18 ending in 74")
    if key[8] != 0x5F or sub >> 31:
        raise ValueError(f"{key.hex()} is no row key: byte 8 must be 5f, sub below 2**31")
    return revision


def seal_value(key: bytes, value: bytes) -> bytes:
    """Return a value with its checksum appended."""
    return value + _pack_checksum(extend(crc32c(key), value))


def is_whole(key: bytes, sealed: bytes) -> bool:
    """Return whether a sealed value's checksum matches the key and the value."""
    return len(sealed) >= CHECKSUM_BYTES and bool(extend(crc32c(key), sealed) == RESIDUE)


def row_keys(revisions: Iterable[int]) -> list[bytes]:
    """Return the row keys of revisions, in the same order."""
    # Nearly every row is the first of its main revision; this branch saves it a call.
    return [
        row_key(revision) if revision & _SUB_MASK else _pack_first_key(revision >> 32, _FIRST)
        for revision in revisions
    ]


def sealed_rows(rows: Iterable[tuple[int, bytes]]) -> list[tuple[bytes, bytes]]:
    """Encode rows with their checksums, in the same order."""
    # This inlines `seal_value` and `row_keys`: staging a batch spends most of its time here.
    return [
        (
            key := (
                row_key(revision)
                if revision & _SUB_MASK
                else _pack_first_key(revision >> 32, _FIRST)
            ),
            value + _pack_checksum(extend(crc32c(key), value)),
        )
        for revision, value in rows
    ]


def open_rows(sealed_rows: Iterable[tuple[bytes, bytes]]) -> list[tuple[int, bytes]]:
    """Decode stored rows into revisions and values, leaving out damaged rows."""
    # The checksum covers the key, so a row with a valid checksum has a key made by `row_key`.
    return [
        (main << 32 | sub << 1 | (len(key) > _ROW_KEY_BYTES), sealed[:-CHECKSUM_BYTES])
        for key, sealed in sealed_rows
        if extend(crc32c(key), sealed) == RESIDUE
        for main, sub in (_unpack_row_key(key),)
    ]


def stored_name(name: bytes) -> bytes:
    """Return the database key of a name."""
    assert name, "a name in a bucket is not empty"
    if len(name) < KEY_BYTES_MAX:
        return name
    return name[:NAME_BYTES_KEPT] + sha256(name).digest()


def stored_value(name: bytes, value: bytes) -> bytes:
    """Return the database value of a name and its value, without the checksum."""
    if len(name) < KEY_BYTES_MAX:
        return value
    return len(name).to_bytes(_LENGTH_BYTES, "big") + name + value


def parse_stored(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Return the name and value of a stored entry whose checksum is already removed."""
    if len(key) < KEY_BYTES_MAX:
        return key, value
    end = _LENGTH_BYTES + int.from_bytes(value[:_LENGTH_BYTES], "big")
    return value[_LENGTH_BYTES:end], value[end:]
