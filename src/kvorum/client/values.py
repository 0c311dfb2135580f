"""The results of calls: plain, immutable values."""

from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

    from kvorum.api.pb.etcdserverpb import ResponseHeader


class KeyValue(NamedTuple):
    """A key as it was at some revision."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int
    """The id of the lease that the key is attached to, or 0."""

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
    """The key before the change, if requested and not compacted."""

    @property
    def key(self) -> bytes:
        """The key that changed."""
        return self.kv.key

    @property
    def value(self) -> bytes:
        """The value that the key was set to."""
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
    """Changes that a watch received together: whole revisions, in their order."""

    events: list[Event]
    revision: int
    """The watch has received everything up to this revision."""
    header: "ResponseHeader"
    """The header of the response: the member that sent it, and the store's revision then."""


# Watches create these most often, and bypass their constructors, which would take longer than all
# the rest of an event.
_new = tuple.__new__
_PUT, _DELETE = EventKind.PUT, EventKind.DELETE


def key_value(message: Any) -> KeyValue:
    """Return a key from its message."""
    return _new(
        KeyValue,
        (
            message.key,
            message.value,
            message.create_revision,
            message.mod_revision,
            message.version,
            message.lease,
        ),
    )


def event(message: Any) -> Event:
    """Return an event from its message."""
    previous = key_value(message.prev_kv) if message.HasField("prev_kv") else None
    return _new(Event, (_DELETE if message.type else _PUT, key_value(message.kv), previous))


class PutResult(NamedTuple):
    """The result of a put."""

    revision: int
    previous: KeyValue | None
    """The key before the put, if requested and if it existed."""


class DeleteResult(NamedTuple):
    """The result of a deletion."""

    deleted: int
    """How many keys were deleted."""
    revision: int
    previous: list[KeyValue]
    """The deleted keys, if requested."""


class RangeResult(NamedTuple):
    """Keys as they were at one revision."""

    kvs: list[KeyValue]
    total: int
    """How many keys the range has, whatever the limit of the request."""
    has_more: bool
    revision: int
    """The revision of the store when it answered."""


class KeyRead(NamedTuple):
    """A key, and the revision at which it was read."""

    kv: KeyValue | None
    """None if the key does not exist."""
    revision: int
    """The revision of the store when it answered."""


class TxnResult(NamedTuple):
    """The result of a transaction."""

    succeeded: bool
    """Whether all conditions held, so that `then` was done and not `otherwise`."""
    responses: "list[PutResult | DeleteResult | RangeResult | TxnResult]"
    """One result for each operation that was done, in their order."""
    revision: int


class ConditionalResult(NamedTuple):
    """The result of a change on condition that the key is at the expected revision."""

    succeeded: bool
    revision: int
    """The revision of the change, or without a change that of the store when it answered."""
    current: KeyValue | None
    """The present key, if it was not as expected; None if it does not exist or was not read."""


class LeaseStatus(NamedTuple):
    """The remaining time of a lease."""

    id: int
    remaining: int
    """Seconds; -1 if there is no such lease."""
    ttl: int
    """Seconds for which the lease was granted."""
    keys: list[bytes]
    """The keys attached to the lease, if requested."""


class Member(NamedTuple):
    """A member of the cluster."""

    id: int
    name: str
    """Empty until the member has started for the first time."""
    peer_urls: list[str]
    client_urls: list[str]
    is_learner: bool
    """Whether the member has no vote."""

    @property
    def is_started(self) -> bool:
        """Whether the member has published its name to the others."""
        return bool(self.name)


MemberList: TypeAlias = list[Member]


class MemberStatus(NamedTuple):
    """A member's own report of its state."""

    member: int
    """The member's id."""
    leader: int
    """The id of the leader that the member knows, or 0."""
    version: str
    revision: int
    raft_term: int
    raft_index: int
    """The commit index."""
    applied_index: int
    """The index of the newest entry that the member has applied."""
    database_bytes: int
    database_bytes_used: int
    """How many bytes would be left after a defragmentation."""
    database_bytes_max: int
    """The quota; 0 if the server does not report it."""
    storage_version: str
    is_learner: bool
    downgrade_target: str
    """The version that the cluster is being downgraded to, or empty."""
    errors: list[str]

    @property
    def is_leader(self) -> bool:
        """Whether the member leads the cluster."""
        return self.member == self.leader


AlarmKind: TypeAlias = Literal["nospace", "corrupt"]


class Alarm(NamedTuple):
    """An alarm, which restricts the requests that members accept."""

    member: int
    kind: AlarmKind


class StoreHash(NamedTuple):
    """A hash of keys and their history; equal between members at the same revisions."""

    hash: int
    revision: int
    """The last revision that the hash covers."""
    compact_revision: int
    """The compacted revision, from which the hash goes; -1 if there was no compaction."""


class Snapshot(NamedTuple):
    """A saved snapshot."""

    path: "Path"
    size: int
    """Bytes of the file."""
    version: str
    """The storage version; empty if the server does not report it."""


class AuthStatus(NamedTuple):
    """Whether users have to log in."""

    is_enabled: bool
    revision: int
    """The revision of users and roles, which each of their changes increments."""


Access: TypeAlias = Literal["read", "write", "readwrite"]


class Permission(NamedTuple):
    """What a role may do with a key, or with all keys up to an end."""

    access: Access
    key: bytes
    end: bytes
    """Empty for one key; a zero byte for all keys from `key` on."""
