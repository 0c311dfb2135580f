"""Finds the oldest etcd version that understands a log's entries.

The API's protobuf definitions record for every message, field and enum value the version in which
etcd introduced it. An etcd can read a log if it is at least as new as everything in the log; only
then is a downgrade allowed.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from google.protobuf.descriptor import DescriptorBase, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from kvorum.api.codec import read_varint
from kvorum.api.descriptors import option
from kvorum.api.pb.etcdserverpb import InternalRaftRequest
from kvorum.raft.entries import Entry, EntryType

Version = tuple[int, int]

OLDEST: Version = (3, 0)


def minimal_etcd_version(entries: Sequence[Entry]) -> Version:
    """Return the newest version that any content of the entries requires, as (major, minor).

    All versions understand membership changes. Raises ValueError for an entry that is not a
    request.
    """
    needed = OLDEST
    for entry in entries:
        if entry.type == EntryType.NORMAL and entry.data and not _is_of_version_2(entry.data):
            try:
                request = InternalRaftRequest.FromString(entry.data)
            except DecodeError as error:
                raise ValueError(f"entry {entry.index} holds no request: {error}") from error
            needed = max(needed, *_versions(request))
            if request.HasField("downgrade_version_test"):
                needed = max(needed, _parse(request.downgrade_version_test.ver))
    return needed


def _is_of_version_2(data: bytes) -> bool:
    """Return whether this is a request of etcd's version 2: id, then a method as field 2.

    etcd 3.5 still writes some.
    """
    try:
        return data[0] == 0x08 and data[read_varint(data, 1)[1]] == 0x12
    except (IndexError, ValueError):
        return False


def _versions(message: Message) -> Iterator[Version]:
    yield _since(message.DESCRIPTOR, "msg")
    for field, value in message.ListFields():
        yield _since(field, "field")
        values: Any = value if field.is_repeated else [value]
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for each in values:
                yield from _versions(each)
        elif field.type == FieldDescriptor.TYPE_ENUM:
            assert field.enum_type is not None
            yield _since(field.enum_type, "enum")
            for number in values:
                known = field.enum_type.values_by_number.get(number)
                if known is not None:
                    yield _since(known, "enum_value")


@cache
def _since(descriptor: DescriptorBase, kind: str) -> Version:
    text = option(descriptor, f"versionpb.etcd_version_{kind}")
    return _parse(text) if text else OLDEST


def _parse(text: str) -> Version:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)
