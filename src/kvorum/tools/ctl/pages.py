"""Read keys at one revision page by page, in memory that does not grow with the store."""

from collections.abc import Iterator
from typing import NamedTuple

from kvorum.client import operations
from kvorum.client.keys import KeyRange
from kvorum.client.sync.client import Client
from kvorum.client.values import KeyValue
from kvorum.tools.cli.errors import BAD_ARGUMENTS, CommandError
from kvorum.tools.ctl.invocation import CtlInvocation

PAGE_BYTES = 1 << 20
"""The intended size of a page; the number of keys per page adapts to it."""
PAGE_KEYS = 64
PAGE_KEYS_MAX = 4096


class Extent(NamedTuple):
    """The number of keys to read, and the store's revision."""

    revision: int
    """The revision of the store."""
    keys: int


def extent(invocation: CtlInvocation, client: Client, keys: KeyRange, revision: int = 0) -> Extent:
    """Count keys at a revision, or at the newest one."""
    if revision < 0:
        raise CommandError(
            f"revision {revision} was given; expected a revision of the store, from 1 on",
            BAD_ARGUMENTS,
        )
    request = operations.range_request(keys, revision=revision, count_only=True)
    found = client.run(operations.range_operation(request), invocation.seconds("command-timeout"))
    return Extent(found.revision, found.total)


def keys_at(
    invocation: CtlInvocation,
    client: Client,
    keys: KeyRange,
    revision: int,
    after: bytes = b"",
) -> Iterator[KeyValue]:
    """Yield keys in their order at a revision: all of them, or those after `after`."""
    if after:
        keys = keys._replace(key=after + b"\0")
    page = PAGE_KEYS
    while True:
        request = operations.range_request(keys, limit=page, revision=revision)
        found = client.run(
            operations.range_operation(request), invocation.seconds("command-timeout")
        )
        yield from found.kvs
        if not found.has_more:
            return
        keys = keys._replace(key=found.kvs[-1].key + b"\0")
        size = sum(len(each.key) + len(each.value) for each in found.kvs)
        page = min(PAGE_KEYS_MAX, max(1, page * PAGE_BYTES // max(1, size)), page * 2)
