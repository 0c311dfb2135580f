"""How keys and values are written into a database file.

Rows of bucket `key` are known by a *revision* as one integer inside the member,
`main << 32 | sub << 1 | tombstone`, and by etcd's row key in files and hashes: main as 8 bytes
big endian, `_`, sub as 8 bytes big endian, and `t` behind a tombstone. Both sort alike.

LMDB has no checksums of its own, so every value is followed by the CRC-32C of its key and itself.
LMDB takes keys of 511 bytes at most, and user names may be longer: a name of 511 bytes or more is
stored under its beginning and its SHA-256, 511 bytes together, with the name in front of the
value. Shorter names are stored as they are, so the length tells which is which.
"""

from collections.abc import Iterable
from hashlib import sha256
from struct import Struct
from typing import Final

from google_crc32c import extend
from google_crc32c import value as crc32c

KEY_BYTES_MAX: Final = 511
CHECKSUM_BYTES: Final = 4
# The CRC-32C of any data followed by its own CRC-32C, whatever it started from.
RESIDUE: Final = 0x48674BC7

_DIGEST_BYTES: Final = 32
NAME_BYTES_KEPT: Final = KEY_BYTES_MAX - _DIGEST_BYTES
"""So much of a long name is stored as it is: names sort alike up to there."""
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
    """Return the key of a row as files and hashes have it."""
    key = _pack_row_key(revision >> 32, b"_", (revision & _SUB_MASK) >> 1)
    return key + b"t" if revision & 1 else key


def parse_row_key(key: bytes) -> int:
    """Return the revision of a row; raise ValueError if this is not a row key."""
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
    """Return whether the checksum of a value is right for it and its key."""
    return len(sealed) >= CHECKSUM_BYTES and bool(extend(crc32c(key), sealed) == RESIDUE)


def row_keys(revisions: Iterable[int]) -> list[bytes]:
    """Return the keys of rows, in the same order."""
    # Nearly every row is the first of its main revision, and saves a call here.
    return [
        row_key(revision) if revision & _SUB_MASK else _pack_first_key(revision >> 32, _FIRST)
        for revision in revisions
    ]


def sealed_rows(rows: Iterable[tuple[int, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return rows in the form a database stores, in the same order."""
    # `seal_value` and `row_keys` written out: a batch spends most of its staging here.
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
    """Return revisions and values of rows as a database has them, leaving out damaged ones."""
    # The checksum covers the key, so a key with a right one was made by `row_key`.
    return [
        (main << 32 | sub << 1 | (len(key) > _ROW_KEY_BYTES), sealed[:-CHECKSUM_BYTES])
        for key, sealed in sealed_rows
        if extend(crc32c(key), sealed) == RESIDUE
        for main, sub in (_unpack_row_key(key),)
    ]


def stored_name(name: bytes) -> bytes:
    """Return the key under which a name is stored."""
    assert name, "a name in a bucket is not empty"
    if len(name) < KEY_BYTES_MAX:
        return name
    return name[:NAME_BYTES_KEPT] + sha256(name).digest()


def stored_value(name: bytes, value: bytes) -> bytes:
    """Return what is stored for a name and its value, without the checksum."""
    if len(name) < KEY_BYTES_MAX:
        return value
    return len(name).to_bytes(_LENGTH_BYTES, "big") + name + value


def parse_stored(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Return the name and the value that were stored; the checksum is already removed."""
    if len(key) < KEY_BYTES_MAX:
        return key, value
    end = _LENGTH_BYTES + int.from_bytes(value[:_LENGTH_BYTES], "big")
    return value[_LENGTH_BYTES:end], value[end:]
