"""What calls answer with: plain, immutable values."""

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
    header: "ResponseHeader"
    """Who told it, and how far the store was then."""


# Watches make more of these than of anything else: they go past the constructors, which would take
# longer than all the rest of an event.
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


class KeyRead(NamedTuple):
    """A key, and when it was read."""

    kv: KeyValue | None
    """None if it does not exist."""
    revision: int
    """The revision of the store when it answered."""


class TxnResult(NamedTuple):
    """What a transaction did."""

    succeeded: bool
    """Whether all conditions held, so that `then` was done and not `otherwise`."""
    responses: "list[PutResult | DeleteResult | RangeResult | TxnResult]"
    """One for each operation that was done, in their order."""
    revision: int


class ConditionalResult(NamedTuple):
    """What a change did that was made only if its key was as expected."""

    succeeded: bool
    revision: int
    """The revision of the store when it answered; that of the change, if there was one."""
    current: KeyValue | None
    """The key as it is instead, if it was not as expected; None if it does not exist, or was not
    to be read."""


class LeaseStatus(NamedTuple):
    """How long a lease lives."""

    id: int
    remaining: int
    """Seconds; -1 if there is no such lease."""
    ttl: int
    """Seconds that it was granted for."""
    keys: list[bytes]
    """The keys that end with it, if they were asked for."""


class Member(NamedTuple):
    """A member of the cluster."""

    id: int
    name: str
    """Empty until it has started for the first time."""
    peer_urls: list[str]
    client_urls: list[str]
    is_learner: bool
    """Whether it has no vote yet."""

    @property
    def is_started(self) -> bool:
        """Whether it has told the others its name."""
        return bool(self.name)


MemberList: TypeAlias = list[Member]


class MemberStatus(NamedTuple):
    """How a member is doing, as it says itself."""

    member: int
    """Its id."""
    leader: int
    """The id of the leader that it knows, or 0."""
    version: str
    revision: int
    raft_term: int
    raft_index: int
    """The newest entry of its log."""
    applied_index: int
    """The newest entry that its store has."""
    database_bytes: int
    database_bytes_used: int
    """What would be left after defragmenting."""
    database_bytes_max: int
    """The quota; 0 where the server does not tell."""
    storage_version: str
    is_learner: bool
    downgrade_target: str
    """The version that the cluster is being downgraded to, or empty."""
    errors: list[str]

    @property
    def is_leader(self) -> bool:
        """Whether it leads the cluster."""
        return self.member == self.leader


AlarmKind: TypeAlias = Literal["nospace", "corrupt"]


class Alarm(NamedTuple):
    """Why a member does not do everything."""

    member: int
    kind: AlarmKind


class StoreHash(NamedTuple):
    """A hash of keys and their history; equal between members at the same revisions."""

    hash: int
    revision: int
    """The revision up to which it goes."""
    compact_revision: int
    """The revision from which it goes; -1 if nothing was compacted."""


class Snapshot(NamedTuple):
    """A snapshot that was saved."""

    path: "Path"
    size: int
    """Bytes of the file."""
    version: str
    """The storage version; empty where the server does not tell."""


class AuthStatus(NamedTuple):
    """Whether users have to log in."""

    is_enabled: bool
    revision: int
    """Of users and roles; every change of them is one."""


Access: TypeAlias = Literal["read", "write", "readwrite"]


class Permission(NamedTuple):
    """What a role may do with a key, or with all keys up to an end."""

    access: Access
    key: bytes
    end: bytes
    """Empty for one key; a zero byte for all keys from the first on."""
