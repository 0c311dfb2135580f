"""The content and the name of a `.snap` file: snappb.snapshot around raftpb.Snapshot.

The checksum is the CRC-32C of the encoded raftpb.Snapshot alone. The name is the term and then the
index, so that names sort by age.
"""

import re

from google_crc32c import value as crc32c

from kvorum.api.codec import length_delimited, read_varint, varint
from kvorum.raft.messages import Snapshot
from kvorum.raft.wire import decode_snapshot, encode_snapshot

_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})\.snap")


class SnapError(Exception):
    """Raised for a snapshot file that cannot be read."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"{path}: {problem}. The newest snapshot that is whole will be used; if there is "
            f"none that the log has a record of, remove the member and add it again"
        )


def file_name(term: int, index: int) -> str:
    """Return the file name of a snapshot."""
    return f"{term:016x}-{index:016x}.snap"


def parse_name(name: str) -> tuple[int, int] | None:
    """Return the term and index in a file name; None if the file is not a snapshot."""
    match = _NAME.fullmatch(name)
    return (int(match[1], 16), int(match[2], 16)) if match else None


def encode(snapshot: Snapshot) -> bytes:
    """Encode a snapshot as the content of its file."""
    assert snapshot.index and snapshot.conf_state.voters, f"{snapshot.index} is no snapshot"
    data = encode_snapshot(snapshot)
    return b"\x08%b%b" % (varint(crc32c(data)), length_delimited(b"\x12", data))


def decode(path: str, content: bytes) -> Snapshot:
    """Decode the content of a file; raise SnapError if it is not a snapshot."""
    if not content:
        raise SnapError(path, "empty")
    crc, data, offset = 0, b"", 0
    try:
        while offset < len(content):
            tag, offset = read_varint(content, offset)
            value, offset = read_varint(content, offset)
            if tag == 0x08:
                crc = value
            elif tag == 0x12 and offset + value <= len(content):
                data = content[offset : offset + value]
                offset += value
            else:
                raise SnapError(path, f"field tag {tag:#x} at offset {offset} has no place here")
    except ValueError as error:
        raise SnapError(path, str(error)) from error
    if not data:
        raise SnapError(path, "no snapshot in it")
    if crc != crc32c(data):
        raise SnapError(path, f"checksum {crc32c(data):#010x}, but {crc:#010x} stored")
    try:
        snapshot = decode_snapshot(data)
    except ValueError as error:
        raise SnapError(path, f"not a readable snapshot: {error}") from error
    if not snapshot.index:
        raise SnapError(path, "a snapshot of index 0 is none")
    return snapshot
