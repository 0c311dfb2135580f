"""Waiting until others wait."""

from kvorum.client.sync.client import Client


def queue_of(client: Client, prefix: str, length: int) -> None:
    """Return when so many keys stand under a prefix."""
    found = client.read(prefix=prefix)
    if len(found.kvs) != length:
        with client.watch(prefix=prefix, revision=found.revision + 1) as watch:
            while client.count(prefix=prefix) != length:
                next(watch)
