"""What calls answer with: plain, immutable values."""

from enum import Enum
from typing import Any, NamedTuple


class KeyValue(NamedTuple):
    """A key as it was at some revision."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int
    """The id of the lease that it ends with, or 0."""

    @property
    def text(self) -> str:
        """The value as text."""
        return self.value.decode()


class EventKind(Enum):
    """What happened to a key."""

    PUT = "put"
    DELETE = "delete"


class Event(NamedTuple):
    """A change of a key."""

    kind: EventKind
    kv: KeyValue
    """The key after the change; after a deletion it has neither value nor versions."""
    previous: KeyValue | None
    """The key before it, if that was asked for and is still there."""

    @property
    def key(self) -> bytes:
        """The key that changed."""
        return self.kv.key

    @property
    def value(self) -> bytes:
        """What it was set to."""
        return self.kv.value

    @property
    def revision(self) -> int:
        """The revision of the change."""
        return self.kv.mod_revision

    @property
    def is_put(self) -> bool:
        """Whether the key was set, not deleted."""
        return self.kind is EventKind.PUT


class Changes(NamedTuple):
    """What a watch was told at once: whole revisions, in their order."""

    events: list[Event]
    revision: int
    """Everything up to this revision has been told."""


def key_value(message: Any) -> KeyValue:
    """Return a key from its message."""
    return KeyValue(
        message.key,
        message.value,
        message.create_revision,
        message.mod_revision,
        message.version,
        message.lease,
    )


def event(message: Any) -> Event:
    """Return an event from its message."""
    previous = key_value(message.prev_kv) if message.HasField("prev_kv") else None
    kind = EventKind.DELETE if message.type else EventKind.PUT
    return Event(kind, key_value(message.kv), previous)


class PutResult(NamedTuple):
    """What a put did."""

    revision: int
    previous: KeyValue | None
    """What was there before, if that was asked for and something was."""


class DeleteResult(NamedTuple):
    """What a deletion did."""

    deleted: int
    """How many keys were there and are gone."""
    revision: int
    previous: list[KeyValue]
    """Those keys, if that was asked for."""


class RangeResult(NamedTuple):
    """Keys as they were at one revision."""

    kvs: list[KeyValue]
    total: int
    """How many keys there are, however few were asked for."""
    has_more: bool
    revision: int
    """The revision of the store when it answered."""


class TxnResult(NamedTuple):
    """What a transaction did."""

    succeeded: bool
    """Whether all conditions held, so that `then` was done and not `otherwise`."""
    responses: "list[PutResult | DeleteResult | RangeResult | TxnResult]"
    """One for each operation that was done, in their order."""
    revision: int


class LeaseStatus(NamedTuple):
    """How long a lease lives."""

    id: int
    remaining: int
    """Seconds; -1 if there is no such lease."""
    ttl: int
    """Seconds that it was granted for."""
    keys: list[bytes]
    """The keys that end with it, if they were asked for."""
